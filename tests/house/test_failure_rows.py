"""Rows of ARCHITECTURE.md's failure table that belong to no room alone: signals, stopped workers, greed, slow sinks."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from router_points import REGISTRY, ListSink, context, fresh_id, make_point, make_record

from undercurrent.core import Probe, ProbeFactory, ProbeResult
from undercurrent.router import Router

ENGINE = """
import sys
from router_points import REGISTRY, Gate, context, make_point, make_record
from undercurrent.router import Router
from undercurrent.core import ProbeFactory, Probe, ProbeResult

class Stuck(Probe):
    probe_kind = "trajectory"
    def on_start(self, request_ctx): pass
    def on_activation(self, record):
        import time
        time.sleep(600)
    def on_end(self, request_ctx): return ProbeResult(self.request_id, self.extraction_point_name, None)

router = Router({"stuck": ProbeFactory(Stuck)})
point = make_point("monitor", "async", probe_type="stuck", queue_depth=2, overflow_policy=sys.argv[1])
router.register_request("req-1", [point], context("req-1"), wait_s=30)
print("serving", flush=True)
position = 0
while True:
    router.route(make_record("req-1", "monitor", position=position))
    position += 1
"""


class Eater(Probe):
    """Asks for more memory than its worker may have, once."""

    probe_kind = "trajectory"

    def on_start(self, request_ctx: Any) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
        self.count = 0

    def on_activation(self, record: Any) -> None:
        if record.token_pos == 0:
            np.ones(1 << 34)
        self.count += 1

    def on_end(self, request_ctx: Any) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, self.count)


@pytest.fixture(name="engine", params=["block", "drop_oldest"])
def _engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[psutil.Popen]:
    """A program that routes for ever to a probe that never answers, once it has said so."""
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    command = [sys.executable, "-P", str(script), request.param]
    process = psutil.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"serving\n", process.stderr.read().decode()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ends_with_its_workers(engine: psutil.Popen, number: signal.Signals) -> int:
    """Sends a signal and returns the status, once the engine and all it started are gone."""
    started = engine.children(recursive=True)
    assert started
    engine.send_signal(number)
    status: int = engine.wait(timeout=20)
    _, alive = psutil.wait_procs(started, timeout=20)
    for process in alive:
        process.kill()
    assert not alive
    return status


def test_ctrl_c_ends_a_route_that_waits_or_not(engine: psutil.Popen) -> None:
    assert ends_with_its_workers(engine, signal.SIGINT) != 0
    assert b"KeyboardInterrupt" in engine.stderr.read()


def test_sigterm_ends_the_engine_and_its_workers(engine: psutil.Popen) -> None:
    assert ends_with_its_workers(engine, signal.SIGTERM) == -signal.SIGTERM


def test_stopped_worker_holds_up_neither_route_nor_the_deadline() -> None:
    request = fresh_id()
    with Router(REGISTRY, drain_timeout=1.0) as router:
        router.register_request(request, [make_point("monitor", "async", queue_depth=4)], context(request), wait_s=30)
        router.route(make_record(request, "monitor", position=0))
        assert router.flush(20)
        workers = [child for child in psutil.Process().children(recursive=True) if not child.children()]
        for worker in workers:
            worker.suspend()
        try:
            for position in range(1, 101):
                router.route(make_record(request, "monitor", position=position))
            coverage = router.end_request(request)["monitor"].metadata["coverage"]
        finally:
            for worker in workers:
                worker.resume()
    assert not coverage["complete"]
    assert "drain_timeout" in coverage["reasons"]
    assert coverage["routed"] == 101


def test_stopped_nursery_holds_up_neither_a_request_nor_the_end_of_the_router() -> None:
    known = {child.pid for child in psutil.Process().children()}
    request = fresh_id()
    with Router(REGISTRY, drain_timeout=1.0) as router:
        router.prewarm([make_point("monitor", "async")])
        (nursery,) = [child for child in psutil.Process().children() if child.pid not in known]
        nursery.suspend()
        # Another class asks for another worker, which nobody can start now; the one that runs serves on.
        points = [make_point("monitor", "async"), make_point("other", "async", probe_type="running_mean")]
        router.register_request(request, points, context(request))
        for position in range(10):
            for point in points:
                router.route(make_record(request, point.name, position=position))
        results = router.end_request(request)
    assert results["monitor"].metadata["coverage"]["complete"]
    coverage = results["other"].metadata["coverage"]
    assert (coverage["routed"], coverage["seen"], coverage["complete"]) == (10, 0, False)
    assert "drain_timeout" in coverage["reasons"]
    assert not nursery.is_running()


def test_probe_that_eats_memory_gets_a_memory_error_and_goes_on() -> None:
    request = fresh_id()
    with Router({"eater": ProbeFactory(Eater)}) as router:
        point = make_point("monitor", "async", probe_type="eater", overflow_policy="block")
        router.register_request(request, [point], context(request))
        for position in range(5):
            router.route(make_record(request, "monitor", position=position))
        result = router.end_request(request)["monitor"]
    assert result.verdict == 4
    assert result.metadata["coverage"]["errors"] == 1
    assert "probe_error" in result.metadata["coverage"]["reasons"]


class HeldSink(ListSink):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = threading.Event()
        self.let_go = threading.Event()

    def write_signal(self, *arguments: Any) -> None:
        self.is_held.set()
        self.let_go.wait(30)
        super().write_signal(*arguments)


def test_slow_sink_holds_up_no_route_and_loses_nothing() -> None:
    request = fresh_id()
    sink = HeldSink()
    with Router(REGISTRY) as router:
        router.attach_log_sink(sink)
        point = make_point("monitor", "async", probe_type="flagging", overflow_policy="block")
        router.register_request(request, [point], context(request))
        router.route(make_record(request, "monitor", position=0))
        assert sink.is_held.wait(20)
        for position in range(1, 100):
            router.route(make_record(request, "monitor", position=position))
        assert not sink.events
        sink.let_go.set()
        router.end_request(request)
    assert [event[0] for event in sink.events] == ["signal"] * 100 + ["result"]
