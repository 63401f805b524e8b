"""What the scenarios share: points, routers, records and the clock they are measured by."""

from __future__ import annotations

import statistics
import time

from undercurrent.core import ProbeFactory, RequestContext
from undercurrent.router import OverflowPolicy, Router
from undercurrent.spec import ActivationRecord, ExecutionMode, ExtractionPoint, ProbeKind, TensorType, parse_position

HIDDEN_8KIB = 2048  # float32


def make_point(name, mode="async", depth=None, probe="p"):
    """One point of layer 4's MLP output."""
    return ExtractionPoint(
        name=name,
        layers=(4,),
        tensor_type=TensorType.MLP_OUT,
        position=parse_position("generated[*]"),
        stride=None,
        until=None,
        probe_type=probe,
        probe_kind=ProbeKind.TRAJECTORY,
        execution_mode=ExecutionMode(mode),
        queue_depth=depth,
    )


def make_router(
    probe_cls, policy=OverflowPolicy.DROP_OLDEST, pool=None, mode=None, default_intervention_policy=None, **probe_kwargs
):
    """A router whose only probe type is "p"; `mode` is this package's `worker_mode`."""
    extra = {} if mode is None else {"worker_mode": mode}
    return Router(
        probe_registry={"p": ProbeFactory(probe_cls, probe_kwargs)},
        default_overflow_policy=policy,
        worker_pool_size=pool,
        default_intervention_policy=default_intervention_policy,
        **extra,
    )


def context(request_id):
    """The least a request can say."""
    return RequestContext(request_id, {}, None)


def record(request_id, name, position, tensor):
    """One record of the point that `make_point` makes."""
    return ActivationRecord(request_id, name, 4, position, "mlp_out", tensor, True)


def warm(router, points, tensor, request_id="warm"):
    """Makes sure workers run and have seen a record."""
    router.register_request(request_id, points, context(request_id))
    for point in points:
        router.route(record(request_id, point.name, 1, tensor))
    router.end_request(request_id)


def cpu_us_per_call(call, count):
    """CPU time of this thread per call, in microseconds, over `count` calls."""
    started = time.thread_time_ns()
    for _ in range(count):
        call()
    return (time.thread_time_ns() - started) / count / 1e3


def median_of(repeats, measure):
    """The median of `repeats` measurements."""
    return statistics.median(measure() for _ in range(repeats))
