"""Where a transformers model computes what a point can read: its decoder layers, their parts, and the final norm."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from undercurrent.engines.base import EngineCapabilities, EngineLimitationError
from undercurrent.engines.capture import TensorKey
from undercurrent.spec import TensorType

__all__ = ["ModelModules", "find_modules", "output_tensor"]

_ATTENTION_NAMES = ("self_attn", "self_attention", "attn", "attention")
_MLP_NAMES = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "moe")
_FINAL_NORM_NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f", "ln_out", "final_norm")


@dataclass(frozen=True, slots=True)
class ModelModules:
    """The modules whose outputs are read; borrowed from the model."""

    layers: tuple[nn.Module, ...]
    attention: tuple[nn.Module | None, ...]
    mlp: tuple[nn.Module | None, ...]
    final_norm: nn.Module | None
    hidden_size: int

    def find(self, key: TensorKey) -> nn.Module:
        """The module whose output is tensor `key`; the key was checked against `capabilities`."""
        layer, tensor_type = key
        module = self.final_norm
        if tensor_type is TensorType.RESIDUAL_STREAM:
            module = self.layers[layer]
        elif tensor_type is TensorType.ATTN_OUT:
            module = self.attention[layer]
        elif tensor_type is TensorType.MLP_OUT:
            module = self.mlp[layer]
        assert module is not None
        return module

    def capabilities(self) -> EngineCapabilities:
        """What these modules give; a part that only some layers have counts as missing."""
        found = {TensorType.RESIDUAL_STREAM}
        if all(module is not None for module in self.attention):
            found.add(TensorType.ATTN_OUT)
        if all(module is not None for module in self.mlp):
            found.add(TensorType.MLP_OUT)
        if self.final_norm is not None:
            found.add(TensorType.FINAL_NORM)
        return EngineCapabilities(
            layer_count=len(self.layers), hidden_size=self.hidden_size, tensor_types=frozenset(found)
        )


def find_modules(model: Any) -> ModelModules:
    """Finds the decoder of a causal language model.

    Raises:
        EngineLimitationError: the model has an encoder, or no unambiguous list of decoder layers.
    """
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    if getattr(model.config, "is_encoder_decoder", False):
        raise EngineLimitationError(
            f"{type(model).__name__} is an encoder-decoder model; this engine reads decoder-only models"
        )
    layer_count = getattr(config, "num_hidden_layers", None)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    lists = [] if layer_count is None else list(_layer_lists(decoder, layer_count))
    if len(lists) != 1:
        module_lists = [(name, module) for name, module in decoder.named_modules() if isinstance(module, nn.ModuleList)]
        seen = [f"{name} ({len(module)})" for name, module in module_lists]
        raise EngineLimitationError(
            f"expected one list of {layer_count} decoder layers in {type(model).__name__}, found {len(lists)}; its"
            f" module lists are: {', '.join(seen[:8]) or 'none'}"
        )
    name, layers = lists[0]
    parent = decoder.get_submodule(name.rpartition(".")[0])
    return ModelModules(
        layers=tuple(layers),
        attention=tuple(_part(layer, _ATTENTION_NAMES) for layer in layers),
        mlp=tuple(_part(layer, _MLP_NAMES) for layer in layers),
        final_norm=_child(parent, _FINAL_NORM_NAMES),
        hidden_size=int(config.hidden_size),
    )


def _layer_lists(decoder: nn.Module, layer_count: int) -> Iterator[tuple[str, nn.ModuleList]]:
    """The module lists that are as long as the model is deep and do not lie inside one another."""
    outer: list[str] = []
    for name, module in decoder.named_modules():
        is_inner = any(name.startswith(f"{prefix}.") for prefix in outer)
        if isinstance(module, nn.ModuleList) and len(module) == layer_count and not is_inner:
            outer.append(name)
            yield name, module


def _part(layer: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    """A part of a layer, unless it is one that adds the stream to its output itself, as Bloom's and MPT's parts do."""
    part = _child(layer, names)
    if part is None or "residual" in inspect.signature(part.forward).parameters:
        return None
    return part


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    children = dict(module.named_children())
    return next((children[name] for name in names if name in children), None)


def output_tensor(output: Any, *, batch_size: int, column_count: int) -> Tensor:
    """The hidden states `(batch, columns, hidden)` in a module's output, which is the tensor or begins with it.

    Raises:
        EngineLimitationError: the output is of another shape than the tokens that went in.
    """
    hidden = output[0] if isinstance(output, tuple) and output else output
    if isinstance(hidden, Tensor):
        if hidden.ndim == 3 and hidden.shape[:2] == (batch_size, column_count):
            return hidden
        # Expert layers flatten the tokens of all sequences; the order is kept.
        if hidden.ndim == 2 and hidden.shape[0] == batch_size * column_count:
            return hidden.view(batch_size, column_count, -1)
    shape = tuple(hidden.shape) if isinstance(hidden, Tensor) else type(hidden).__name__
    raise EngineLimitationError(
        f"expected hidden states of {batch_size} sequences x {column_count} tokens from a hooked module, got {shape};"
        " this architecture packs its tokens in a way this engine does not know"
    )
