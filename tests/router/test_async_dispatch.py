"""Async points: workers observe, in processes and in threads alike."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from router_points import (
    ListSink,
    context,
    fresh_id,
    make_point,
    make_record,
    positions,
)

from undercurrent.core import ProbeAction
from undercurrent.router import Router, RouterError


def test_async_route_returns_none_and_the_probe_sees_every_record_in_order(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async", overflow_policy="block")], context(request_id))

    answers = [router.route(make_record(request_id, "watch", [float(i)], i)) for i in range(200)]
    result = router.end_request(request_id)["watch"]

    assert answers == [None] * 200
    assert result.verdict == [("start", request_id), *((i, [float(i)]) for i in range(200))]
    assert result.request_id == request_id
    assert result.metadata["coverage"]["routed"] == result.metadata["coverage"]["seen"] == 200
    assert result.metadata["coverage"]["complete"]


def test_workers_are_processes_unless_threads_are_asked_for(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async"), make_point()], context(request_id))

    results = router.end_request(request_id)

    is_own_process = results["watch"].metadata["pid"] != os.getpid()
    assert is_own_process == (router._supervision._settings.worker_mode == "process")
    assert results["guard"].metadata["pid"] == os.getpid()
    assert list(results) == ["watch", "guard"]


def test_async_abort_reaches_the_sink_and_nobody_else(router: Router, sink: ListSink) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async", probe_type="running_mean")], context(request_id))

    answer = router.route(make_record(request_id, "watch", [0.9]))
    result = router.end_request(request_id)["watch"]

    assert answer is None
    assert [(kind, name) for kind, _, name, _ in sink.events] == [("signal", "watch"), ("result", "watch")]
    assert sink.events[0][3].action is ProbeAction.ABORT
    assert sink.events[1][3].verdict == result.verdict
    assert sink.threads.isdisjoint({threading.get_ident()})


def test_inline_points_reach_no_sink(router: Router, sink: ListSink) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point(probe_type="flagging")], context(request_id))
    router.route(make_record(request_id))
    router.end_request(request_id)

    assert sink.events == []


def test_signals_arrive_in_order_and_the_result_last(router: Router, sink: ListSink) -> None:
    request_id = fresh_id()
    point = make_point("watch", "async", probe_type="flagging", overflow_policy="block")
    router.register_request(request_id, [point], context(request_id))
    for position in range(100):
        router.route(make_record(request_id, "watch", position=position))
    router.end_request(request_id)

    assert [event[0] for event in sink.events] == ["signal"] * 100 + ["result"]
    assert [event[3].metadata["position"] for event in sink.events[:-1]] == list(range(100))


def test_sink_attached_after_registration_is_served(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async", probe_type="flagging")], context(request_id))
    first, second = ListSink(), ListSink()
    router.attach_log_sink(first)
    router.add_log_sink(second)
    router.add_log_sink(second)
    router.route(make_record(request_id, "watch", position=0))
    assert router.flush(30)
    router.remove_log_sink(first)
    router.route(make_record(request_id, "watch", position=1))
    assert router.flush(30)
    router.attach_log_sink(None)
    router.route(make_record(request_id, "watch", position=2))
    router.end_request(request_id)

    assert [event[3].metadata["position"] for event in first.events] == [0]
    assert [event[3].metadata["position"] for event in second.events] == [0, 1]


def test_failing_sink_is_logged_and_harms_nothing(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(ListSink):
        def write_signal(self, *args: Any) -> None:
            raise OSError("disk full")

    failing, healthy = Failing(), ListSink()
    router.attach_log_sink(failing)
    router.add_log_sink(healthy)
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async", probe_type="flagging")], context(request_id))
    router.route(make_record(request_id, "watch"))
    result = router.end_request(request_id)["watch"]
    router.attach_log_sink(None)

    assert result.metadata["coverage"]["complete"]
    assert [event[0] for event in healthy.events] == ["signal", "result"]
    assert [event[0] for event in failing.events] == ["result"]
    assert "disk full" in caplog.text


def test_record_that_fits_no_async_binding_is_refused(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))
    record = make_record(request_id, "watch")
    record.layer = 5

    with pytest.raises(RouterError, match="layers"):
        router.route(record)
    router.end_request(request_id)
    with pytest.raises(RouterError, match="has already ended"):
        router.route(make_record(request_id, "watch"))


def test_what_a_probe_keeps_is_not_what_the_engine_writes_later(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))
    row = np.ones(4, dtype=np.float32)
    for position in range(5):
        row[:] = position
        router.route(make_record(request_id, "watch", row, position))
    row[:] = -1

    verdict = router.end_request(request_id)["watch"].verdict

    assert verdict[1:] == [(position, [float(position)] * 4) for position in range(5)]


def test_payload_that_cannot_cross_is_counted_and_raises_nothing(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))

    router.route(make_record(request_id, "watch", [1.0], 0))
    router.route(make_record(request_id, "watch", object(), 1))
    router.route(make_record(request_id, "watch", [2.0], 2))
    result = router.end_request(request_id)["watch"]

    assert positions(result) == [0, 2]
    assert result.metadata["coverage"]["reasons"] == ["unsupported"]
    assert not result.metadata["coverage"]["complete"]


def test_threads_that_route_at_once_lose_nothing(router: Router) -> None:
    request_ids = [fresh_id() for _ in range(4)]
    for request_id in request_ids:
        points = [make_point("watch", "async", overflow_policy="block"), make_point()]
        router.register_request(request_id, points, context(request_id))

    def route_all(request_id: str) -> None:
        for position in range(100):
            for name in ("watch", "guard"):
                router.route(make_record(request_id, name, position=position))

    threads = [threading.Thread(target=route_all, args=(request_id,)) for request_id in request_ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for request_id in request_ids:
        results = router.end_request(request_id)
        assert positions(results["watch"]) == positions(results["guard"]) == list(range(100))


def test_step_delivers_what_was_routed_inside_it(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))

    for step in range(3):
        with router.step():
            for position in range(3):
                router.route(make_record(request_id, "watch", position=3 * step + position))
    result = router.end_request(request_id)["watch"]

    assert positions(result) == list(range(9))


def test_blocking_point_does_not_hang_inside_a_step(router: Router) -> None:
    request_id = fresh_id()
    point = make_point("watch", "async", overflow_policy="block", queue_depth=2)
    router.register_request(request_id, [point], context(request_id))

    with router.step():
        for position in range(50):
            router.route(make_record(request_id, "watch", position=position))
    result = router.end_request(request_id)["watch"]

    assert positions(result) == list(range(50))
