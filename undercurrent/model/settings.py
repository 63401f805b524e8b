"""The arguments of one `generate` call: checked, in the engine's words, and whether prompts can share a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undercurrent.errors import ProbingTypeError, ProbingValueError

__all__ = ["DEFAULT_MAX_NEW_TOKENS", "GenerationSettings", "StopCutter", "check_prompts", "read_settings"]

DEFAULT_MAX_NEW_TOKENS = 32
"""Tokens generated where the call does not say."""

# Each of these works on one prompt only, or keeps state that prompts beside it would disturb.
_ONE_PROMPT_ARGUMENTS = (
    "assistant_model",
    "logits_processor",
    "prefix_allowed_tokens_fn",
    "prompt_lookup_num_tokens",
    "stopping_criteria",
    "streamer",
)


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """What one call of `ProbedModel.generate` asks for."""

    arguments: Mapping[str, Any]
    """For the engine."""
    stop: tuple[str, ...] = ()
    """Strings at which the text is cut."""
    can_share_batch: bool = True
    """Whether several prompts may be generated together without changing what each gives."""


def read_settings(
    *,
    max_new_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    stop: str | Sequence[str] | None,
    more: Mapping[str, Any],
    is_transformers: bool,
) -> GenerationSettings:
    """The settings of a call; None means that it was not given.

    For transformers, a `temperature` above 0 samples and 0 is greedy, where `top_p` says nothing; with `seed` each
    prompt is drawn alone, so that it gives what it gives in a call of its own. Other engines get what was given.

    Raises:
        ProbingValueError: a value is out of range.
        ProbingTypeError: a value is of the wrong type.
    """
    stops = _checked_stops(stop)
    _check_numbers(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    named = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    arguments = {**more, **{name: value for name, value in named.items() if value is not None}}
    if not is_transformers:
        return GenerationSettings(arguments | ({"stop": stop} if stops else {}), stops)
    if stops:
        arguments["stop_strings"] = list(stops)
    if not {"max_new_tokens", "max_length", "generation_config"} & set(arguments):
        arguments["max_new_tokens"] = DEFAULT_MAX_NEW_TOKENS
    if temperature == 0:
        arguments["do_sample"] = False
        del arguments["temperature"]
        arguments.pop("top_p", None)
    elif temperature is not None:
        arguments.setdefault("do_sample", True)
    is_greedy = arguments.get("do_sample") is False
    is_alone = any(arguments.get(name) is not None for name in _ONE_PROMPT_ARGUMENTS)
    return GenerationSettings(arguments, stops, can_share_batch=not is_alone and (seed is None or is_greedy))


def check_prompts(prompts: Sequence[object]) -> None:
    """Refuses what is no text.

    Raises:
        ProbingTypeError: a prompt is no string.
    """
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ProbingTypeError(f"a prompt must be a string, or a list of strings for `generate`, got {prompt!r}")


class StopCutter:
    """Cuts a text that comes in pieces before its first stop string; holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self._is_cut = False

    def push(self, text: str) -> str:
        """The part of the text so far that is not yet given and belongs to no stop string."""
        if self._is_cut:
            return ""
        self._held += text
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places:
            self._is_cut = True
            return self._take(min(places))
        return self._take(len(self._held) - self._doubtful_length())

    def finish(self) -> str:
        """What was held back, at the end of the text."""
        return "" if self._is_cut else self._take(len(self._held))

    def _take(self, length: int) -> str:
        given, self._held = self._held[:length], self._held[length:]
        return given

    def _doubtful_length(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max(map(len, self._stops), default=0) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0


def _checked_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    for text in stops:
        if not isinstance(text, str):
            raise ProbingTypeError(f"`stop` must be a string or a list of strings, got {text!r}")
        if not text:
            raise ProbingValueError("`stop` must hold no empty string, as every text begins with it")
    return stops


def _check_numbers(*, max_new_tokens: object, temperature: object, seed: object) -> None:
    for name, value in (("max_new_tokens", max_new_tokens), ("seed", seed)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ProbingTypeError(f"`{name}` must be an integer, got {value!r}")
    if isinstance(max_new_tokens, int) and max_new_tokens < 1:
        raise ProbingValueError(f"`max_new_tokens` must be >= 1, got {max_new_tokens!r}")
    if temperature is None:
        return
    if not isinstance(temperature, int | float) or isinstance(temperature, bool):
        raise ProbingTypeError(f"`temperature` must be a number, got {temperature!r}")
    if not temperature >= 0:
        raise ProbingValueError(f"`temperature` must be >= 0, got {temperature!r}; 0 is greedy decoding")
