"""Trouble seen from the router: workers that die, memory that is refused, probes that cannot travel, Ctrl-C."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from router_points import (
    REGISTRY,
    Collect,
    Gate,
    context,
    fresh_id,
    make_point,
    make_record,
    positions,
    register_gated,
    wait_until,
)

from undercurrent.core import ProbeResult, RequestContext
from undercurrent.errors import ProbeTransferError, RingMemoryError
from undercurrent.router import OverflowPolicy, RequestHandle, Router, RouterError
from undercurrent.sinks import FileLogSink
from undercurrent.spec import Sample, SampleBy


def pid_of_worker(router: Router) -> int:
    pids: list[int] = []

    def is_running() -> bool:
        pids[:] = [status.pid for status in router._supervision.get().workers() if status.pid is not None]
        return bool(pids)

    assert wait_until(is_running)
    return pids[0]


def test_killed_worker_costs_what_it_held_and_shows_in_coverage() -> None:
    with Router(REGISTRY, worker_pool_size=1) as router:
        request_id = fresh_id()
        router.register_request(request_id, [make_point("watch", "async"), make_point()], context(request_id))
        for position in range(5):
            router.route(make_record(request_id, "watch", position=position))
        assert router.flush(30)
        os.kill(pid_of_worker(router), signal.SIGKILL)
        for position in range(5, 10):
            router.route(make_record(request_id, "watch", position=position))
            router.route(make_record(request_id, position=position))
        results = router.end_request(request_id)

    coverage = results["watch"].metadata["coverage"]
    assert positions(results["watch"]) == list(range(5, 10))
    assert coverage["routed"] == 10
    assert coverage["restarts"] == 1
    assert "worker_died" in coverage["reasons"]
    assert not coverage["complete"]
    assert positions(results["guard"]) == list(range(5, 10))
    assert results["guard"].metadata["coverage"]["complete"]


def fill(router: Router, registered: list[str]) -> None:
    while True:
        request_id = fresh_id()
        router.register_request(request_id, [make_point("watch", "async"), make_point()], context(request_id))
        registered.append(request_id)
        assert len(registered) < 100_000


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_memory_limit_refuses_the_registration_and_leaves_nothing(mode: str) -> None:
    with Router(REGISTRY, worker_mode=mode, worker_pool_size=1, memory_max_bytes=1 << 20) as router:
        registered: list[str] = []
        with pytest.raises(RingMemoryError, match="memory_max_bytes"):
            fill(router, registered)

        assert [request.request_id for request in router._table.live_requests()] == registered
        for request_id in registered:
            assert set(router.end_request(request_id)) == {"watch", "guard"}


def test_probe_that_cannot_travel_is_refused_at_registration() -> None:
    lock = _thread.allocate_lock()

    class Locked(Collect):
        held = lock

    with Router({"locked": Locked, **REGISTRY}) as router:
        points = [make_point("fine", "async"), make_point("watch", "async", probe_type="locked")]
        with pytest.raises(ProbeTransferError, match="held"):
            router.register_request("req", points, context("req"))
        router.register_request("req", points[:1], context("req"))
        assert list(router.end_request("req")) == ["fine"]


def test_probe_class_of_a_function_travels() -> None:
    factor = 3

    class Local(Collect):
        def on_end(self, request_ctx: RequestContext) -> ProbeResult:
            return ProbeResult(self.request_id, self.extraction_point_name, factor * (len(self.seen) - 1))

    with Router({"local": Local}) as router:
        router.register_request("req", [make_point("watch", "async", probe_type="local")], context("req"))
        router.route(make_record("req", "watch"))
        assert router.end_request("req")["watch"].verdict == 3


def test_ending_releases_a_route_that_waits_for_room(router: Router, gate: Gate) -> None:
    request_id = register_gated(router, gate, queue_depth=1, overflow_policy=OverflowPolicy.BLOCK)
    router.route(make_record(request_id, "watch", position=1))
    thread = threading.Thread(target=router.route, args=(make_record(request_id, "watch", position=2),))
    thread.start()
    results: list[dict[str, ProbeResult]] = []
    ending = threading.Thread(target=lambda: results.append(router.end_request(request_id)))
    ending.start()
    thread.join(30)
    was_released = not thread.is_alive()
    gate.open()
    ending.join(30)

    assert was_released
    assert positions(results[0]["watch"]) == [0, 1]


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_shutdown_releases_a_route_that_waits_for_room(mode: str, gate: Gate) -> None:
    router = Router(REGISTRY, worker_mode=mode)
    request_id = register_gated(router, gate, queue_depth=1, overflow_policy=OverflowPolicy.BLOCK)
    router.route(make_record(request_id, "watch", position=1))
    thread = threading.Thread(target=router.route, args=(make_record(request_id, "watch", position=2),))
    thread.start()
    ended: list[str] = []

    def shut_down() -> None:
        router.shutdown(wait=False)
        ended.append("shut down")

    shutting = threading.Thread(target=shut_down)
    shutting.start()
    thread.join(30)
    was_released = not thread.is_alive()
    gate.open()
    shutting.join(30)

    assert was_released
    assert ended == ["shut down"]


def test_interrupted_end_lets_its_workers_go(router: Router, gate: Gate) -> None:
    request_id = register_gated(router, gate)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        router.end_request(request_id)
    gate.open()

    with pytest.raises(RouterError, match="not registered"):
        router.end_request(request_id)
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))
    assert router.end_request(request_id)["watch"].metadata["coverage"]["complete"]


def get_ctrl_c(router: Router, handle: RequestHandle, gate: Gate) -> None:
    with router, handle:
        handle.route(make_record(handle.request_id, "watch"))
        handle.route(make_record(handle.request_id))
        assert gate.is_entered()
        raise KeyboardInterrupt


def test_ctrl_c_waits_for_no_verdict(gate: Gate) -> None:
    args = {**gate.args, "hold_s": 600.0}
    point = make_point("watch", "async", probe_type="gated", probe_args=args, probe_timeout_s=600.0)
    router = Router(REGISTRY, drain_timeout=600.0)
    handle = router.request([point, make_point()])
    with pytest.raises(KeyboardInterrupt):
        get_ctrl_c(router, handle, gate)
    coverage = handle.results["watch"].metadata["coverage"]
    assert "drain_timeout" in coverage["reasons"]
    assert handle.results["guard"].metadata["coverage"]["complete"]
    with pytest.raises(RouterError, match="shut down"):
        router.register_request("late", [point], context("late"))


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_file_sink_is_written_before_the_end_returns(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "observations.ndjson"
    with Router(REGISTRY, worker_mode=mode) as router:
        router.attach_log_sink(FileLogSink(path))
        router.register_request(
            "req", [make_point("watch", "async", probe_type="flagging"), make_point()], context("req")
        )
        for position in range(3):
            router.route(make_record("req", "watch", position=position))
        router.end_request("req")
        lines = path.read_text().splitlines()

    assert len(lines) == 4
    assert all('"watch"' in line for line in lines)
    assert '"result"' in lines[-1]


@pytest.mark.parametrize(("mode", "is_written_here"), [("process", False), ("thread", True)])
def test_lines_of_a_file_sink_are_written_where_the_probe_runs(
    mode: str, is_written_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, content: (written.append(bytes(content)), write(fd, content))[1])
    path = tmp_path / "lines.ndjson"
    with Router(REGISTRY, worker_mode=mode) as router:
        router.attach_log_sink(FileLogSink(path))
        with router.request([make_point("watch", "async", probe_type="flagging", queue_depth=32)]) as handle:
            for position in range(20):
                handle.route(make_record(handle.request_id, "watch", position=position))
    assert len(path.read_text().splitlines()) == 21
    assert any(b'"kind"' in lines for lines in written) is is_written_here


def test_sampled_async_point_says_so_in_its_result(router: Router) -> None:
    sample = Sample(rate=0.5, by=SampleBy.RECORD)
    request_id = fresh_id()
    point = make_point("watch", "async", sample=sample, overflow_policy="block")
    router.register_request(request_id, [point], context(request_id))
    for position in range(100):
        router.route(make_record(request_id, "watch", position=position))
    result = router.end_request(request_id)["watch"]

    assert positions(result) == [position for position in range(100) if sample.keeps_record(request_id, position)]
    assert result.metadata["coverage"]["reasons"] == ["sampled"]


def test_values_of_a_context_reach_the_worker(router: Router) -> None:
    class Echo(Collect):
        def on_start(self, request_ctx: RequestContext) -> None:
            self.seen.append(dict(request_ctx.prompt_metadata))

    metadata: dict[str, Any] = {"prompt": "hello", "lengths": (1, 2), "raw": b"\x00", "nested": {"a": [None, 1.5]}}
    with Router({"echo": Echo}, worker_mode=router._supervision._settings.worker_mode) as local:
        local.register_request("req", [make_point("watch", "async", probe_type="echo")], context("req", **metadata))
        assert local.end_request("req")["watch"].verdict == [metadata]
