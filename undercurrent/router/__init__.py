"""The router: which records go to which probe, and what the probes say.

`Router` registers requests, takes their records by `route`, and answers with results. `RequestHandle` is a request as a
`with` block (`AsyncRequestHandle` for `async with`), `RequestEndListener` a function told of every end. `RowEntry` and
`RowsError` belong to `Router.route_rows`.

Async points have a bounded queue: `OverflowPolicy` says what a full one does, `DEFAULT_QUEUE_DEPTH` how deep it is,
`DEFAULT_DRAIN_TIMEOUT` how long an end waits, `default_worker_pool_size` how many workers there are. `MetricsSnapshot`
holds a binding's counters, `MetricsSink` receives them, `InMemoryMetricsRegistry` is one that keeps them.

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
from undercurrent.router.router import Router
from undercurrent.router.rows import RowEntry, RowsError
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

__all__ = [
    "DEFAULT_CIRCUIT_BREAKER_THRESHOLD",
    "DEFAULT_DRAIN_TIMEOUT",
    "DEFAULT_QUEUE_DEPTH",
    "ActivationRecord",
    "AsyncRequestHandle",
    "BreakerCounts",
    "BreakerStatus",
    "ExecutionMode",
    "ExtractionPoint",
    "InMemoryMetricsRegistry",
    "InterventionMode",
    "InterventionPolicy",
    "MetricsSink",
    "MetricsSnapshot",
    "OverflowPolicy",
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
    "RowEntry",
    "RowsError",
    "TimeoutAction",
    "default_worker_pool_size",
]
