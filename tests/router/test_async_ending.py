"""How async bindings drain, flush and end."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from router_points import (
    REGISTRY,
    Gate,
    ListSink,
    context,
    fresh_id,
    make_point,
    make_record,
    positions,
    register_gated,
    wait_until,
)

from undercurrent.router import Router, RouterError


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_drain_timeout_bounds_the_whole_request_and_shows_in_coverage(mode: str, gate: Gate) -> None:
    with Router(REGISTRY, worker_mode=mode, drain_timeout=0.5) as router:
        request_id = register_gated(router, gate)
        router.route(make_record(request_id, "watch", position=1))
        result = router.end_request(request_id)["watch"]
        gate.open()

    assert "drain_timeout" in result.metadata["coverage"]["reasons"]
    assert not result.metadata["coverage"]["complete"]


def test_verdict_covers_what_waits_when_the_request_ends(router: Router, gate: Gate) -> None:
    request_id = register_gated(router, gate, queue_depth=32)
    for position in range(1, 20):
        router.route(make_record(request_id, "watch", position=position))
    gate.open()

    result = router.end_request(request_id)["watch"]

    assert positions(result) == list(range(20))


def test_flush_waits_for_everything_routed(router: Router, sink: ListSink) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async", probe_type="flagging")], context(request_id))
    for position in range(20):
        router.route(make_record(request_id, "watch", position=position))

    assert router.flush(30)

    assert len(sink.events) == 20
    router.end_request(request_id)


def test_metrics_of_a_live_async_binding(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))
    fresh = router.get_metrics(request_id, "watch")
    for position in range(5):
        router.route(make_record(request_id, "watch", position=position))
    assert router.flush(30)
    metrics = router.get_metrics(request_id, "watch")
    router.end_request(request_id)

    assert (fresh.activation_count, fresh.avg_activation_latency_seconds) == (0, None)
    assert (metrics.activation_count, metrics.queue_depth, metrics.drop_count) == (5, 0, 0)
    with pytest.raises(RouterError, match="ended"):
        router.get_metrics(request_id, "watch")


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_shutdown_leaves_no_thread_and_no_process(mode: str) -> None:
    before = set(threading.enumerate())
    router = Router(REGISTRY, worker_mode=mode)
    router.prewarm([make_point("watch", "async")])
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))
    router.route(make_record(request_id, "watch"))
    pids = [status.pid for status in router._supervision.get().workers()]

    router.shutdown()

    assert wait_until(lambda: set(threading.enumerate()) <= before)
    if mode == "process":
        assert wait_until(lambda: not any(pid is not None and Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_shutdown_with_a_live_request_handles_what_waits(mode: str) -> None:
    sink = ListSink()
    router = Router(REGISTRY, worker_mode=mode)
    router.attach_log_sink(sink)
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async", probe_type="flagging")], context(request_id))
    for position in range(10):
        router.route(make_record(request_id, "watch", position=position))

    router.shutdown(wait=True, timeout=30)

    assert [event[3].metadata["position"] for event in sink.events if event[0] == "signal"] == list(range(10))


def test_more_bindings_than_workers_are_all_served(router: Router) -> None:
    request_ids = [fresh_id() for _ in range(12)]
    points = [make_point(f"watch-{index}", "async") for index in range(3)]
    for request_id in request_ids:
        router.register_request(request_id, points, context(request_id))
    for request_id in request_ids:
        for point in points:
            router.route(make_record(request_id, point.name))

    for request_id in request_ids:
        results = router.end_request(request_id)
        assert all(result.metadata["coverage"]["seen"] == 1 for result in results.values())


def test_point_beyond_the_pool_shares_the_least_loaded_worker_and_the_log_says_with_whom(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "undercurrent"), Router(REGISTRY, worker_pool_size=2) as router:
        for name, requests in (("crowded", 3), ("quiet", 1), ("late", 1)):
            for _ in range(requests):
                router.register_request(request_id := fresh_id(), [make_point(name, "async")], context(request_id))
    said = [entry.getMessage() for entry in caplog.records if " shares worker " in entry.getMessage()]
    assert said == ["point 'late' shares worker uc-1-quiet with quiet: `worker_pool_size` is 2"]


def test_registration_logs_nothing_at_warning_level(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    request_id = fresh_id()
    with caplog.at_level(logging.WARNING, "undercurrent"):
        router.register_request(request_id, [make_point("watch", "async")], context(request_id))
        router.route(make_record(request_id, "watch"))
        router.end_request(request_id)

    assert caplog.records == []
