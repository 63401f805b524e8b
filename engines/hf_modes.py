"""Which ways of generating keep every position right, and which are refused, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undercurrent.engines.base import EngineLimitationError
from undercurrent.engines.capture import SequenceShape, progression

__all__ = ["GenerationMode", "check_mode"]

_INPUT_ARGUMENTS = (
    "inputs",
    "input_ids",
    "attention_mask",
    "position_ids",
    "inputs_embeds",
    "decoder_input_ids",
    "encoder_outputs",
)
_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")
_DECODING_LOOPS = ("penalty_alpha", "dola_layers", "constraints", "force_words_ids", "custom_generate")


@dataclass(frozen=True, slots=True)
class GenerationMode:
    """The arguments of one generate call, as far as capture depends on them."""

    rows_per_prompt: int
    """Rows of the batch that each prompt takes: beams, or sequences per prompt."""
    sequences_per_prompt: int
    end_tokens: frozenset[int]


def check_mode(model: Any, arguments: Mapping[str, Any], sequences: Sequence[SequenceShape]) -> GenerationMode:
    """Reads the arguments of a call as `generate` will, and refuses what would give wrong positions.

    Raises:
        EngineLimitationError: with every reason.
    """
    config = arguments.get("generation_config") or model.generation_config
    defaults = model.generation_config

    def effective(name: str) -> Any:
        if name in arguments:
            return arguments[name]
        value = getattr(config, name, None)
        return getattr(defaults, name, None) if value is None else value

    beams = effective("num_beams") or 1
    returned = effective("num_return_sequences") or 1
    has_drafts = bool(effective("prompt_lookup_num_tokens")) or arguments.get("assistant_model") is not None
    given = [name for name in _INPUT_ARGUMENTS if name in arguments]
    problems = [f"`{name}`: this engine builds it from the prompts it is given" for name in given]
    if has_drafts and len(sequences) > 1:
        problems.append(f"drafted tokens are verified for one prompt at a time, got {len(sequences)} prompts")
    if any(sequence.points for sequence in sequences):
        problems += _capture_problems(model, arguments, effective)
        if max(beams, returned) > 1:
            problems += _shared_prompt_problems(sequences)
    if problems:
        raise EngineLimitationError("; ".join(problems))
    end = effective("eos_token_id")
    return GenerationMode(
        rows_per_prompt=max(beams, returned),
        sequences_per_prompt=returned,
        end_tokens=frozenset([] if end is None else [end] if isinstance(end, int) else (int(token) for token in end)),
    )


def _capture_problems(model: Any, arguments: Mapping[str, Any], effective: Any) -> list[str]:
    problems = [
        f"`{name}`: tokens that are in it already are not computed again, so their activations cannot be read"
        for name in _CACHE_ARGUMENTS
        if arguments.get(name) is not None
    ]
    problems += [
        f"`{name}` runs a decoding loop of its own, in which rows cannot be told apart; use greedy decoding or sampling"
        for name in _DECODING_LOOPS
        if effective(name)
    ]
    if (effective("num_beam_groups") or 1) > 1:
        problems.append("`num_beam_groups` runs a decoding loop of its own; use `num_beams` alone")
    if effective("guidance_scale") not in (None, 1, 1.0):
        problems.append("`guidance_scale` runs the model a second time per token, on another prompt")
    for name in ("assistant_early_exit", "use_mtp"):
        if effective(name):
            problems.append(f"`{name}` drafts with the layers that are read; use `prompt_lookup_num_tokens`")
    if effective("cache_implementation") == "paged":
        problems.append("`cache_implementation='paged'` packs the tokens of all requests; use the default cache")
    if effective("token_healing"):
        problems.append("`token_healing` changes the prompt after its positions were settled")
    if arguments.get("synced_gpus"):
        problems.append("`synced_gpus` runs forward passes for no token of this call")
    assistant = arguments.get("assistant_model")
    if assistant is not None and _shares_modules(model, assistant):
        problems.append("`assistant_model` shares layers with the model that is read; use a separate one")
    return problems


def _shared_prompt_problems(sequences: Sequence[SequenceShape]) -> list[str]:
    """Beams and sequences of one prompt share its positions, and no more: a record has no place for a branch."""
    return [
        f"point {point.name!r} reads generated tokens, and with `num_beams` or `num_return_sequences` above 1 a"
        " position has several: read 'prompt[…]', or generate each sequence as a request of its own"
        for point in dict.fromkeys(point for sequence in sequences for point in sequence.points)
        if any(_reads_generated(sequence, point) for sequence in sequences if point in sequence.points)
    ]


def _reads_generated(sequence: SequenceShape, point: Any) -> bool:
    start, stop, _ = progression(point, sequence.prompt_len)
    return stop > max(start, sequence.prompt_len)


def _shares_modules(model: Any, assistant: Any) -> bool:
    mine = {id(parameter) for parameter in model.parameters()}
    return any(id(parameter) in mine for parameter in assistant.parameters())
