"""Forks and exits: a child counts and answers, the parent notices nothing, and no exit waits for a worker."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fork_answers import answer_of_child
from router_points import REGISTRY, ListSink, context, fresh_id, make_point, make_record, positions, wait_until

from undercurrent.router import Router

ROOT = Path(__file__).parent.parent


def test_child_counts_async_records_and_runs_inline_points(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    request_id = fresh_id()
    router.register_request(
        request_id, [make_point("watch", "async"), make_point(probe_type="running_mean")], context(request_id)
    )
    router.route(make_record(request_id, "watch", position=0))

    def route_in_child() -> Any:
        answers = [router.route(make_record(request_id, "watch", position=position)) for position in (1, 2)]
        signal_of_guard = router.route(make_record(request_id, values=[0.9]))
        warnings = [record.levelname for record in caplog.records if "fork" in record.getMessage()]
        results = router.end_request(request_id)
        action = signal_of_guard.action.value if signal_of_guard is not None else None
        return answers, action, warnings, results["watch"].metadata["coverage"], results["guard"].verdict

    answers, action, warnings, coverage, verdict = answer_of_child(route_in_child)
    router.route(make_record(request_id, "watch", position=3))
    results = router.end_request(request_id)

    assert answers == [None, None]
    assert action == "abort"
    assert warnings == ["WARNING"]
    assert (coverage["routed"], coverage["seen"], coverage["complete"]) == (2, 0, False)
    assert coverage["reasons"] == ["unseen"]
    assert verdict["count"] == 1
    assert positions(results["watch"]) == [0, 3]
    assert results["watch"].metadata["coverage"]["complete"]


def test_child_can_serve_async_requests_of_its_own(router: Router) -> None:
    warm = fresh_id()
    router.register_request(warm, [make_point("watch", "async")], context(warm))

    def serve_in_child() -> Any:
        sink = ListSink()
        router.attach_log_sink(sink)
        router.register_request("own", [make_point("watch", "async", probe_type="flagging")], context("own"))
        router.route(make_record("own", "watch", position=7))
        result = router.end_request("own")["watch"]
        router.shutdown()
        return result.verdict, [event[0] for event in sink.events]

    verdict, events = answer_of_child(serve_in_child)
    result = router.end_request(warm)["watch"]

    assert verdict == [["start", "own"], [7, [1.0]]]
    assert events == ["signal", "result"]
    assert result.metadata["coverage"]["complete"]


def test_router_made_before_any_worker_serves_in_each_child() -> None:
    router = Router(REGISTRY, worker_pool_size=1)

    def serve_in_child() -> Any:
        with router:
            router.register_request("own", [make_point("watch", "async")], context("own"))
            router.route(make_record("own", "watch", position=7))
            return router.end_request("own")["watch"].verdict

    verdicts = [answer_of_child(serve_in_child) for _ in range(2)]
    router.shutdown()

    assert verdicts == [[["start", "own"], [7, [1.0]]]] * 2


EXIT_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from router_points import REGISTRY, ListSink, context, make_point, make_record
from undercurrent.router import InMemoryMetricsRegistry, Router

router = Router(REGISTRY, worker_mode=sys.argv[2], metrics_sink=InMemoryMetricsRegistry())
router.attach_log_sink(ListSink())
router.register_request("live", [make_point("watch", "async", probe_type="gated", probe_args={
    "gate": sys.argv[3] + "/gate", "inside": sys.argv[3] + "/inside", "hold_s": 120})], context("live"))
router.route(make_record("live", "watch"))
print(*(status.pid for status in router._supervision.get().workers() if status.pid is not None), flush=True)
"""


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_exit_without_shutdown_does_not_wait(mode: str, tmp_path: Path) -> None:
    try:
        # The live request's probe holds its record for two minutes.
        done = subprocess.run(
            [sys.executable, "-c", EXIT_PROGRAM, str(ROOT), mode, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )
    finally:
        (tmp_path / "gate").touch()

    assert done.returncode == 0, done.stderr
    if mode == "process":
        pids = [int(word) for word in done.stdout.split()]
        assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


ASYNCIO_EXIT_PROGRAM = """
import asyncio, sys, threading
sys.path.insert(0, sys.argv[1])
from router_points import Collect, context, make_point
from undercurrent.router import Router

class Endless(Collect):
    def on_end(self, request_ctx):
        threading.Event().wait(40)

async def serve():
    router = Router({"endless": Endless})
    await router.aregister_request("req", [make_point(probe_type="endless")], context("req"))
    try:
        await asyncio.wait_for(router.aend_request("req"), 0.1)
    except TimeoutError:
        print("gave up")

asyncio.run(serve())
"""


def test_exit_does_not_wait_for_an_end_that_nobody_awaits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASYNCIO_EXIT_PROGRAM, str(ROOT)], capture_output=True, text=True, timeout=35, check=False
    )

    assert (done.returncode, done.stdout) == (0, "gave up\n"), done.stderr


def test_library_installs_no_signal_handler(router: Router) -> None:
    request_id = fresh_id()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))
    router.end_request(request_id)

    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
