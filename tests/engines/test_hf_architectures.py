"""Decoders of other families are found and read to the bit, on tiny models with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_points import make_point, make_router

from undercurrent.engines import HFEngine
from undercurrent.spec import TensorType

_COMMON = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SETTINGS: dict[str, dict[str, Any]] = {
    "gpt_neox": _COMMON,
    "phi3": _COMMON,
    "gemma2": _COMMON,
    "mistral": _COMMON,
    "mixtral": {**_COMMON, "num_local_experts": 4},
    "qwen3_moe": {**_COMMON, **_EXPERTS, "num_experts": 4},
    "falcon": {key: _COMMON[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
    "opt": {**_COMMON, "ffn_dim": 64, "word_embed_proj_dim": 32},
}
_NEW_TOKENS = 5


@pytest.mark.parametrize("architecture", _SETTINGS)
def test_records_of_other_architectures_equal_their_hidden_states(architecture: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    models: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    model = models.from_config(AutoConfig.for_model(architecture, **_SETTINGS[architecture])).eval()
    engine = HFEngine()
    engine.load_model(model)
    depth, given = engine.num_layers, engine.capabilities.tensor_types
    assert given >= {TensorType.RESIDUAL_STREAM, TensorType.ATTN_OUT, TensorType.FINAL_NORM}
    points = [
        make_point(kind.value, layers=(depth,) if kind is TensorType.FINAL_NORM else (0, 1), tensor_type=kind)
        for kind in sorted(given)
    ]
    for name in ("a", "b"):
        engine.register_extraction(name, points)
    arguments = {"max_new_tokens": _NEW_TOKENS, "min_new_tokens": _NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
    prompts = [[5, 6, 7, 8, 9], [5, 6]]
    generations = engine.generate_batch(["a", "b"], prompts, arguments, make_router())
    reference = model.generate(
        torch.tensor([prompts[0], [0, 0, 0, *prompts[1]]]),
        attention_mask=torch.tensor([[1] * 5, [0, 0, 0, 1, 1]]),
        output_hidden_states=True,
        return_dict_in_generate=True,
        **arguments,
    )

    for row, generation in enumerate(generations):
        for point in points:
            seen = generation.results[point.name].verdict
            assert len(seen) == len(point.layers) * (_NEW_TOKENS - 1)
            for layer, position, _, tensor in seen:
                assert tensor.shape == (engine.capabilities.hidden_size,)
                states = reference.hidden_states[position - generation.prompt_len + 1]
                if point.tensor_type is TensorType.RESIDUAL_STREAM:
                    assert torch.equal(tensor, states[layer + 1][row, -1])
                elif point.tensor_type is TensorType.FINAL_NORM:
                    assert torch.equal(tensor, states[depth][row, -1])
