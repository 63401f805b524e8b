"""Requests end while their worker is killed at any moment: each has one result that adds up, and no end hangs."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest
import worker_probes as probes
from worker_rig import coverage, deadline, feed, plan, wait_for

from undercurrent.workers import Supervisor, supervisor

RECORDS = 5


def _kill_soon(pid: int, delay_s: float) -> threading.Timer:
    killer = threading.Timer(delay_s, os.kill, (pid, signal.SIGKILL))
    killer.start()
    return killer


@pytest.mark.timeout(600)  # workers run at nice 19: on busy CPUs each new one takes seconds to start
@pytest.mark.parametrize("kills", [30, pytest.param(600, marks=pytest.mark.slow)])
def test_every_end_has_a_result_that_adds_up(kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("UNDERCURRENT_TEST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed}")  # shown when the test fails
    chance = random.Random(seed)
    monkeypatch.setattr(supervisor, "restart_delay_s", lambda deaths, now: 0.0)  # else the pauses are most of the test
    made = Supervisor(worker_pool_size=1)
    whole = 0
    try:
        made.prewarm([plan(probes.Recorder)])
        for number in range(kills):
            made._healths._by_key.clear()  # a point whose workers die like this would be suspended
            bindings = [made.open_binding(plan(probes.Recorder, f"r{number}.{index}")) for index in range(3)]
            lane = bindings[0].lane
            for binding in bindings:
                feed(binding, RECORDS)
            if chance.random() < 0.75:
                wait_for(lambda: all(b.statistics().consumed == RECORDS for b in bindings))  # noqa: B023
            wait_for(lambda: lane.pid != 0)  # noqa: B023
            # Some kills come before the end and some after the results, however fast or slow the machine is.
            moment = ("before", "after", "at random", "at random")[number % 4]
            if moment == "before":
                os.kill(lane.pid, signal.SIGKILL)
            killer = _kill_soon(lane.pid, chance.uniform(0.0, 0.002)) if moment == "at random" else None
            for binding in bindings:
                binding.end()
            results = [binding.wait_result(deadline()) for binding in bindings]
            if moment == "after":
                os.kill(lane.pid, signal.SIGKILL)
            if killer is not None:
                killer.join()
            for result in results:
                found = coverage(result)
                assert "drain_timeout" not in found["reasons"], found
                assert found["routed"] == RECORDS == found["seen"] + found["dropped"] + found["lost"], found
                assert found["complete"] == (found["reasons"] == [])
                if found["complete"]:
                    assert len(result.verdict["positions"]) == RECORDS
                    whole += 1
            wait_for(lambda: lane.state == "running" and lane.death_count > number)  # noqa: B023
            assert not lane.bindings
    finally:
        made.close(wait=True, deadline=deadline())
    print(f"{kills} kills, {3 * kills} results, {whole} of them complete")
    assert 0 < whole < 3 * kills, "the kills were expected to meet some requests and to miss some"
