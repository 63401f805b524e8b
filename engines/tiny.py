"""Tiny models with random weights, built from their configuration: for tests, and for a demo without a download."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from undercurrent.errors import ProbingValueError, did_you_mean, one_of

__all__ = ["TINY_ARCHITECTURES", "build_byte_tokenizer", "build_tiny_model", "readable_generation"]

_PAD, _BEGIN, _END = "<pad>", "<bos>", "<eos>"
_SPECIAL = (_PAD, _BEGIN, _END)
_VOCABULARY_SIZE = len(_SPECIAL) + 256

_LLAMA_LIKE = {
    "vocab_size": _VOCABULARY_SIZE,
    "max_position_embeddings": 2048,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # With shared embeddings, random weights repeat the last token for ever.
    "tie_word_embeddings": False,
}

TINY_ARCHITECTURES = ("llama", "gpt2", "gemma3_text", "qwen2", "qwen3")
"""The `model_type` of each architecture that `build_tiny_model` knows."""


def build_tiny_model(
    architecture: str = "llama", *, layer_count: int = 4, hidden_size: int = 64, seed: int = 0
) -> tuple[Any, Any]:
    """A model with random weights in evaluation mode, and a tokenizer of single bytes.

    Equal arguments give equal weights. The end token is never chosen by greedy decoding, so that a generation runs to
    its limit.

    Raises:
        ProbingValueError: an unknown architecture.
    """
    if architecture not in TINY_ARCHITECTURES:
        raise ProbingValueError(
            f"`architecture` must be {one_of(TINY_ARCHITECTURES)}, got {architecture!r}"
            + did_you_mean(architecture, TINY_ARCHITECTURES)
        )
    config = AutoConfig.for_model(architecture, **_settings(architecture, layer_count, hidden_size))
    # The generator of torch is the caller's; what is drawn here must not move it.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        models: Any = AutoModelForCausalLM
        model = models.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim >= 2:
                    # The usual initial weights are so small that every layer passes its input on unchanged.
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
    model.generation_config.eos_token_id = None
    return model, build_byte_tokenizer()


def build_byte_tokenizer() -> Any:
    """A tokenizer whose tokens are the 256 bytes, with a begin token before each text."""
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *sorted(ByteLevel.alphabet())])}
    tokenizer = Tokenizer(BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.post_processor = TemplateProcessing(single=f"{_BEGIN} $A", special_tokens=[(_BEGIN, vocabulary[_BEGIN])])
    wrap: Any = PreTrainedTokenizerFast
    return wrap(tokenizer_object=tokenizer, pad_token=_PAD, bos_token=_BEGIN, eos_token=_END, padding_side="left")


def readable_generation(tokenizer: Any) -> dict[str, Any]:
    """Arguments of `generate` with which random weights, which choose any byte, give letters that can be printed."""
    letters = {tokenizer.convert_tokens_to_ids(letter) for letter in ascii_lowercase}
    others = [token for token in range(len(tokenizer)) if token not in letters]
    return {"suppress_tokens": others, "no_repeat_ngram_size": 3}


def _settings(architecture: str, layer_count: int, hidden_size: int) -> dict[str, Any]:
    if architecture == "gpt2":
        return {
            "vocab_size": _VOCABULARY_SIZE,
            "n_positions": 2048,
            "n_embd": hidden_size,
            "n_layer": layer_count,
            "n_head": 4,
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
    settings: dict[str, Any] = {
        **_LLAMA_LIKE,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": layer_count,
        "num_attention_heads": 4,
    }
    if architecture == "gemma3_text":
        kinds = ["sliding_attention", "full_attention"]
        settings |= {
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "layer_types": [kinds[index % 2] for index in range(layer_count)],
        }
    return settings
