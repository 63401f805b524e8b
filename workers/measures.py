"""What the engine's process adds up of all its workers, for as long as the router lives. Thread-safe.

Labels come from specifications and may be anything, so their number is bounded: beyond `SERIES_MAX` new ones are
counted under "other", as an exporter with a series per unforeseen value takes its server down.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from undercurrent.spec import ExecutionMode, ExtractionPoint
from undercurrent.workers.meters import (
    ERRORS_AT,
    HISTOGRAM_WORDS,
    POINT_WORDS,
    RECORDS_AT,
    SINK_WORDS,
    WRITE_AT,
    SharedMeter,
)

__all__ = ["OTHER", "ROUTE_AT", "SERIES_MAX", "Measures", "MeasuresReading", "PointKey"]

_logger = logging.getLogger("undercurrent.workers")

OTHER: Final = "other"
SERIES_MAX: Final = 1000
"""Points, each of one probe and mode, that have counters of their own."""
POINTS_REMEMBERED_MAX: Final = 1024
SINKS_MAX: Final = 64
SINK_EVENTS_MAX: Final = 1024
LABEL_CHARACTERS_MAX: Final = 128
ROUTE_AT: Final = POINT_WORDS


class PointKey(NamedTuple):
    """What counters of points are kept by. A request is never part of it."""

    point: str
    """The extraction point's name."""
    probe: str
    """Its `probe_type`."""
    mode: str
    """`inline` or `async`."""

    @classmethod
    def of(cls, point: ExtractionPoint) -> PointKey:
        """The key of a point of a specification, which `Measures.fit` may replace."""
        mode = ExecutionMode.ASYNC if point.execution_mode == ExecutionMode.ASYNC else ExecutionMode.INLINE
        return cls(point.name, point.probe_type, mode.value)


@dataclass(frozen=True, slots=True)
class MeasuresReading:
    """What `Measures` held at one moment; lists of words are laid out as `meters` says."""

    points: dict[PointKey, list[int]]
    sinks: dict[str, list[int]]
    sink_events: dict[tuple[str, str], int]
    """By (sink, event)."""
    restarts: dict[tuple[str, str], int]
    """By (worker, reason); reasons are "hang", "died" and "not_started"."""
    suspensions: dict[PointKey, int]
    probe_timeouts: dict[PointKey, int]
    capped_count: int
    """How often a point had to be counted under "other"."""


