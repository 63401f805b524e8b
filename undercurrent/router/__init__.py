"""The router: which records go to which probe, and what the probes say.

`Router` registers requests, takes their records by `route`, and answers with results. `RequestHandle` is a request as a
`with` block (`AsyncRequestHandle` for `async with`), `RequestEndListener` a function told of every end. `RowEntry` and
`RowsError` belong to `Router.route_rows`.

Async points have a bounded queue: `OverflowPolicy` says what a full one does, `DEFAULT_QUEUE_DEPTH` how deep it is,
`DEFAULT_DRAIN_TIMEOUT` how long an end waits, `default_worker_pool_size` how many workers there are. `MetricsSnapshot`
holds a binding's counters, `MetricsSink` receives them, `InMemoryMetricsRegistry` is one that keeps them.

`Router.totals` returns `RouterMetrics`: what was counted since the router was made, of each point (`PointMetrics`, by
`PointKey`), sink (`SinkMetrics`) and worker (`WorkerMetrics`), with times as `LatencyHistogram`. `prometheus_text` and
`openmetrics_text` write it for a scraper, with the content types `PROMETHEUS_CONTENT_TYPE` and
`OPENMETRICS_CONTENT_TYPE`.

What is wrong with a call is a `RouterError`. The types of `undercurrent.spec` and `undercurrent.core` that a router is
used with can be imported from here too.
"""

from undercurrent.core import Probe, ProbeAction, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import RouterError
from undercurrent.router.breakers import BreakerCounts, BreakerStatus
from undercurrent.router.defaults import (
    DEFAULT_CIRCUIT_BREAKER_THRESHOLD,
    DEFAULT_DRAIN_TIMEOUT,
    DEFAULT_QUEUE_DEPTH,
    default_worker_pool_size,
)
from undercurrent.router.ending import RequestEndListener
from undercurrent.router.handle import AsyncRequestHandle, RequestHandle
from undercurrent.router.metrics import InMemoryMetricsRegistry, MetricsSink, MetricsSnapshot
from undercurrent.router.prometheus import (
    OPENMETRICS_CONTENT_TYPE,
    PROMETHEUS_CONTENT_TYPE,
    openmetrics_text,
    prometheus_text,
)
from undercurrent.router.router import Router
from undercurrent.router.rows import RowEntry, RowsError
from undercurrent.router.totals import LatencyHistogram, PointMetrics, RouterMetrics, SinkMetrics, WorkerMetrics
from undercurrent.spec import (
    ActivationRecord,
    ExecutionMode,
    ExtractionPoint,
    InterventionMode,
    InterventionPolicy,
    OverflowPolicy,
    ProbeKind,
    TimeoutAction,
)
from undercurrent.workers.measures import PointKey

__all__ = [
    "DEFAULT_CIRCUIT_BREAKER_THRESHOLD",
    "DEFAULT_DRAIN_TIMEOUT",
    "DEFAULT_QUEUE_DEPTH",
    "OPENMETRICS_CONTENT_TYPE",
    "PROMETHEUS_CONTENT_TYPE",
    "ActivationRecord",
    "AsyncRequestHandle",
    "BreakerCounts",
    "BreakerStatus",
    "ExecutionMode",
    "ExtractionPoint",
    "InMemoryMetricsRegistry",
    "InterventionMode",
    "InterventionPolicy",
    "LatencyHistogram",
    "MetricsSink",
    "MetricsSnapshot",
    "OverflowPolicy",
    "PointKey",
    "PointMetrics",
    "Probe",
    "ProbeAction",
    "ProbeFactory",
    "ProbeKind",
    "ProbeResult",
    "ProbeSignal",
    "RequestContext",
    "RequestEndListener",
    "RequestHandle",
    "Router",
    "RouterError",
    "RouterMetrics",
    "RowEntry",
    "RowsError",
    "SinkMetrics",
    "TimeoutAction",
    "WorkerMetrics",
    "default_worker_pool_size",
    "openmetrics_text",
    "prometheus_text",
]
