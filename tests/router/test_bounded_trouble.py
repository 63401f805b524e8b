"""Bounded inline points in trouble: whatever a probe does, `route()` answers at its deadline, and others are served."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gate_probes import DYING, GATES, HANGING, TRIGGER, SlowToLoad, gate_point, guard_pid
from router_points import REGISTRY, context, fresh_id, make_point, make_record, wait_until

from undercurrent.core import ProbeAction, ProbeSignal
from undercurrent.errors import WorkerError
from undercurrent.router import Router, RouterError, TimeoutAction
from undercurrent.workers import guards

BOUND_MS = 60
HUNG_S = 0.3
SLOW_ARGS = {"what": SlowToLoad(1.5)}


@pytest.fixture(name="router", scope="module")
def _router() -> Iterator[Router]:
    with Router({**REGISTRY, **GATES}, worker_pool_size=1, circuit_breaker_threshold=1000) as router:
        yield router


def register(router: Router, *points: Any) -> str:
    request_id = fresh_id()
    router.register_request(request_id, points, context(request_id))
    return request_id


def trouble_point(name: str, way: str, **more: Any) -> Any:
    """Each test has a point of its own: guards that die often are started again with a growing delay."""
    return gate_point(name, "trouble", timeout_ms=BOUND_MS, probe_timeout_s=HUNG_S, probe_args={"way": way}, **more)


def route_until_answered(router: Router, request_id: str, name: str) -> ProbeSignal:
    """Routes harmless records until a guard answers one."""
    answers: list[ProbeSignal] = []

    def is_answered() -> bool:
        answered = router.route(make_record(request_id, name, position=7))
        assert answered is not None
        answers.append(answered)
        return "reason" not in answered.metadata

    assert wait_until(is_answered)
    return answers[-1]


@pytest.mark.parametrize("way", HANGING)
def test_a_probe_that_never_returns_costs_its_bound_and_its_guard(
    router: Router, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"hanging-{way}"
    request_id = register(router, trouble_point(name, way))
    before = router.route(make_record(request_id, name, position=1))
    with caplog.at_level(logging.ERROR):
        hung = router.route(make_record(request_id, name, position=TRIGGER))
        after = route_until_answered(router, request_id, name)
    result = router.end_request(request_id)[name]

    assert before is not None
    assert hung is not None
    assert hung.action is ProbeAction.ABORT
    assert hung.metadata == {
        "intervention_fallback": True,
        "reason": "timeout",
        "extraction_point_name": name,
        "timeout_ms": BOUND_MS,
    }
    assert after.metadata["pid"] != before.metadata["pid"]
    coverage = result.metadata["coverage"]
    assert coverage["reasons"].count("probe_timeout") == 1
    assert (coverage["restarts"], coverage["complete"]) == (1, False)
    assert result.metadata["fallbacks"]["timeout"] >= 1
    log = "\n".join(record.getMessage() for record in caplog.records)
    assert "is ended, its stack was" in log
    assert ("gate_probes.py" in log) or way == "stop"


@pytest.mark.parametrize("way", DYING)
def test_a_probe_that_ends_its_process_is_answered_for_at_once(router: Router, way: str) -> None:
    request_id = register(router, gate_point("deadly", "trouble", timeout_ms=30_000, probe_args={"way": way}))

    died = router.route(make_record(request_id, "deadly", position=TRIGGER))
    after = route_until_answered(router, request_id, "deadly")
    result = router.end_request(request_id)["deadly"]

    assert died is not None
    assert (died.action, died.metadata["reason"]) == (ProbeAction.ABORT, "worker_died")
    assert after.metadata["position"] == 7
    coverage = result.metadata["coverage"]
    assert (coverage["lost"], coverage["restarts"], coverage["reasons"]) == (1, 1, ["worker_died"])


def test_kill_9_of_the_guard_at_any_moment_ends_the_wait(router: Router) -> None:
    answers: list[Any] = []
    for turn in range(9):
        request_id = register(router, gate_point(f"killed-{turn % 3}", "quiet", timeout_ms=30_000))
        name = f"killed-{turn % 3}"
        pid = guard_pid(router, name)
        killing = threading.Timer(0.0006 * turn, os.kill, (pid, signal.SIGKILL))
        killing.start()
        answers += [router.route(make_record(request_id, name, position=position)) for position in range(6)]
        killing.join()
        router.end_request(request_id)
        # Deaths of one guard are spread over three, so that none is suspended for dying often.
        router._supervision.get()._healths._by_key.clear()

    assert len(answers) == 54
    assert {answer.metadata["reason"] for answer in answers if answer is not None} <= {"worker_died", "closed"}


def test_a_stopped_guard_is_replaced_though_no_probe_runs_in_it(router: Router) -> None:
    request_id = register(router, trouble_point("stopped", "sleep"))
    pid = guard_pid(router, "stopped")
    assert router.route(make_record(request_id, "stopped", position=1)) is not None
    os.kill(pid, signal.SIGSTOP)

    stopped = router.route(make_record(request_id, "stopped", position=2))
    after = route_until_answered(router, request_id, "stopped")
    router.end_request(request_id)

    assert stopped is not None
    assert stopped.metadata["reason"] == "timeout"
    assert after.metadata["pid"] != pid


def test_a_hung_probe_is_its_neighbours_restart_and_not_their_end(router: Router) -> None:
    hung, neighbour = register(router, trouble_point("hung", "loop")), register(router, trouble_point("hung", "loop"))
    assert router.route(make_record(neighbour, "hung", position=1)) is not None
    router.route(make_record(hung, "hung", position=TRIGGER))

    after = route_until_answered(router, neighbour, "hung")
    results = [router.end_request(request_id)["hung"] for request_id in (hung, neighbour)]

    assert after.metadata["position"] == 7
    assert "neighbour" in results[1].metadata["coverage"]["reasons"]
    assert results[1].metadata["coverage"]["restarts"] == 1
    assert 7 in [position for position, _ in results[1].verdict[1:]]


def test_a_guard_that_imports_what_a_probe_needs_is_not_taken_for_stuck(router: Router) -> None:
    quick = register(router, trouble_point("imports", "sleep"))
    pid = guard_pid(router, "imports")
    slow = gate_point("imports", "loaded", timeout_ms=BOUND_MS, probe_timeout_s=HUNG_S, probe_args=SLOW_ARGS)
    registering = threading.Thread(target=register, args=(router, slow))
    registering.start()
    answers: list[Any] = []
    while registering.is_alive():
        answers.append(router.route(make_record(quick, "imports", position=1)))
    registering.join()

    after = route_until_answered(router, quick, "imports")

    assert "timeout" in {answer.metadata.get("reason") for answer in answers}
    assert after.metadata["pid"] == pid
    assert router.end_request(quick)["imports"].metadata["coverage"]["restarts"] == 0


def test_a_start_that_hangs_costs_the_other_requests_a_restart(router: Router, tmp_path: Path) -> None:
    point = gate_point("starts", "gate", probe_timeout_s=HUNG_S)
    other = register(router, point)
    pid = guard_pid(router, "starts")
    hung = gate_point("starts", "slow_start", probe_timeout_s=HUNG_S, probe_args={"folder": str(tmp_path)})
    registering = threading.Thread(target=register, args=(router, hung))
    registering.start()
    assert wait_until((tmp_path / "inside").exists)

    assert wait_until(lambda: guard_pid(router, "starts") != pid)
    (tmp_path / "gate").touch()
    registering.join()
    after = route_until_answered(router, other, "starts")

    assert after.metadata["pid"] != pid
    assert "neighbour" in router.end_request(other)["starts"].metadata["coverage"]["reasons"]


def test_on_timeout_continue_lets_the_generation_go_on(router: Router) -> None:
    request_id = register(router, trouble_point("lenient", "sleep", on_timeout=TimeoutAction.CONTINUE))

    hung = router.route(make_record(request_id, "lenient", position=TRIGGER))
    router.end_request(request_id)

    assert hung is not None
    assert (hung.action, hung.metadata["reason"]) == (ProbeAction.CONTINUE, "timeout")


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, TimeoutError])
def test_what_a_probe_raises_is_answered_for_and_harms_neither_guard_nor_neighbour(
    router: Router, error: type[BaseException]
) -> None:
    failing = register(router, gate_point("mixed", "raising", probe_args={"error": error}))
    neighbour = register(router, gate_point("mixed", "gate"))
    pid = guard_pid(router, "mixed")

    raised = router.route(make_record(failing, "mixed", position=1))
    fine = router.route(make_record(failing, "mixed", position=2))
    beside = router.route(make_record(neighbour, "mixed", position=3))
    result = router.end_request(failing)["mixed"]
    router.end_request(neighbour)

    assert raised is not None
    assert raised.action is ProbeAction.ABORT
    assert raised.metadata["reason"] == "exception"
    assert (raised.metadata["error_type"], raised.metadata["error"]) == (error.__name__, "at 1")
    assert [each.metadata["pid"] for each in (fine, beside) if each is not None] == [pid, pid]
    coverage = result.metadata["coverage"]
    assert (coverage["errors"], coverage["restarts"], coverage["reasons"]) == (1, 0, ["probe_error"])


def test_one_requests_bug_reaches_no_other_row(router: Router) -> None:
    good = [register(router, gate_point("mixed", "gate"), make_point("plain")) for _ in range(2)]
    bad = register(router, gate_point("mixed", "raising"))
    hung = register(router, trouble_point("hung-row", "sleep"))
    rows = np.zeros((4, 2), dtype=np.float32)
    entries = [
        (good[0], "mixed", 1, True),
        (bad, "mixed", 1, True),
        (hung, "hung-row", TRIGGER, True),
        (good[1], "mixed", 1, True),
    ]

    signals = router.route_rows(rows, 4, "mlp_out", entries)
    for request_id in (*good, bad, hung):
        router.end_request(request_id)

    assert [None if each is None else each.metadata.get("reason") for each in signals] == [
        None,
        "exception",
        "timeout",
        None,
    ]


@pytest.mark.parametrize("values", [[float("nan"), 1.0], [float("inf"), float("-inf")]])
def test_a_score_that_is_no_number_aborts_at_a_gate(router: Router, values: list[float]) -> None:
    request_id = register(router, gate_point("score", "mean"))

    low = router.route(make_record(request_id, "score", values=[0.1]))
    nan = router.route(make_record(request_id, "score", values=values))
    verdict = router.end_request(request_id)["score"].verdict

    assert low is not None
    assert low.action is ProbeAction.CONTINUE
    assert nan is not None
    assert (nan.action, nan.metadata["nan"]) == (ProbeAction.ABORT, True)
    assert verdict["flagged"]


def test_a_record_that_fits_no_ring_is_answered_for(router: Router) -> None:
    request_id = register(router, gate_point("odd"))

    refused = router.route(make_record(request_id, "odd", values=object()))
    result = router.end_request(request_id)["odd"]

    assert refused is not None
    assert (refused.action, refused.metadata["reason"]) == (ProbeAction.ABORT, "not_taken")
    assert result.metadata["coverage"]["reasons"] == ["unsupported"]


def test_ctrl_c_ends_the_wait_and_leaves_the_gate_usable(router: Router) -> None:
    point = gate_point("long", "trouble", timeout_ms=60_000, probe_timeout_s=60.0, probe_args={"way": "sleep"})
    request_id = register(router, point)
    pid = guard_pid(router, "long")
    threading.Timer(0.1, _thread.interrupt_main).start()

    with pytest.raises(KeyboardInterrupt):
        router.route(make_record(request_id, "long", position=TRIGGER))
    os.kill(pid, signal.SIGKILL)
    after = route_until_answered(router, request_id, "long")
    router.end_request(request_id)

    assert after.metadata["position"] == 7


def test_a_gate_that_lost_its_guard_twice_answers_by_its_policy_and_says_so(router: Router) -> None:
    request_id = register(router, gate_point("twice", "trouble", timeout_ms=30_000, probe_args={"way": "exit"}))
    answers = [router.route(make_record(request_id, "twice", position=TRIGGER)) for _ in range(2)]

    def is_closed() -> bool:
        answers.append(router.route(make_record(request_id, "twice", position=1)))
        return answers[-1] is not None and answers[-1].metadata["reason"] == "closed"

    assert wait_until(is_closed)
    failures = router.breakers()["twice"].counts.failures
    assert is_closed()
    result = router.end_request(request_id)["twice"]

    assert {answer.action for answer in answers if answer is not None} == {ProbeAction.ABORT}
    assert result.verdict is None
    assert (result.metadata["coverage"]["restarts"], result.metadata["coverage"]["complete"]) == (2, False)
    assert router.breakers()["twice"].counts.failures == failures  # one request's end says nothing about the point


def test_the_number_of_guards_is_bounded(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    register(router, gate_point("last"))
    monkeypatch.setattr(guards, "GUARD_COUNT_MAX", 1)

    with pytest.raises(RouterError, match="at most 1 points of a router have one"):
        register(router, gate_point("beyond"))
    register(router, gate_point("last"))


def test_without_a_guard_a_request_is_registered_and_its_policy_answers(router: Router) -> None:
    point = gate_point("dead", "trouble", timeout_ms=BOUND_MS, probe_args={"way": "exit"})
    for _ in range(2):  # three deaths suspend the point
        request_id = register(router, point)
        for _ in range(2):
            router.route(make_record(request_id, "dead", position=TRIGGER))
        router.end_request(request_id)
    request_id = register(router, point)
    answer = router.route(make_record(request_id, "dead", position=1))
    result = router.end_request(request_id)["dead"]
    with pytest.raises(WorkerError):
        router.register_request("strict", [point], context("strict"), wait_s=1.0)

    assert answer is not None
    assert answer.metadata["reason"] == "closed"
    assert "worker_died" in result.metadata["coverage"]["reasons"]
    assert not result.metadata["coverage"]["complete"]


def test_shutdown_ends_a_hung_guard_and_the_wait_for_it() -> None:
    point = gate_point("hung", "trouble", timeout_ms=60_000, probe_timeout_s=60.0, probe_args={"way": "loop"})
    router = Router(GATES, worker_pool_size=1)
    request_id = register(router, point)
    guard = psutil.Process(guard_pid(router, "hung"))
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(router.route(make_record(request_id, "hung", position=TRIGGER)))
    )
    waiting.start()
    lane = router._supervision.get()._guards.lanes[0]
    assert wait_until(lambda: lane.memory.activity()[0] != 0)

    router.shutdown(timeout=1.0)
    waiting.join()

    assert answers[0].metadata["reason"] == "worker_died"
    assert wait_until(lambda: not guard.is_running())


def test_a_gate_that_says_what_is_no_signal_is_answered_for(router: Router) -> None:
    request_id = register(router, gate_point("word", "wordy"))

    answer = router.route(make_record(request_id, "word"))
    router.end_request(request_id)

    assert answer is not None
    assert (answer.action, answer.metadata["error_type"]) == (ProbeAction.ABORT, "ProbingTypeError")


def test_a_start_may_take_longer_than_a_record(router: Router) -> None:
    point = gate_point("heavy", "heavy", timeout_ms=BOUND_MS, probe_args={"start_s": 1.5})
    request_id = register(router, point)

    answer = route_until_answered(router, request_id, "heavy")
    result = router.end_request(request_id)["heavy"]

    assert answer.metadata["position"] == 7
    assert result.metadata["coverage"]["restarts"] == 0
