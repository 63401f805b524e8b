"""Bounded points in forked children, and guards whose engine ends without a word."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fork_answers import answer_of_child
from gate_probes import GATES, gate_point
from router_points import context, fresh_id, make_record, wait_until

from undercurrent.router import Router, TimeoutAction

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("on_timeout", list(TimeoutAction))
def test_in_a_forked_child_the_policy_answers_and_the_parent_is_untouched(on_timeout: TimeoutAction) -> None:
    with Router(GATES, worker_pool_size=1) as router:
        request_id = fresh_id()
        router.register_request(request_id, [gate_point(on_timeout=on_timeout)], context(request_id))
        router.route(make_record(request_id, position=0))

        def route_in_child() -> Any:
            signals = [router.route(make_record(request_id, position=position)) for position in (1, 2)]
            result = router.end_request(request_id)["guard"]
            said = [(signal.action.value, signal.metadata["reason"]) for signal in signals if signal is not None]
            return said, result.metadata["coverage"], list(router.breakers())

        said, coverage, breakers = answer_of_child(route_in_child)
        router.route(make_record(request_id, position=3))
        result = router.end_request(request_id)["guard"]

    assert said == [[on_timeout.value, "forked"]] * 2
    assert (coverage["routed"], coverage["seen"], coverage["reasons"]) == (2, 0, ["unseen"])
    assert breakers == []
    assert [position for position, _ in result.verdict[1:]] == [0, 3]
    assert result.metadata["coverage"]["complete"]


def test_a_child_gets_guards_of_its_own() -> None:
    with Router(GATES, worker_pool_size=1) as router:
        request_id = fresh_id()
        router.register_request(request_id, [gate_point()], context(request_id))
        mine = router.route(make_record(request_id))

        def gate_in_child() -> Any:
            router.register_request("own", [gate_point()], context("own"))
            signal_of_child = router.route(make_record("own"))
            router.shutdown()
            return None if signal_of_child is None else signal_of_child.metadata["pid"]

        pid = answer_of_child(gate_in_child)
        router.end_request(request_id)

    assert mine is not None
    assert isinstance(pid, int)
    assert pid != mine.metadata["pid"]


PROGRAM = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from fork_answers import answer_of_child
from gate_probes import GATES, TRIGGER, gate_point, guard_pid
from router_points import context, make_record, wait_until
from undercurrent.router import Router

router = Router(GATES, worker_pool_size=1)
point = gate_point(probe_type="trouble", probe_args={"way": "sum"}, timeout_ms=100, probe_timeout_s=300.0)
router.register_request("live", [point], context("live"))
if sys.argv[2] == "hung":
    router.route(make_record("live", position=TRIGGER))
print(guard_pid(router), flush=True)
if sys.argv[2] != "exit":
    time.sleep(60)
"""


@pytest.mark.parametrize("end", ["exit", "kill", "hung"])
def test_a_guard_ends_with_its_engine_also_while_its_probe_hangs(end: str) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM, str(TESTS), end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
        assert engine.stdout is not None
        guard = Path(f"/proc/{int(engine.stdout.readline())}")
        if end != "exit":
            engine.send_signal(signal.SIGKILL)
        code = engine.wait(30)

    assert code == (0 if end == "exit" else -signal.SIGKILL)
    assert wait_until(lambda: not guard.exists())
