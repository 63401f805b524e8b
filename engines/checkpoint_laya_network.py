"""The network of a decision model: an encoder, a few layers on it, and a score read at each option's marker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel
from transformers.initialization import no_init_weights

from undercurrent.predict.errors import PredictValueError

__all__ = ["DecisionNetwork", "load_network"]

_HEAD_WIDTH = 64
_ACTION_HIDDEN = 256
_FEATURES = 4
# What a marker that is not there scores.
_ABSENT = -1e4
_NAMED_MAX = 5


class DecisionNetwork(nn.Module):
    """Scores options at their markers. Names and shapes of its parameters are those of `model.safetensors`."""

    def __init__(self, encoder: Any, *, head_layers: int, action_count: int) -> None:
        super().__init__()
        width = encoder.config.hidden_size
        self.encoder = encoder
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // _HEAD_WIDTH), 4 * width, batch_first=True, norm_first=True
        )
        self.head = nn.TransformerEncoder(layer, head_layers, enable_nested_tensor=False) if head_layers else None
        self.type_emb = nn.Embedding(3, width)
        self.scorer = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
        self.act_head = nn.Sequential(
            nn.Linear(width + _FEATURES, _ACTION_HIDDEN), nn.GELU(), nn.Linear(_ACTION_HIDDEN, action_count)
        )
        # Stands in the files; the temperatures that are used stand in the configuration.
        self.register_buffer("temperature", torch.ones(3))

    def forward(
        self,
        token_ids: Tensor,
        mask: Tensor,
        types: Tensor,
        markers: Tensor,
        marker_mask: Tensor,
        positions: Tensor | None = None,
        slots: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Logits of options `(rows, options) float32`, and probabilities of actions `(rows, actions) float32`.

        Args:
            token_ids, mask: `(rows, longest)`; mask is True where there is a token.
            types: `(rows,)`, which of choice, score and noul.
            markers, marker_mask: `(rows, options)`, where each option's marker stands, and whether there is one.
            positions, slots: `(rows, longest)`, of the parallel layout: the position each token claims, and the number
                of the option it belongs to, from 1; 0 belongs to none.
        """
        attention: Any = mask.long()
        if positions is not None and slots is not None:
            attention = self._parallel_masks(mask, positions, slots)
        hidden = self.encoder(input_ids=token_ids, attention_mask=attention, position_ids=positions).last_hidden_state
        hidden = hidden + self.type_emb(types)[:, None]
        if self.head is not None:
            hidden = self.head(hidden, src_key_padding_mask=~mask)
        at_markers = hidden.gather(1, markers[..., None].expand(-1, -1, hidden.shape[-1]))
        logits = self.scorer(at_markers).squeeze(-1).float().masked_fill(~marker_mask, _ABSENT)
        actions = self.act_head(torch.cat([hidden[:, 0].float(), _certainty(logits, marker_mask)], -1))
        return logits, actions.float().softmax(-1)

    def _parallel_masks(self, mask: Tensor, positions: Tensor, slots: Tensor) -> dict[str, Tensor]:
        """Who sees whom, `(rows, 1, longest, longest)`, by kind of layer: no token sees another option's."""
        query, key = slots[:, :, None], slots[:, None, :]
        full = mask[:, None, :] & ((query == key) | (query == 0) | (key == 0))
        masks = {"full_attention": full[:, None]}
        window = getattr(self.encoder.config, "sliding_window", None)
        if window is not None:
            near = (positions[:, :, None] - positions[:, None, :]).abs() <= window
            masks["sliding_attention"] = (full & near)[:, None]
        return masks


def _certainty(logits: Tensor, marker_mask: Tensor) -> Tensor:
    """What the choice of an action sees of the options, `(rows, 4)`: the best, its lead, entropy, their number."""
    probabilities = logits.softmax(-1)
    count = marker_mask.sum(-1).clamp(min=2).float()
    entropy = -(probabilities * probabilities.clamp(min=1e-9).log()).sum(-1) / count.log()
    best = nn.functional.pad(probabilities, (0, 1)).topk(2, -1).values
    return torch.stack([best[:, 0], best[:, 0] - best[:, 1], entropy, count / 255.0], -1)


def load_network(folder: Path, *, head_layers: int, action_count: int) -> DecisionNetwork:
    """The network of a folder in evaluation mode, on the CPU, in float32.

    Raises:
        PredictValueError: the weights cannot be read, or are another model's.
    """
    try:
        weights = load_file(folder / "model.safetensors")
        config: Any = AutoConfig.from_pretrained(folder / "encoder", local_files_only=True, trust_remote_code=False)
    except (SafetensorError, OSError, ValueError) as error:
        raise PredictValueError(f"a file in {str(folder)!r} cannot be read: {error}") from error
    models: Any = AutoModel
    # What is drawn at random here is replaced at once, and must not move the caller's generator.
    with no_init_weights(), torch.random.fork_rng(devices=[]):
        encoder = models.from_config(config, attn_implementation="sdpa").float()
        network = DecisionNetwork(encoder, head_layers=head_layers, action_count=action_count)
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if wanted != found:
        differing = [name for name in [*wanted, *(found.keys() - wanted)] if wanted.get(name) != found.get(name)]
        named = ", ".join(
            f"{name!r} {wanted.get(name, 'absent')} (got {found.get(name, 'none')})" for name in differing[:_NAMED_MAX]
        )
        raise PredictValueError(
            f"'model.safetensors' in {str(folder)!r} must hold the {len(wanted)} tensors its configuration describes;"
            f" {len(differing)} differ: {named}"
        )
    network.load_state_dict(weights)
    return network.eval()