class Measures:
    """Owns the totals of one router: of points, of sinks, and of what became of workers."""

    def __init__(self, *, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        self._lock = threading.Lock()
        self._keys: dict[PointKey, PointKey] = {}  # guarded by _lock, as is all below
        self._points: dict[PointKey, SharedMeter] = {}
        # A point is kept beside its id, so that the id names no other while it is here.
        self._by_point: dict[int, tuple[ExtractionPoint, SharedMeter]] = {}
        self._sinks: dict[str, SharedMeter] = {}
        self._sink_events: Counter[tuple[str, str]] = Counter()
        self._restarts: Counter[tuple[str, str]] = Counter()
        self._suspensions: Counter[PointKey] = Counter()
        self._probe_timeouts: Counter[PointKey] = Counter()
        self._capped_count = 0

    # ---- points ----------------------------------------------------------------------------------------------------

    def fit(self, wanted: PointKey) -> PointKey:
        """Returns the key that a point is counted by: its own, or that of "other" where there are too many."""
        known = self._keys.get(wanted)  # a look without the lock finds what stands there for good, or nothing
        return known if known is not None else self._new_key(wanted)

    def _new_key(self, wanted: PointKey) -> PointKey:
        with self._lock:
            if len(self._keys) < self._series_max or wanted in self._keys:
                return self._keys.setdefault(wanted, PointKey(_cut(wanted.point), _cut(wanted.probe), wanted.mode))
            self._capped_count += 1
            is_first = self._capped_count == 1
        if is_first:
            _logger.warning(
                "metrics count extraction point %r, and every further new one, under %r: %d have counters of their own",
                wanted.point,
                OTHER,
                self._series_max,
            )
        return PointKey(OTHER, OTHER, wanted.mode)

    def point(self, key: PointKey) -> SharedMeter:
        """The meter of a point: the words of a `PointMeter`, then from `ROUTE_AT` on the histogram of `route()`."""
        with self._lock:
            meter = self._points.get(key)
            if meter is None:
                meter = self._points[key] = SharedMeter(ROUTE_AT + HISTOGRAM_WORDS)
            return meter

    def meter_of(self, point: ExtractionPoint) -> SharedMeter:
        """`point` of a point of a specification; the same few are asked for again and again."""
        known = self._by_point.get(id(point))
        if known is not None:
            return known[1]
        meter = self.point(self.fit(PointKey.of(point)))
        with self._lock:
            if len(self._by_point) >= POINTS_REMEMBERED_MAX:
                self._by_point = {}
            self._by_point[id(point)] = (point, meter)
        return meter

    def add_point(self, meter: SharedMeter, taken: bytes | Sequence[int]) -> None:
        """Adds what a worker measured of a point, as bytes or words; what has the wrong size is logged and left out."""
        if len(taken) == (8 * POINT_WORDS if isinstance(taken, bytes) else POINT_WORDS):
            meter.add(taken)
        elif taken:
            _log_nonsense("a point", taken, POINT_WORDS)

    def count_suspension(self, wanted: PointKey) -> None:
        """A point's workers died too often."""
        key = self.fit(wanted)
        with self._lock:
            self._suspensions[key] += 1

    def count_probe_timeout(self, wanted: PointKey) -> None:
        """A probe's call was ended, or not waited for, because it took too long."""
        key = self.fit(wanted)
        with self._lock:
            self._probe_timeouts[key] += 1

    # ---- sinks and workers -----------------------------------------------------------------------------------------

    def sink(self, name: str) -> SharedMeter:
        """The meter of a sink: the words of a `SinkMeter`."""
        with self._lock:
            name = self._fit_sink(name)
            meter = self._sinks.get(name)
            if meter is None:
                meter = self._sinks[name] = SharedMeter(SINK_WORDS)
            return meter

    def add_sink(self, name: str, taken: bytes, events: Mapping[str, int]) -> None:
        """Adds what a worker measured of a sink, and what that sink counted itself since."""
        if len(taken) == 8 * SINK_WORDS:
            self.sink(name).add(taken)
        elif taken:
            _log_nonsense(f"sink {name}", taken, SINK_WORDS)
        if events:
            self.add_sink_events(name, events)

    def add_sink_events(self, name: str, events: Mapping[str, int]) -> None:
        """Adds what a sink counted itself since it was last asked."""
        with self._lock:
            name = self._fit_sink(name)
            for event, count in events.items():
                key = (name, _cut(event))
                if key not in self._sink_events and len(self._sink_events) >= SINK_EVENTS_MAX:
                    key = (name, OTHER)
                self._sink_events[key] += max(0, count)

    def write_to(self, sink: object, write: Callable[..., object], *what: object) -> None:
        """Calls `write(*what)` of a sink of this process, timed and counted; what it raises is counted and goes on."""
        meter = self.sink(type(sink).__name__)
        started_ns = time.monotonic_ns()
        try:
            write(*what)
        except BaseException:
            meter.bump(ERRORS_AT)
            raise
        meter.note(WRITE_AT, time.monotonic_ns() - started_ns)
        meter.bump(RECORDS_AT)

    def _fit_sink(self, name: str) -> str:
        name = _cut(name)
        return name if name in self._sinks or len(self._sinks) < SINKS_MAX else OTHER

    def count_restart(self, worker: str, reason: str) -> None:
        """A worker is to be started again, because it hung, died or did not start."""
        with self._lock:
            self._restarts[worker, reason] += 1

    # ---- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> MeasuresReading:
        """Everything, of about one moment; the meters are read one after the other."""
        with self._lock:
            points, sinks = dict(self._points), dict(self._sinks)
            return MeasuresReading(
                points={key: meter.read() for key, meter in points.items()},
                sinks={name: meter.read() for name, meter in sinks.items()},
                sink_events=dict(self._sink_events),
                restarts=dict(self._restarts),
                suspensions=dict(self._suspensions),
                probe_timeouts=dict(self._probe_timeouts),
                capped_count=self._capped_count,
            )

    def renew_after_fork(self) -> None:
        """In a forked child: counting begins at zero, or parent and child would both report what the parent counted."""
        self._lock = threading.Lock()
        for meter in (*self._points.values(), *self._sinks.values()):
            meter.renew_after_fork()
        for counter in (self._sink_events, self._restarts, self._suspensions, self._probe_timeouts):
            counter.clear()
        self._capped_count = 0


def _cut(label: str) -> str:
    """A label that can be written: a lone surrogate, which a name that was made by hand may have, has no UTF-8."""
    return label[:LABEL_CHARACTERS_MAX].encode("utf-8", "replace").decode()


def _log_nonsense(what: str, taken: bytes | Sequence[int], word_count: int) -> None:
    found = len(taken) // 8 if isinstance(taken, bytes) else len(taken)
    _logger.error("a worker measured %d words for %s, expected %d", found, what, word_count)
