"""What a probe says about one record, what it says at the end, and what it is told at the start."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from undercurrent.errors import ProbingValueError, did_you_mean, one_of

# ruff: noqa: UP042 (the published words: `str(member)` names the member)

__all__ = ["ProbeAction", "ProbeResult", "ProbeSignal", "RequestContext"]


class ProbeAction(str, Enum):
    """What a probe asks for."""

    CONTINUE = "continue"
    ABORT = "abort"
    FLAG = "flag"


@dataclass(slots=True, weakref_slot=True)
class ProbeSignal:
    """What a probe says about one record.

    `action` may be given as its word; it is a `ProbeAction` afterwards.

    Raises:
        ProbingValueError: `action` is no action.
    """

    action: ProbeAction = ProbeAction.CONTINUE
    metadata: dict[str, Any] = field(default_factory=dict)
    confidence: float | None = None
    timestamp: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    def __post_init__(self) -> None:
        if self.action.__class__ is not ProbeAction:
            self.action = _read_action(self.action)


@dataclass(slots=True, weakref_slot=True)
class ProbeResult:
    """What a probe says when its request ends."""

    request_id: str
    extraction_point_name: str
    verdict: Any
    signal_history: list[ProbeSignal] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    """`metadata["coverage"]` is filled in by the router: see `Coverage.to_dict`."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class RequestContext:
    """What a probe is told about its request."""

    request_id: str
    prompt_metadata: dict[str, Any]
    """Engines put `model`, `prompt` and `prompt_len` here."""
    extraction_point_config: Any


def _read_action(action: object) -> ProbeAction:
    try:
        return ProbeAction(action)
    except ValueError:
        words = [member.value for member in ProbeAction]
        raise ProbingValueError(
            f"`ProbeSignal.action` must be {one_of(words)}, got {action!r}{did_you_mean(str(action), words)}"
        ) from None
