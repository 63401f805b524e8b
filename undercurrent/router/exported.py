"""The metrics that are exported: names, types, labels, and where each is read from. `docs/metrics.md` repeats the list.

Names follow Prometheus' conventions: one prefix, base units, `_total` on counters. A label never has a value from an
unbounded set: points beyond a thousand are "other" (`undercurrent.workers.measures`), and no request is ever named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from undercurrent.router.totals import LatencyHistogram, PointMetrics, RouterMetrics

__all__ = ["METRICS", "Metric", "Sample"]

Sample = tuple[tuple[str, ...], int | float | LatencyHistogram]
"""Values of the labels, then the number or the histogram."""


class Metric(NamedTuple):
    """One metric family."""

    name: str
    type: str
    """`counter`, `gauge` or `histogram`."""
    labels: tuple[str, ...]
    help: str
    read: Callable[[RouterMetrics], Iterable[Sample]]


Read = Callable[[RouterMetrics], Iterable[Sample]]


def _counter(name: str, labels: tuple[str, ...], help: str, read: Read) -> Metric:
    return Metric(f"undercurrent_{name}", "counter", labels, help, read)


def _gauge(name: str, labels: tuple[str, ...], help: str, read: Read) -> Metric:
    return Metric(f"undercurrent_{name}", "gauge", labels, help, read)


def _histogram(name: str, labels: tuple[str, ...], help: str, read: Read) -> Metric:
    return Metric(f"undercurrent_{name}", "histogram", labels, help, read)


_POINT = ("point", "probe", "mode")
_BREAKER_STATES = ("closed", "open", "half_open")
_BREAKER_OUTCOMES = {
    "answered": "answered",
    "timeout": "timeouts",
    "failure": "failures",
    "short_circuited": "short_circuited",
}
_RESTART_REASONS = ("died", "hang", "not_started")


def _one(read: Callable[[RouterMetrics], float]) -> Read:
    """One sample without labels."""
    return lambda totals: [((), read(totals))]


def _points(read: Callable[[PointMetrics], float | LatencyHistogram]) -> Read:
    """One sample per point."""
    return lambda totals: ((point.key, read(point)) for point in totals.points)


def _rings(read: Callable[[PointMetrics], float]) -> Read:
    """One sample per point that has rings."""
    return lambda totals: ((point.key, read(point)) for point in _with_rings(totals))


def _with_rings(totals: RouterMetrics) -> Iterator[PointMetrics]:
    return (point for point in totals.points if point.key.mode == "async" or point.key.point in totals.breakers)


def _dropped(totals: RouterMetrics) -> Iterator[Sample]:
    for point in _with_rings(totals):
        for reason, count in point.dropped.items():
            yield (*point.key, reason), count


def _signals(totals: RouterMetrics) -> Iterator[Sample]:
    for point in totals.points:
        for action, count in point.signals.items():
            yield (*point.key, action), count


def _results(totals: RouterMetrics) -> Iterator[Sample]:
    for point in totals.points:
        for coverage, count in point.results.items():
            yield (*point.key, coverage), count


def _latencies(totals: RouterMetrics) -> Iterator[Sample]:
    for point in _with_rings(totals):
        yield (*point.key, "queue"), point.queue_wait
        yield (*point.key, "compute"), point.probe_call


def _breaker_states(totals: RouterMetrics) -> Iterator[Sample]:
    for name, breaker in totals.breakers.items():
        for state in _BREAKER_STATES:
            yield (name, state), int(breaker.state == state)


def _breaker_records(totals: RouterMetrics) -> Iterator[Sample]:
    for name, breaker in totals.breakers.items():
        for outcome, field in _BREAKER_OUTCOMES.items():
            yield (name, outcome), getattr(breaker.counts, field)


def _restarts(totals: RouterMetrics) -> Iterator[Sample]:
    known = {worker for worker, _ in totals.worker_restarts} | {worker.worker for worker in totals.workers}
    for worker in sorted(known):
        for reason in _RESTART_REASONS:
            yield (worker, reason), totals.worker_restarts.get((worker, reason), 0)


def _sink_records(totals: RouterMetrics) -> Iterator[Sample]:
    for sink in totals.sinks:
        yield (sink.sink, "ok"), sink.records
        yield (sink.sink, "error"), sink.errors


@cache
def _build() -> tuple[str, ...]:
    # Imported here: they take longer than the rest of this package, and few programs export metrics.
    import platform
    from importlib import metadata

    return metadata.version("undercurrent"), platform.python_version(), sys.implementation.cache_tag or "unknown"


METRICS: Final = (
    _gauge("build_info", ("version", "python", "abi"), "What is installed; always 1.", lambda _: [(_build(), 1)]),
    # requests
    _counter("requests_begun_total", (), "Requests that were registered.", _one(lambda totals: totals.requests_begun)),
    _counter(
        "requests_ended_total",
        (),
        "Requests that were ended by end_request.",
        _one(lambda totals: totals.requests_ended),
    ),
    _counter(
        "requests_abandoned_total",
        (),
        "Requests cut off by shutdown or by the cancellation of the task that registered them.",
        _one(lambda totals: totals.requests_abandoned),
    ),
    _gauge("requests_live", (), "Requests that live now.", _one(lambda totals: totals.requests_live)),
    _gauge(
        "point_bindings",
        _POINT,
        "Live requests that have this extraction point.",
        _points(lambda point: point.bindings),
    ),
    # records and rings
    _histogram(
        "producer_write_seconds",
        _POINT,
        "Time of route(), of a sample of its calls; for an inline point, the probe included.",
        _points(lambda point: point.route),
    ),
    _counter(
        "ring_produced_total",
        _POINT,
        "Records that were routed to an async or bounded point.",
        _rings(lambda point: point.routed),
    ),
    _counter(
        "ring_consumed_total", _POINT, "Records that workers are done with.", _rings(lambda point: point.consumed)
    ),
    _counter("ring_dropped_total", (*_POINT, "reason"), "Records that no worker saw.", _dropped),
    _counter(
        "ring_lost_total",
        _POINT,
        "Records that were in the hand of a worker when it died.",
        _rings(lambda point: point.lost),
    ),
    _gauge(
        "ring_lag_records",
        _POINT,
        "Records that wait, or are in the hand of a worker, now.",
        _rings(lambda point: point.waiting + point.in_hand),
    ),
    _gauge(
        "ring_fill_ratio",
        _POINT,
        "Waiting records per place for one, over all live requests; 0 without any.",
        _rings(lambda point: point.waiting / point.queue_depth if point.queue_depth else 0.0),
    ),
    _gauge("ring_memory_bytes", (), "Shared memory that rings take now.", _one(lambda totals: totals.memory_bytes)),
    _gauge(
        "ring_memory_max_bytes",
        (),
        "Shared memory that rings may take; 0 before the first async point.",
        _one(lambda totals: totals.memory_max_bytes),
    ),
    # probes
    _counter("probe_records_total", _POINT, "Records that probes were called with.", _points(lambda point: point.seen)),
    _counter("probe_errors_total", _POINT, "Records at which a probe raised.", _points(lambda point: point.errors)),
    _counter(
        "probe_signals_total",
        (*_POINT, "action"),
        "Signals of probes, and of policies that answered in their place.",
        _signals,
    ),
    _counter(
        "probe_results_total",
        (*_POINT, "coverage"),
        "Results of ended requests, by whether they rest on everything that was routed.",
        _results,
    ),
    _histogram(
        "probe_latency_seconds",
        (*_POINT, "stage"),
        "Time of a record in its queue and in its probe, of async and bounded points.",
        _latencies,
    ),
    _counter(
        "probe_restarts_total",
        _POINT,
        "New probe instances that took over in the middle of a request because a worker died.",
        _points(lambda point: point.restarts),
    ),
    _counter(
        "probe_timeouts_total",
        _POINT,
        "Workers that were ended because a call of this point's probe took longer than probe_timeout_s.",
        _points(lambda point: point.timeouts),
    ),
    _counter(
        "point_suspensions_total",
        _POINT,
        "How often the point was suspended because its workers died too often.",
        _points(lambda point: point.suspensions),
    ),
    # breakers
    _gauge(
        "breaker_state",
        ("point", "state"),
        "1 for the state that the point's breaker is in, 0 for the others.",
        _breaker_states,
    ),
    _counter(
        "breaker_trips_total",
        ("point",),
        "How often the point's breaker opened.",
        lambda totals: (((name,), breaker.trips) for name, breaker in totals.breakers.items()),
    ),
    _counter(
        "breaker_records_total",
        ("point", "outcome"),
        "Records of a bounded point by what came of them.",
        _breaker_records,
    ),
    # workers
    _gauge(
        "worker_up",
        ("worker",),
        "1 while the worker runs, 0 while it is being started again.",
        lambda totals: (((worker.worker,), int(worker.state == "running")) for worker in totals.workers),
    ),
    _gauge(
        "worker_bindings",
        ("worker",),
        "Bindings that the worker serves.",
        lambda totals: (((worker.worker,), worker.bindings) for worker in totals.workers),
    ),
    _counter("worker_restarts_total", ("worker", "reason"), "How often the worker had to be started again.", _restarts),
    # sinks
    _counter(
        "sink_records_total",
        ("sink", "outcome"),
        "Signals and results given to sinks of this class: taken, or met by an exception.",
        _sink_records,
    ),
    _histogram(
        "sink_write_seconds",
        ("sink",),
        "Time of one write of a sink: of a record, or in a worker of all that was held back.",
        lambda totals: (((sink.sink,), sink.write) for sink in totals.sinks),
    ),
    _counter(
        "sink_events_total",
        ("sink", "event"),
        "What sinks of this class counted themselves.",
        lambda totals: (
            ((sink.sink, event), count) for sink in totals.sinks for event, count in sorted(sink.events.items())
        ),
    ),
    _gauge(
        "sink_waiting_records",
        ("sink",),
        "Records that sinks of this class hold now, of those that say.",
        lambda totals: (((sink.sink,), sink.waiting) for sink in totals.sinks if sink.waiting is not None),
    ),
    _counter(
        "metrics_series_capped_total",
        (),
        "How often a point was counted as other because there are too many different ones.",
        _one(lambda totals: totals.capped_series),
    ),
)
