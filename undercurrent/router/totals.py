"""What a router has counted since it was made: frozen values that outlive requests. See `docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from undercurrent.router.breakers import BreakerStatus
from undercurrent.workers.measures import PointKey
from undercurrent.workers.meters import BUCKET_BOUNDS_NS

__all__ = ["DROP_REASONS", "LatencyHistogram", "PointMetrics", "RouterMetrics", "SinkMetrics", "WorkerMetrics"]

DROP_REASONS = (
    "drop_oldest",
    "drop_newest",
    "block_timeout",
    "no_memory",
    "unsupported",
    "too_large",
    "unread",
    "late",
    "unasked",
    "forked",
)
"""Why a probe never saw a record: overwritten; refused by a full queue at once, or after waiting; no memory for it; a
payload that cannot cross; one that is too long; still waiting when its request's deadline passed; routed when its
request was ending; answered by the policy of a bounded inline point with an open breaker; routed in a forked child."""


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Durations by bucket. All histograms have the same buckets, so that they can be added.

    >>> histogram = LatencyHistogram((0, 98, 2, *[0] * 23), sum_s=0.000204)
    >>> histogram.count, histogram.quantile_s(0.5) <= 2e-6, histogram.quantile_s(0.999) > 2e-6
    (100, True, True)
    """

    buckets: tuple[int, ...] = (0,) * (len(BUCKET_BOUNDS_NS) + 1)
    """How many lie in each bucket: at most `bounds_s()[i]` and above the bound before; the last has no end."""
    sum_s: float = 0.0

    @staticmethod
    def bounds_s() -> tuple[float, ...]:
        """The upper ends of the buckets in seconds: 1, 2 and 5 of each decade from 1e-6 to 100."""
        return tuple(bound / 1e9 for bound in BUCKET_BOUNDS_NS)

    @classmethod
    def of_words(cls, words: Sequence[int], place: int) -> LatencyHistogram:
        """The histogram that begins at `place` of a meter's words."""
        end = place + len(BUCKET_BOUNDS_NS) + 1
        return cls(tuple(words[place:end]), words[end] / 1e9)

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self.buckets)

    @property
    def mean_s(self) -> float | None:
        """The mean; None of nothing."""
        return self.sum_s / self.count if self.count else None

    def quantile_s(self, quantile: float) -> float | None:
        """The duration below which this part of all lies, from 0 to 1; None of nothing.

        It is interpolated within a bucket, whose ends are a factor of 2 or 2.5 apart; beyond the last bound, the bound.
        """
        rank = quantile * self.count
        lower_s, below = 0.0, 0
        for count, upper_s in zip(self.buckets, self.bounds_s(), strict=False):
            if count and below + count >= rank:
                return lower_s + (upper_s - lower_s) * (rank - below) / count
            below += count
            lower_s = upper_s
        return lower_s if self.count else None


@dataclass(frozen=True, slots=True)
class PointMetrics:
    """What one extraction point has counted over all its requests, those that live included.

    `routed = consumed + dropped_total + lost + waiting + in_hand`, at every moment.
    """

    key: PointKey
    bindings: int = 0
    """Requests that have this point now."""
    routed: int = 0
    """Records that `route()` took for this point."""
    consumed: int = 0
    """Records whose handling has ended; of an inline point, those its probe was called with."""
    seen: int = 0
    """Records a probe was called with; fewer than `consumed` where a probe did not start."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Records no probe saw, by one of `DROP_REASONS`."""
    lost: int = 0
    """Records that were in the hand of a worker when it died."""
    waiting: int = 0
    """Records in queues now."""
    in_hand: int = 0
    """Records that workers have taken and not yet handled."""
    queue_depth: int = 0
    """How many records may wait in all queues of now together."""
    errors: int = 0
    """Records at which a probe raised; part of `seen`."""
    signals: Mapping[str, int] = field(default_factory=dict)
    """Signals by action; `other` is what a probe returned that is no `ProbeSignal`."""
    results: Mapping[str, int] = field(default_factory=dict)
    """Results of ended requests: `complete` ones, those that are incomplete only because the point is `sampled`, and
    `partial` ones."""
    restarts: int = 0
    """How often a new probe took over in the middle of a request because a worker died."""
    timeouts: int = 0
    """Probe calls that were ended, with their worker, because they took longer than `probe_timeout_s`."""
    suspensions: int = 0
    """How often the point was suspended because its workers died too often."""
    route: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time of `route()`, of a sample of calls."""
    queue_wait: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From `route()` to the probe, per record; one record of each batch is measured for all of it."""
    probe_call: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time in the probe per record; a batch's time is shared out evenly. Empty for inline points: see `route`."""

    @property
    def dropped_total(self) -> int:
        """Records no probe saw, for whatever reason but a worker's death."""
        return sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class SinkMetrics:
    """What the sinks of one class have done, in this process and in its workers."""

    sink: str
    """The class's name."""
    records: int
    """Signals and results that the sink took."""
    errors: int
    """Signals and results at which it raised."""
    events: Mapping[str, int]
    """What it counted itself, such as `lost` or `retried`."""
    waiting: int | None
    """Records it holds now; None where it does not say."""
    write: LatencyHistogram
    """Time of one write: of one record, or in a worker of all that was held back."""


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """One worker as it is now."""

    worker: str
    state: str
    """`starting`, `running`, `backing_off` or `stopped`."""
    bindings: int


@dataclass(frozen=True, slots=True)
class RouterMetrics:
    """Everything one router has counted since it was made, at one moment. Nothing in it names a request."""

    requests_begun: int
    requests_ended: int
    """By `end_request`."""
    requests_abandoned: int
    """Cut off by `shutdown`, or by the cancellation of the task that registered them."""
    points: tuple[PointMetrics, ...]
    sinks: tuple[SinkMetrics, ...]
    workers: tuple[WorkerMetrics, ...]
    worker_restarts: Mapping[tuple[str, str], int]
    """By (worker, reason): `hang`, `died` or `not_started`."""
    breakers: Mapping[str, BreakerStatus]
    """What `Router.breakers()` says, by point name."""
    memory_bytes: int
    """Shared memory that the rings take now."""
    memory_max_bytes: int
    """How much they may take; 0 before the first async point."""
    capped_series: int
    """How often a point had to be counted as "other", because there are too many different ones."""

    @property
    def requests_live(self) -> int:
        """Requests that can be routed to, or are ending."""
        return self.requests_begun - self.requests_ended - self.requests_abandoned

    @property
    def routed(self) -> int:
        """Records that `route()` took, for all points."""
        return sum(point.routed for point in self.points)

    @property
    def dropped(self) -> int:
        """Records no probe saw, of all points."""
        return sum(point.dropped_total for point in self.points)

    @property
    def aborts(self) -> int:
        """Signals that asked for an abort, of all points."""
        return sum(point.signals.get("abort", 0) for point in self.points)

    @property
    def timeouts(self) -> int:
        """Probe calls that took too long: ended with their worker, or not waited for by a bounded point."""
        ended = sum(point.timeouts for point in self.points)
        return ended + sum(breaker.counts.timeouts for breaker in self.breakers.values())

    def point(self, name: str) -> PointMetrics | None:
        """The point of this name that has routed most; None where there is none."""
        named = [point for point in self.points if point.key.point == name]
        return max(named, key=lambda point: point.routed, default=None)
