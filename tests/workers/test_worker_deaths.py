"""Workers that are killed, crash, hang or die often: what was routed is accounted for, and the next worker goes on."""

from __future__ import annotations

import logging
import os

import numpy as np
import psutil
import pytest
import worker_probes as probes
from worker_rig import coverage, deadline, feed, finish, plan, record, wait_for

from undercurrent.workers import Supervisor


def test_kill_9_of_a_worker_loses_only_what_it_held(processes: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    binding = processes.open_binding(plan(probes.Recorder))
    feed(binding, 10)
    processes.flush(deadline())
    pid = processes.workers()[0].pid
    assert pid is not None
    with caplog.at_level(logging.CRITICAL):
        os.kill(pid, 9)
        feed(binding, 10, first=10)
        result = finish(binding)
    found = coverage(result)
    assert result.verdict["pid"] != pid
    assert found["routed"] == 20
    assert found["restarts"] == 1
    assert "worker_died" in found["reasons"]
    assert not found["complete"]


@pytest.mark.parametrize("way", ["exit", "segfault"])
def test_a_probe_that_ends_its_process_does_not_end_its_neighbours(processes: Supervisor, way: str) -> None:
    killer = processes.open_binding(plan(probes.Killer, probe_kwargs={"way": way}))
    killer.accept(record(1, np.zeros(4)))
    processes.flush(deadline())
    killer.accept(record(666, np.zeros(4)))
    wait_for(lambda: processes.workers()[0].deaths == 1)
    killer.accept(record(2, np.zeros(4)))
    result = finish(killer)
    found = coverage(result)
    assert result.verdict["positions"] == [2]
    assert (found["routed"], found["seen"], found["lost"], found["restarts"]) == (3, 2, 1, 1)


def test_a_binding_that_loses_its_worker_twice_is_closed(processes: Supervisor) -> None:
    binding = processes.open_binding(plan(probes.Killer))
    for deaths in (1, 2):
        binding.accept(record(666, np.zeros(4)))
        wait_for(lambda deaths=deaths: processes.workers()[0].deaths == deaths)
    wait_for(lambda: binding.is_finished)
    binding.accept(record(3, np.zeros(4)))
    result = finish(binding)
    assert result.verdict is None
    assert coverage(result)["restarts"] == 2
    assert coverage(result)["routed"] == 3


def test_three_deaths_suspend_the_point_and_say_so(processes: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    factory_plan = plan(probes.Killer)
    for deaths in (1, 2, 3):
        binding = processes.open_binding(factory_plan)
        binding.accept(record(666, np.zeros(4)))
        wait_for(lambda deaths=deaths: processes.workers()[0].deaths == deaths)
        finish(binding)
    suspended = processes.open_binding(factory_plan)
    suspended.accept(record(1, np.zeros(4)))
    result = finish(suspended)
    assert result.verdict is None
    assert "worker_died" in coverage(result)["reasons"]
    assert any("suspended" in entry.message for entry in caplog.records)


@pytest.mark.parametrize("way", ["loop", "sleep"])
def test_a_hung_probe_is_ended_with_its_stack_in_the_log(
    processes: Supervisor, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    hung = processes.open_binding(plan(probes.Killer, probe_kwargs={"way": way}, probe_timeout_s=0.5))
    hung.accept(record(666, np.zeros(4)))
    wait_for(lambda: processes.workers()[0].deaths == 1)
    hung.accept(record(7, np.zeros(4)))
    result = finish(hung)
    assert result.verdict["positions"] == [7]
    assert "probe_timeout" in coverage(result)["reasons"]
    said = [entry.getMessage() for entry in caplog.records if "probe_timeout_s" in entry.getMessage()]
    assert said
    assert "on_activation" in said[0]


def test_the_nursery_s_death_is_survived(processes: Supervisor) -> None:
    binding = processes.open_binding(plan(probes.Recorder))
    feed(binding, 3)
    processes.flush(deadline())
    nursery = psutil.Process().children()
    for process in nursery:
        process.kill()
    wait_for(lambda: processes.workers()[0].deaths >= 1)
    feed(binding, 3, first=3)
    result = finish(binding)
    assert result.verdict["positions"][-3:] == [3, 4, 5]
    assert coverage(result)["restarts"] == 1
