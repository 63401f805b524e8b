"""Values that describe a binding, its counters and its worker. Frozen; made and read in the engine's process."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from undercurrent.core import ProbeFactory, RequestContext
from undercurrent.spec import ExtractionPoint, OverflowPolicy

# The ring's four user counters: what the worker tells about a binding through shared memory.
USER_ACTIVATIONS = 0
USER_ERRORS = 1
USER_LATENCY_NS = 2
USER_SIGNALS = 3

LOADING = (1 << 64) - 1
"""What a lane's activity names while a guard imports what a probe needs; no binding has this number."""


class BindingPlan(msgspec.Struct, frozen=True):
    """Everything the supervisor needs to serve one async point of one request."""

    request_id: str
    point: ExtractionPoint
    factory: ProbeFactory
    context: RequestContext
    queue_depth: int
    overflow_policy: OverflowPolicy
    block_timeout_s: float | None = None
    """Longest wait of one `route()` under `block`; None waits while the worker lives or is being restarted."""
    probe_timeout_s: float = 30.0
    """Longest single call of the probe before its worker is ended."""
    workers: int = 1
    """Over how many processes the bindings of this point are spread."""
    is_bounded: bool = False
    """Whether an inline caller waits for each answer, so that a guard serves the point."""


class BindingStatistics(msgspec.Struct, frozen=True):
    """Counters of one binding; `produced = consumed + dropped + waiting + in_hand + lost` at rest."""

    produced: int = 0
    consumed: int = 0
    dropped: int = 0
    waiting: int = 0
    in_hand: int = 0
    lost: int = 0
    activations: int = 0
    """Records that reached the probe (its errors included)."""
    errors: int = 0
    latency_s_total: float = 0.0
    """Time spent in the probe's code."""
    restarts: int = 0
    signals: int = 0
    dropped_oldest: int = 0
    """Overwritten unread; with the six below it sums up to `dropped`."""
    dropped_newest: int = 0
    no_memory: int = 0
    unsupported: int = 0
    too_large: int = 0
    block_timeout: int = 0
    late: int = 0
    """Came when the ring was closed already."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as the supervisor knows it."""

    name: str
    state: str
    """`starting`, `running`, `backing_off`, `stopped`."""
    pid: int | None
    bindings: int
    deaths: int
    points: tuple[str, ...]
