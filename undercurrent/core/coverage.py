"""`Coverage`: how much of what was routed to a probe its verdict rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from undercurrent.errors import ProbingValueError

__all__ = ["Coverage", "CoverageReason"]


class CoverageReason(StrEnum):
    """Why a result does not rest on everything; the order here is the order they are reported in."""

    DROPPED = "dropped"
    BLOCK_TIMEOUT = "block_timeout"
    DRAIN_TIMEOUT = "drain_timeout"
    NO_MEMORY = "no_memory"
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too_large"
    WORKER_DIED = "worker_died"
    NEIGHBOUR = "neighbour"
    PROBE_TIMEOUT = "probe_timeout"
    PROBE_ERROR = "probe_error"
    START_ERROR = "start_error"
    PRODUCER_GONE = "producer_gone"
    DAEMON_RESTARTED = "daemon_restarted"
    UNSEEN = "unseen"
    SAMPLED = "sampled"


_DROP_REASONS = frozenset(
    {
        CoverageReason.DROPPED,
        CoverageReason.BLOCK_TIMEOUT,
        CoverageReason.NO_MEMORY,
        CoverageReason.UNSUPPORTED,
        CoverageReason.TOO_LARGE,
    }
)
_RESTART_REASONS = frozenset(
    {
        CoverageReason.WORKER_DIED,
        CoverageReason.NEIGHBOUR,
        CoverageReason.PROBE_TIMEOUT,
        CoverageReason.DAEMON_RESTARTED,
    }
)
_ORDER = {reason: place for place, reason in enumerate(CoverageReason)}


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a result covers. Invariant: it is complete if and only if it has no reasons.

    Build it with `Coverage.settle`, which does not let a count pass without its reason.
    """

    routed: int = 0
    """Records that reached the point, dropped ones included."""
    seen: int = 0
    """Records a probe was called with."""
    dropped: int = 0
    """Records that never reached a worker, for whatever reason."""
    errors: int = 0
    """Records a probe was called with and raised; part of `seen`."""
    lost: int = 0
    """Records that were in the hand of a worker when it died."""
    restarts: int = 0
    """How often a new probe took over from a dead worker's."""
    reasons: tuple[CoverageReason, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the result rests on everything that was routed."""
        return not self.reasons

    @classmethod
    def settle(
        cls,
        *,
        routed: int,
        seen: int,
        dropped: int = 0,
        errors: int = 0,
        lost: int = 0,
        restarts: int = 0,
        reasons: Iterable[CoverageReason | str] = (),
    ) -> Coverage:
        """The coverage of these counts: `reasons`, and one for each count that has none yet.

        >>> Coverage.settle(routed=10, seen=8, dropped=2).to_dict()["reasons"]
        ['dropped']

        Raises:
            ProbingValueError: a count is negative.
        """
        counts = {
            "routed": routed,
            "seen": seen,
            "dropped": dropped,
            "errors": errors,
            "lost": lost,
            "restarts": restarts,
        }
        for name, count in counts.items():
            if count < 0:
                raise ProbingValueError(f"`{name}` must be >= 0, got {count!r}")
        found = {CoverageReason(reason) for reason in reasons}
        if dropped and not found & _DROP_REASONS:
            found.add(CoverageReason.DROPPED)
        if (lost or restarts) and not found & _RESTART_REASONS:
            found.add(CoverageReason.WORKER_DIED)
        if errors:
            found.add(CoverageReason.PROBE_ERROR)
        if seen + dropped + lost < routed:
            found.add(CoverageReason.UNSEEN)
        return cls(**counts, reasons=tuple(sorted(found, key=_ORDER.__getitem__)))

    def to_dict(self) -> dict[str, Any]:
        """The form that stands in `ProbeResult.metadata["coverage"]` and in sink records."""
        return {
            "routed": self.routed,
            "seen": self.seen,
            "dropped": self.dropped,
            "errors": self.errors,
            "lost": self.lost,
            "restarts": self.restarts,
            "complete": self.complete,
            "reasons": [reason.value for reason in self.reasons],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Coverage:
        """The coverage that `to_dict` described."""
        return cls(
            routed=data["routed"],
            seen=data["seen"],
            dropped=data["dropped"],
            errors=data["errors"],
            lost=data["lost"],
            restarts=data["restarts"],
            reasons=tuple(CoverageReason(reason) for reason in data["reasons"]),
        )
