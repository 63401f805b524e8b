"""The thread that feeds a metrics sink from the counters in shared memory."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from undercurrent.router.metrics import MetricsSink
from undercurrent.workers import BindingStatistics

__all__ = ["MetricsRelay"]

_logger = logging.getLogger("undercurrent.router")

_LOOK_EVERY_S = 0.5
_ENDED_COUNT_MAX = 65_536
# A sink written in Python holds the GIL while it runs; a pause after this many calls lets the engine's thread in.
_CALLS_PER_PAUSE = 512
_PAUSE_S = 0.001
_NOTHING = BindingStatistics()

BindingKey = tuple[str, str]
Look = tuple[BindingKey, BindingStatistics]


class MetricsRelay:
    """Owns one daemon thread, `undercurrent-metrics`, from `attach` of a sink to its detachment or `close`.

    `read_live` returns the counters of all live bindings; bindings that ended in between are handed in by `note_ended`.
    """

    def __init__(self, read_live: Callable[[], Iterable[Look]]) -> None:
        self._read_live = read_live
        self._condition = threading.Condition()
        self._sink: MetricsSink | None = None  # guarded by _condition, as is all below
        self._ended: deque[Look] = deque()
        self._thread: threading.Thread | None = None
        self._asked_count = 0
        self._answered_count = 0
        self._is_closed = False
        self._is_overflow_logged = False
        self._reported: dict[BindingKey, BindingStatistics] = {}  # the thread's own: what the sink was told
        self._call_count = 0  # the thread's own
        self._failing: set[str] = set()  # the thread's own: methods whose error was logged

    def attach(self, sink: MetricsSink | None) -> None:
        """Replaces the sink; None detaches it and lets the thread end."""
        with self._condition:
            self._sink = sink
            if sink is not None and self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="undercurrent-metrics", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def note_ended(self, looks: Iterable[Look]) -> None:
        """Takes the last counters of bindings that ended; never waits for the sink."""
        with self._condition:
            if self._sink is None:
                return
            self._ended.extend(looks)
            while len(self._ended) > _ENDED_COUNT_MAX:
                self._ended.popleft()
                if not self._is_overflow_logged:
                    self._is_overflow_logged = True
                    _logger.error("the metrics sink is too slow: counters of ended bindings are left out (said once)")

    def flush(self, deadline: float) -> bool:
        """Waits until the sink was told all counters of now; False when `deadline` (monotonic) passed first."""
        with self._condition:
            if self._sink is None or self._thread is None:
                return True
            self._asked_count += 1
            wanted = self._asked_count
            self._condition.notify_all()
            return self._condition.wait_for(
                lambda: self._answered_count >= wanted or self._thread is None,
                timeout=max(0.0, deadline - time.monotonic()),
            )

    def close(self) -> None:
        """Lets the thread end; waits for nothing. Idempotent."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(self._is_called, timeout=_LOOK_EVERY_S)
                if self._is_closed or self._sink is None:
                    self._thread = None
                    self._reported.clear()
                    self._ended.clear()
                    self._condition.notify_all()
                    return
                sink, asked_count = self._sink, self._asked_count
                ended = list(self._ended)
                self._ended.clear()
            for key, statistics in ended:
                self._report(sink, key, statistics)
                self._reported.pop(key, None)
            for key, statistics in self._read_live():
                self._report(sink, key, statistics)
            with self._condition:
                self._answered_count = max(self._answered_count, asked_count)
                self._condition.notify_all()

    def _is_called(self) -> bool:
        return self._is_closed or self._sink is None or self._asked_count > self._answered_count

    def _report(self, sink: MetricsSink, key: BindingKey, now: BindingStatistics) -> None:
        is_new = key not in self._reported
        before = self._reported.get(key, _NOTHING)
        self._reported[key] = now
        activation_count = now.activations - before.activations
        if activation_count > 0:
            mean_s = max(0.0, now.latency_s_total - before.latency_s_total) / activation_count
            self._repeat(activation_count, "record_activation", sink.record_activation, *key, mean_s)
        self._repeat(now.errors - before.errors, "record_probe_error", sink.record_probe_error, *key)
        self._repeat(now.dropped - before.dropped, "record_drop", sink.record_drop, *key)
        if is_new or now.waiting != before.waiting:
            self._repeat(1, "record_queue_depth", sink.record_queue_depth, *key, now.waiting)

    def _repeat(self, count: int, name: str, call: Callable[..., None], *args: object) -> None:
        for _ in range(count):
            try:
                call(*args)
            except Exception:
                if name not in self._failing:
                    self._failing.add(name)
                    _logger.exception("the metrics sink's `%s` raised; further errors of it are not logged", name)
            self._call_count += 1
            if self._call_count % _CALLS_PER_PAUSE == 0:
                time.sleep(_PAUSE_S)
