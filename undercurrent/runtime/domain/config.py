"""Settings of a run."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from undercurrent.errors import did_you_mean, one_of
from undercurrent.runtime.errors import RuntimeTypeError, RuntimeValueError

__all__ = ["DedupConfig", "DedupMode", "GenerationConfig"]

DedupMode = Literal["auto", "on", "off"]
_MODES = ("auto", "on", "off")
_KINDS: dict[str, tuple[type, ...]] = {
    "max_new_tokens": (int,),
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
    "seed": (int, type(None)),
    "stop": (tuple, list),
    "template": (str, type(None)),
}


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides the text of a generation, besides model and prompt. Every field is part of a coalition's key."""

    max_new_tokens: int = 128
    """Longest generation, tokens."""
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 1
    """How many of the likeliest tokens are sampled from."""
    top_p: float = 1.0
    """Sampling stops at this share of the probability."""
    seed: int | None = None
    """Seed of the sampling; None leaves it to the model."""
    stop: tuple[str, ...] = ()
    """A generation ends before the first of these strings."""
    template: str | None = None
    """Chat template, where it is not the model's own."""

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or isinstance(value, bool):
                expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                raise RuntimeTypeError(f"`{name}` must be {expected}, got {value!r}")
        # A list would make the settings unhashable, and each key would be computed anew.
        msgspec.structs.force_setattr(self, "stop", tuple(self.stop))
        if not all(isinstance(text, str) for text in self.stop):
            raise RuntimeTypeError(f"`stop` must hold strings, got {self.stop!r}")
        if self.max_new_tokens < 1:
            raise RuntimeValueError(f"`max_new_tokens` must be >= 1, got {self.max_new_tokens!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RuntimeValueError(f"`temperature` must be a finite number >= 0, got {self.temperature!r}")
        if self.top_k < 0:
            raise RuntimeValueError(f"`top_k` must be >= 0, got {self.top_k!r}")
        if not 0 < self.top_p <= 1:
            raise RuntimeValueError(f"`top_p` must be above 0 and at most 1, got {self.top_p!r}")


class DedupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether equal coalitions are generated once."""

    enabled: DedupMode = "auto"
    """`auto` is on at temperature 0."""

    def __post_init__(self) -> None:
        if self.enabled not in _MODES:
            raise RuntimeValueError(
                f"`enabled` must be {one_of(_MODES)}, got {self.enabled!r}{did_you_mean(str(self.enabled), _MODES)}"
            )
