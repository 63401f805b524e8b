"""Bounded inline points: `route()` returns the probe's answer, in time, from a guard of the point's own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from gate_probes import GATES, TRIGGER, gate_point, guard_pid
from router_points import REGISTRY, ListSink, context, fresh_id, make_point, make_record, wait_until

from undercurrent.core import ProbeAction
from undercurrent.router import InterventionMode, InterventionPolicy, Router, RouterError, TimeoutAction
from undercurrent.spec import OnError, Sample, SampleBy
from undercurrent.workers import guard_worker


@pytest.fixture(name="router", scope="module", params=["process", "thread"])
def _router(request: pytest.FixtureRequest) -> Iterator[Router]:
    with Router({**REGISTRY, **GATES}, worker_mode=request.param, worker_pool_size=2) as router:
        yield router


@pytest.fixture(name="processes", scope="module")
def _processes() -> Iterator[Router]:
    with Router({**REGISTRY, **GATES}, worker_pool_size=1) as router:
        yield router


def register(router: Router, *points: Any) -> str:
    request_id = fresh_id()
    router.register_request(request_id, points, context(request_id))
    return request_id


def test_the_guards_answer_is_the_return_value_of_route(router: Router) -> None:
    request_id = register(router, gate_point(), gate_point("calm", "quiet"))

    loud = [router.route(make_record(request_id, position=position)) for position in range(5)]
    calm = router.route(make_record(request_id, "calm"))
    results = router.end_request(request_id)

    assert [signal.metadata["position"] for signal in loud if signal is not None] == list(range(5))
    assert {signal.action for signal in loud if signal is not None} == {ProbeAction.FLAG}
    assert calm is None
    assert [position for position, _ in results["guard"].verdict[1:]] == list(range(5))
    assert results["guard"].metadata["coverage"] == {
        "routed": 5,
        "seen": 5,
        "dropped": 0,
        "errors": 0,
        "lost": 0,
        "restarts": 0,
        "complete": True,
        "reasons": [],
    }
    assert list(results) == ["guard", "calm"]


def test_an_answer_that_no_cell_holds_comes_whole(router: Router) -> None:
    request_id = register(router, gate_point(probe_type="talkative"))

    signals = [router.route(make_record(request_id, position=position)) for position in (3, 4)]
    router.end_request(request_id)

    for position, signal in zip((3, 4), signals, strict=True):
        assert signal is not None
        assert np.array_equal(signal.metadata["logits"], np.arange(4096, dtype=np.float32) + position)
        assert signal.metadata["why"] == "because " * 500
        assert signal.confidence == 0.75


def test_what_a_caller_does_while_its_guard_yields_is_no_time_of_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = 0

    def yield_for_a_second() -> None:
        nonlocal clock_ns
        clock_ns += 10**9

    monkeypatch.setattr(guard_worker, "time", SimpleNamespace(monotonic_ns=lambda: clock_ns))
    monkeypatch.setattr(guard_worker.os, "sched_yield", yield_for_a_second)
    with Router({**REGISTRY, **GATES}, worker_mode="thread") as router:
        request_id = register(router, gate_point())
        for position in range(3):
            router.route(make_record(request_id, position=position))
        router.end_request(request_id)
        (counted,) = router.totals().points
    assert clock_ns == 3 * 10**9
    assert (counted.probe_call.count, counted.probe_call.sum_s) == (3, 0.0)


def test_the_routers_default_policy_bounds_points_that_say_nothing() -> None:
    policy = InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, timeout_ms=10_000)
    with Router({**REGISTRY, **GATES}, default_intervention_policy=policy) as router:
        request_id = register(router, make_point(probe_type="gate"))
        signal = router.route(make_record(request_id))
        assert signal is not None
        assert signal.metadata["pid"] != os.getpid()

        with pytest.raises(RouterError, match="cannot block until a signal"):
            register(router, make_point("watch", "async"))
        with pytest.raises(RouterError, match="`on_error` goes with an unbounded inline point"):
            register(router, make_point(probe_type="gate", on_error=OnError.ABORT))


def test_reject_mode_runs_the_probe_on_the_callers_thread() -> None:
    with Router(GATES) as router:
        request_id = register(router, make_point(probe_type="gate", intervention=InterventionPolicy()))
        signal = router.route(make_record(request_id))
        assert signal is not None
        assert signal.metadata["pid"] == os.getpid()
        assert router._supervision.supervisor is None
        assert router.breakers() == {}


def test_each_bounded_point_has_one_guard_for_all_requests(processes: Router) -> None:
    pids: dict[str, set[int]] = {"one": set(), "two": set()}
    for _ in range(3):
        request_id = register(processes, gate_point("one"), gate_point("two"), make_point("watch", "async"))
        for name, found in pids.items():
            signal = processes.route(make_record(request_id, name))
            assert signal is not None
            found.add(signal.metadata["pid"])
        watch = processes.end_request(request_id)["watch"]
        assert watch.metadata["pid"] not in pids["one"] | pids["two"]

    assert [len(found) for found in pids.values()] == [1, 1]
    assert pids["one"] != pids["two"]
    assert os.getpid() not in pids["one"] | pids["two"]


def test_a_guard_has_the_engines_priority_and_cpus_and_sleeps_when_idle(processes: Router) -> None:
    request_id = register(processes, gate_point(probe_type="quiet"))
    pid = guard_pid(processes)
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)
    processes.route(make_record(request_id))
    supervisor = processes._supervision.get()
    lane = next(lane for lane in supervisor._guards.lanes if "guard" in lane.point_names)

    assert wait_until(lambda: lane.memory.consumer_state == "parked")
    assert psutil.Process(pid).num_threads() == 1
    assert processes.end_request(request_id)["guard"].verdict == ([10], False, os.getpriority(os.PRIO_PROCESS, 0))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is nowhere to go")
def test_a_guard_stays_with_its_caller_until_it_has_other_work(processes: Router) -> None:
    request_id = register(processes, gate_point())
    pid, everywhere = guard_pid(processes), os.sched_getaffinity(0)

    def route_from_one_cpu() -> None:
        os.sched_setaffinity(0, {min(everywhere)})
        for position in range(20):
            processes.route(make_record(request_id, position=position))

    with ThreadPoolExecutor(1) as executor:
        executor.submit(route_from_one_cpu).result(60)

    assert wait_until(lambda: os.sched_getaffinity(pid) == {min(everywhere)})
    other_id = register(processes, gate_point())
    assert os.sched_getaffinity(pid) == everywhere
    for each in (request_id, other_id):
        processes.end_request(each)


def test_prewarm_starts_guards_before_the_first_request() -> None:
    with Router(GATES) as router:
        router.prewarm([gate_point("one"), gate_point("two", "quiet")])
        before = {status.pid for status in router._supervision.get().workers() if status.state == "running"}
        request_id = register(router, gate_point("one"))
        signal = router.route(make_record(request_id, "one"))

    assert len(before) == 2
    assert signal is not None
    assert signal.metadata["pid"] in before


def test_threads_of_one_request_take_turns_at_its_guard(router: Router) -> None:
    request_id = register(router, gate_point(probe_type="quiet"))
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda position: router.route(make_record(request_id, position=position)), range(40))
        )
    result = router.end_request(request_id)["guard"]

    positions, was_shared, _ = result.verdict
    assert answers == [None] * 40
    assert sorted(positions) == list(range(40))
    assert not was_shared
    assert result.metadata["coverage"]["complete"]


def test_healthy_gates_answer_while_async_points_keep_every_worker_busy(processes: Router, tmp_path: Path) -> None:
    files = {"gate": str(tmp_path / "gate"), "inside": str(tmp_path / "in")}
    busy = make_point("watch", "async", probe_type="gated", probe_args=files)
    held = [register(processes, busy) for _ in range(3)]
    for request_id in held:
        processes.route(make_record(request_id, "watch"))
    assert wait_until((tmp_path / "in").exists)
    request_id = register(processes, gate_point(timeout_ms=10_000))

    signals = [processes.route(make_record(request_id, position=position)) for position in range(20)]
    (tmp_path / "gate").touch()
    for each in (*held, request_id):
        processes.end_request(each)

    assert [signal.metadata.get("position") for signal in signals if signal is not None] == list(range(20))
    assert processes.breakers()["guard"].failures == 0


def test_a_slow_start_of_one_gate_stalls_no_other_request(router: Router, tmp_path: Path) -> None:
    other = register(router, gate_point("other"), make_point("plain"))
    slow = gate_point("slow", "slow_start", probe_args={"folder": str(tmp_path)})
    registering = threading.Thread(target=register, args=(router, slow))
    registering.start()
    assert wait_until((tmp_path / "inside").exists)

    gated = router.route(make_record(other, "other"))
    plain = router.route(make_record(other, "plain"))
    assert registering.is_alive()
    (tmp_path / "gate").touch()
    registering.join()

    assert gated is not None
    assert gated.metadata["position"] == 10
    assert plain is None


def test_a_gate_that_does_not_start_leaves_nothing_registered(router: Router) -> None:
    point = gate_point("broken", "failing", probe_args={"where": "on_start"})
    request_id = fresh_id()

    with pytest.raises(ValueError, match="in on_start"):
        router.register_request(request_id, [gate_point(), point], context(request_id))

    router.register_request(request_id, [gate_point()], context(request_id))
    assert router.route(make_record(request_id)) is not None
    router.end_request(request_id)


def test_a_failing_on_end_of_a_gate_keeps_the_other_results(router: Router) -> None:
    request_id = register(router, gate_point("broken", "failing", probe_args={"where": "on_end"}), gate_point())
    router.route(make_record(request_id, "broken", position=2))
    router.route(make_record(request_id))

    results = router.end_request(request_id)

    assert results["broken"].verdict is None
    assert results["broken"].metadata["coverage"]["reasons"] == ["probe_error"]
    assert len(results["guard"].verdict) == 2


def test_rows_of_many_requests_are_asked_together(router: Router) -> None:
    request_ids = [register(router, gate_point(), make_point("plain")) for _ in range(6)]
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    entries = [(request_id, "guard", 10 + index, True) for index, request_id in enumerate(request_ids)]

    signals = router.route_rows(rows, 4, "mlp_out", entries)
    results = [router.end_request(request_id)["guard"].verdict[1:] for request_id in request_ids]

    assert [signal.metadata["position"] for signal in signals if signal is not None] == list(range(10, 16))
    assert results == [[(10 + index, rows[index].tolist())] for index in range(6)]


def test_rows_of_one_request_keep_their_order(router: Router) -> None:
    request_id = register(router, gate_point(), gate_point("other", "quiet"))
    rows = np.zeros((5, 2), dtype=np.float32)
    entries = [(request_id, name, position, False) for position in range(5) for name in ("guard", "other")]

    signals = router.route_rows(rows, 4, "mlp_out", [(*entry, entry[2]) for entry in entries])
    results = router.end_request(request_id)

    assert [signal is not None for signal in signals] == [True, False] * 5
    assert [position for position, _ in results["guard"].verdict[1:]] == list(range(5))
    assert results["other"].verdict[0] == list(range(5))


def test_a_sampled_gate_reads_its_part_of_the_traffic(router: Router) -> None:
    sample = Sample(0.5, SampleBy.RECORD)
    request_id = register(router, gate_point(sample=sample))

    signals = [router.route(make_record(request_id, position=position)) for position in range(40)]
    result = router.end_request(request_id)["guard"]

    kept = [position for position in range(40) if sample.keeps_record(request_id, position)]
    assert [signal.metadata["position"] for signal in signals if signal is not None] == kept
    assert result.metadata["coverage"]["reasons"] == ["sampled"]


def test_sinks_get_what_gates_say_only_where_they_ask_for_inline_points(router: Router) -> None:
    plain, inline = ListSink(), ListSink()
    router.add_log_sink(plain)
    router.add_log_sink(inline, inline=True)
    request_id = register(router, gate_point())
    router.route(make_record(request_id))
    router.end_request(request_id)
    router.attach_log_sink(None)

    assert plain.events == []
    assert [event[:3] for event in inline.events] == [
        ("signal", request_id, "guard"),
        ("result", request_id, "guard"),
    ]


def test_a_gates_probe_cannot_be_reached_and_has_no_queue(router: Router) -> None:
    request_id = register(router, gate_point())

    with pytest.raises(RouterError, match="lives in a worker"):
        router.get_probe(request_id, "guard")
    with pytest.raises(RouterError, match="has no queue"):
        router.get_metrics(request_id, "guard")
    router.end_request(request_id)


def test_a_late_answer_is_nobody_elses(router: Router, tmp_path: Path) -> None:
    request_id = fresh_id()
    point = gate_point(
        "late",
        "slow",
        timeout_ms=40,
        on_timeout=TimeoutAction.CONTINUE,
        probe_timeout_s=60.0,
        probe_args={"folder": str(tmp_path)},
    )
    router.register_request(request_id, [point], context(request_id))
    late = router.route(make_record(request_id, "late", position=TRIGGER))
    assert wait_until((tmp_path / "inside").exists)
    (tmp_path / "gate").touch()
    own = []
    until = time.monotonic() + 20
    while not own and time.monotonic() < until:
        signal = router.route(make_record(request_id, "late", position=7))
        assert signal is not None
        own = [signal] if "reason" not in signal.metadata else []
    result = router.end_request(request_id)["late"]

    assert late is not None
    assert late.action is ProbeAction.CONTINUE
    assert late.metadata["reason"] == "timeout"
    assert own[0].metadata["position"] == 7
    assert TRIGGER in [position for position, _ in result.verdict[1:]]
    assert "probe_timeout" in result.metadata["coverage"]["reasons"]
    assert result.metadata["fallbacks"]["timeout"] >= 1


@pytest.mark.usefixtures("guards_with_torch")
def test_a_record_of_any_kind_arrives_as_it_was(router: Router) -> None:
    torch = pytest.importorskip("torch")
    request_id = register(router, gate_point("tensors"))
    for tensor in (np.arange(4.0), [1.5, 2.5], torch.arange(4, dtype=torch.bfloat16)):
        signal = router.route(make_record(request_id, "tensors", values=tensor))
        assert signal is not None
        assert "reason" not in signal.metadata

    verdict = router.end_request(request_id)["tensors"].verdict

    assert [values for _, values in verdict[1:]] == [[0.0, 1.0, 2.0, 3.0], [1.5, 2.5], [0.0, 1.0, 2.0, 3.0]]
