"""Everything a router counts: who is told, what is kept, and how it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from undercurrent.core import ProbeResult
from undercurrent.router.breakers import BreakerStatus
from undercurrent.router.ledger import Ledger, PointSums
from undercurrent.router.metrics import MetricsSink
from undercurrent.router.metrics_relay import Look, MetricsRelay
from undercurrent.router.requests import LiveRequest, RequestTable
from undercurrent.router.route_timing import RouteTimer
from undercurrent.router.totals import (
    DROP_REASONS,
    LatencyHistogram,
    PointMetrics,
    RouterMetrics,
    SinkMetrics,
    WorkerMetrics,
)
from undercurrent.spec import ExecutionMode
from undercurrent.workers.measures import ROUTE_AT, Measures, MeasuresReading, PointKey
from undercurrent.workers.meters import ACTIONS, CALL_AT, ERRORS_AT, HISTOGRAM_WORDS, RECORDS_AT, WAIT_AT, WRITE_AT

if TYPE_CHECKING:
    from undercurrent.router.supervision import Supervision

__all__ = ["Accounts"]

_NOTHING: Final = PointSums()
_NO_WORDS: Final = [0] * (ROUTE_AT + HISTOGRAM_WORDS)


class Accounts:
    """Owns the ledger, the stop-watch of routes and the relay to the metrics sink. Thread-safe."""

    def __init__(
        self, table: RequestTable, supervision: Supervision, measures: Measures, sink: MetricsSink | None
    ) -> None:
        self._table = table
        self._supervision = supervision
        self._measures = measures
        self._sink = sink
        self._ledger = Ledger(measures)
        self._timer = RouteTimer(table, lambda point: self._ledger.account(point).meter)
        self._relay = MetricsRelay(self._read_live)

    # ---- the life of a request -------------------------------------------------------------------------------------

    def publish(self, request: LiveRequest) -> None:
        """Makes a reserved request routable, and counts it.

        Raises:
            RouterError: the table was closed meanwhile; the request is counted as abandoned.
        """
        self._ledger.begin(request)
        try:
            self._table.publish(request, self._timer.first_routes(request))
        except BaseException:
            self._ledger.abandon(request)
            raise

    def end(self, request: LiveRequest, results: Mapping[str, ProbeResult]) -> None:
        """Counts a request that was ended; without results where its caller was interrupted."""
        self._ledger.end(request, results)
        if self._sink is not None:
            self._relay.note_ended(_looks([request]))

    def abandon(self, request: LiveRequest) -> None:
        """Counts a request that nobody will end."""
        self._ledger.abandon(request)

    # ---- the metrics sink ------------------------------------------------------------------------------------------

    def attach(self, sink: MetricsSink | None) -> None:
        """Replaces the metrics sink; None detaches it."""
        self._sink = sink
        if sink is None or self._supervision.supervisor is not None:
            self._relay.attach(sink)

    def start_relay(self) -> None:
        """There are async points from now on, which is what a metrics sink is told of."""
        self._relay.attach(self._sink)

    def flush(self, deadline: float) -> bool:
        """Waits until the metrics sink was told all counters of now; False when `deadline` (monotonic) passed first."""
        return self._relay.flush(deadline)

    def close(self, requests: Iterable[LiveRequest], *, flush_until: float | None) -> None:
        """Counts what is cut off, and lets the relay end; with `flush_until` (monotonic) the sink is told first."""
        requests = list(requests)
        for request in requests:
            self._ledger.abandon(request)
        if flush_until is not None and self._sink is not None:
            self._relay.note_ended(_looks(requests))
            self._relay.flush(flush_until)
        self._relay.close()

    def renew_after_fork(self) -> None:
        """In a forked child, after the table was renewed: counts from zero, with a relay of its own."""
        self._measures.renew_after_fork()
        self._ledger.renew_after_fork(self._table.live_requests())
        self._relay = MetricsRelay(self._read_live)

    def _read_live(self) -> list[Look]:
        return _looks(self._table.live_requests())

    # ---- reading ---------------------------------------------------------------------------------------------------

    def totals(self, breakers: Mapping[str, BreakerStatus]) -> RouterMetrics:
        """Everything that was counted, as it is now; see `Router.totals`."""
        waiting_by_sink = self._supervision.collect_sink_events()
        sums, inline_signals, requests = self._ledger.read()
        reading = self._measures.read()
        self._timer.arm(self._table.live_requests())
        supervisor = self._supervision.supervisor
        workers = supervisor.workers() if supervisor is not None else []
        memory_bytes, memory_max_bytes = supervisor.memory if supervisor is not None else (0, 0)
        return RouterMetrics(
            requests_begun=requests["begun"],
            requests_ended=requests["ended"],
            requests_abandoned=requests["abandoned"],
            points=tuple(
                _point_metrics(key, sums.get(key, _NOTHING), inline_signals.get(key), reading)
                for key in sorted({*sums, *reading.points})
            ),
            sinks=_sink_metrics(reading, waiting_by_sink),
            workers=tuple(WorkerMetrics(worker.name, worker.state, worker.bindings) for worker in workers),
            worker_restarts=reading.restarts,
            breakers=breakers,
            memory_bytes=memory_bytes,
            memory_max_bytes=memory_max_bytes,
            capped_series=reading.capped_count,
        )


def _looks(requests: Iterable[LiveRequest]) -> list[Look]:
    return [
        ((request.request_id, name), binding.statistics())
        for request in requests
        for name, binding in request.async_bindings().items()
    ]


def _point_metrics(
    key: PointKey, sums: PointSums, inline_signals: Mapping[str, int] | None, reading: MeasuresReading
) -> PointMetrics:
    counts = sums.named()
    words = reading.points.get(key, _NO_WORDS)
    dropped = {reason: counts.pop(reason) for reason in DROP_REASONS if reason in counts}
    if key.mode == ExecutionMode.INLINE:
        # A guard counts what its probe says too, but not what a policy answers in its place.
        signals: Mapping[str, int] = inline_signals or dict.fromkeys(ACTIONS, 0)
        dropped["unasked"] = dropped.pop("late")
    else:
        signals = dict(zip(ACTIONS, words, strict=False))
    return PointMetrics(
        key=key,
        bindings=sums.bindings,
        dropped=dropped,
        **counts,
        waiting=sums.waiting,
        in_hand=sums.in_hand,
        queue_depth=sums.queue_depth,
        signals=signals,
        results=sums.results,
        timeouts=reading.probe_timeouts.get(key, 0),
        suspensions=reading.suspensions.get(key, 0),
        route=LatencyHistogram.of_words(words, ROUTE_AT),
        queue_wait=LatencyHistogram.of_words(words, WAIT_AT),
        probe_call=LatencyHistogram.of_words(words, CALL_AT),
    )


def _sink_metrics(reading: MeasuresReading, waiting_by_sink: Mapping[str, int]) -> tuple[SinkMetrics, ...]:
    found: dict[str, dict[str, int]] = {name: {} for name in (*reading.sinks, *waiting_by_sink)}
    for (name, event), count in reading.sink_events.items():
        found.setdefault(name, {})[event] = count
    return tuple(
        SinkMetrics(
            sink=name,
            records=words[RECORDS_AT],
            errors=words[ERRORS_AT],
            events=events,
            waiting=waiting_by_sink.get(name),
            write=LatencyHistogram.of_words(words, WRITE_AT),
        )
        for name, events in sorted(found.items())
        for words in [reading.sinks.get(name, _NO_WORDS)]
    )
