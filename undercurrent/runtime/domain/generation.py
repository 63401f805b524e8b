"""What a model answered to one coalition."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["GenerationRecord", "ProbeValue"]


class ProbeValue(msgspec.Struct, frozen=True):
    """What one probe, or one other value function, said about a generation."""

    value: float
    """The coalition's value."""
    tokens: tuple[float, ...] = ()
    """One number per generated token, where there is one."""


class GenerationRecord(msgspec.Struct, frozen=True):
    """A generation with what came with its text."""

    text: str
    logprobs: tuple[float, ...] | None = None
    """Natural log-probability of each generated token; None where the model gives none."""
    values: Mapping[str, ProbeValue] | None = None
    """By name, stored beside the text; None where nothing was measured."""
