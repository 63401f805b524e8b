"""Deaths, forks and open breakers: what was counted stays counted, once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fork_answers import answer_of_child
from router_points import (
    REGISTRY,
    Gate,
    context,
    fresh_id,
    make_point,
    make_record,
    register_gated,
    wait_until,
)

from undercurrent.ipc.page import ControlPage, PageReader
from undercurrent.router import InterventionMode, InterventionPolicy, PointMetrics, Router, TimeoutAction


def of(router: Router, name: str = "watch") -> PointMetrics:
    found = router.totals().point(name)
    assert found is not None
    assert found.routed == found.consumed + found.dropped_total + found.lost + found.waiting + found.in_hand
    return found


def kill_worker(router: Router) -> None:
    """Kills the one worker, and returns when another one runs."""
    supervisor = router._supervision.supervisor
    assert supervisor is not None
    (worker,) = supervisor.workers()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    assert wait_until(lambda: supervisor.workers()[0].pid not in (None, worker.pid))


def test_a_worker_s_death_is_counted_and_so_is_what_it_held(gate: Gate) -> None:
    with Router(REGISTRY) as router:
        request_id = register_gated(router, gate)
        for position in range(1, 4):
            router.route(make_record(request_id, "watch", position=position))
        kill_worker(router)
        gate.open()
        router.end_request(request_id)
        found, totals = of(router), router.totals()

    assert (found.routed, found.lost, found.consumed, found.restarts) == (4, 1, 3, 1)
    assert found.seen == 3
    assert found.results["partial"] == 1
    assert totals.worker_restarts == {("uc-0-watch", "died"): 1}


def test_histograms_survive_a_worker_up_to_its_last_report(tmp_path: Path) -> None:
    with Router(REGISTRY) as router:
        request_id = fresh_id()
        router.register_request(request_id, [make_point("watch", "async", probe_type="flagging")], context(request_id))
        for position in range(6):
            router.route(make_record(request_id, "watch", position=position))
        assert router.flush(30)
        kill_worker(router)
        after_death = of(router)
        router.route(make_record(request_id, "watch", position=6))
        router.end_request(request_id)
        at_the_end = of(router)

    assert after_death.probe_call.count == after_death.queue_wait.count == after_death.signals["flag"] == 6
    assert at_the_end.probe_call.count == at_the_end.signals["flag"] == at_the_end.seen == 7


def test_a_binding_closed_for_its_second_death_counts_no_record_twice(tmp_path: Path) -> None:
    with Router(REGISTRY) as router:
        request_id = fresh_id()
        router.register_request(request_id, [make_point("watch", "async")], context(request_id))
        for first in (0, 5):
            for position in range(first, first + 5):
                router.route(make_record(request_id, "watch", position=position))
            assert router.flush(30)
            kill_worker(router)
        result = router.end_request(request_id)["watch"]
        found = of(router)

    assert result.metadata["coverage"]["reasons"] == ["worker_died"]
    assert (found.routed, found.seen, found.restarts) == (10, 10, 2)


def test_a_hung_probe_is_a_timeout_and_a_restart(tmp_path: Path) -> None:
    with Router(REGISTRY) as router:
        gate = Gate(tmp_path)
        request_id = register_gated(router, gate, probe_timeout_s=0.2)
        assert wait_until(lambda: of(router).timeouts == 1)
        gate.open()
        router.end_request(request_id)
        restarts = router.totals().worker_restarts

    assert restarts == {("uc-0-watch", "hang"): 1}


def test_a_point_whose_workers_keep_dying_is_counted_as_suspended(tmp_path: Path) -> None:
    with Router(REGISTRY) as router:
        for _ in range(3):
            router.register_request(request_id := fresh_id(), [make_point("watch", "async")], context(request_id))
            router.route(make_record(request_id, "watch"))
            assert router.flush(30)
            kill_worker(router)
            router.end_request(request_id)
        assert wait_until(lambda: of(router).suspensions == 1)


def test_a_forked_child_begins_at_zero_and_counts_its_own() -> None:
    with Router(REGISTRY) as router:
        points = [make_point("watch", "async"), make_point("guard", probe_type="flagging")]
        router.register_request("req", points, context("req"))
        for position in range(3):
            router.route(make_record("req", "watch", position=position))
            router.route(make_record("req", "guard", position=position))

        def count_in_child() -> Any:
            before = [of(router, name).routed for name in ("watch", "guard")]
            for name in ("watch", "guard", "guard"):
                router.route(make_record("req", name))
            router.end_request("req")
            totals = router.totals()
            guard = of(router, "guard")
            return {
                "before": before,
                "routed": [of(router, "watch").routed, guard.routed],
                "forked": of(router, "watch").dropped["forked"],
                "flags": guard.signals["flag"],
                "requests": [totals.requests_begun, totals.requests_ended, totals.requests_live],
            }

        child = answer_of_child(count_in_child)
        parent = [of(router, name).routed for name in ("watch", "guard")]
        router.end_request("req")

    assert child == {"before": [0, 0], "routed": [1, 2], "forked": 1, "flags": 2, "requests": [1, 1, 0]}
    assert parent == [3, 3]


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_an_open_breaker_is_shown_and_what_it_answers_is_counted(mode: str, gate: Gate) -> None:
    policy = InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, 50, TimeoutAction.ABORT)
    point = make_point("gate", probe_type="gated", probe_args=gate.args, intervention=policy)
    with Router(REGISTRY, worker_mode=mode, circuit_breaker_threshold=1) as router:
        router.register_request("req", [point], context("req"), wait_s=30)
        for position in range(3):
            router.route(make_record("req", "gate", position=position))
        totals = router.totals()
        gate.open()
        router.end_request("req")
        found = of(router, "gate")

    assert totals.breakers["gate"].state == "open"
    assert totals.timeouts == 1
    assert totals.aborts == 3
    assert found.key.mode == "inline"
    assert found.dropped["unasked"] == 2


def test_control_page_keeps_what_ended_requests_and_dead_workers_counted() -> None:
    with Router(REGISTRY) as router:
        for _ in range(2):
            router.register_request(request_id := fresh_id(), [make_point("watch", "async")], context(request_id))
            for position in range(5):
                router.route(make_record(request_id, "watch", position=position))
            assert router.flush(30)
            kill_worker(router)
            router.end_request(request_id)

        def shows(*counters: int) -> bool:
            for page in ControlPage.list_instances():
                if page.pid == os.getpid():
                    with PageReader(page.instance) as reader:
                        return any(row.counters[:5] == counters for row in reader.rows("workers"))
            return False

        assert wait_until(lambda: shows(0, 10, 0, 0, 2))  # bindings, activations, signals, errors, restarts
