"""Where a guard runs: it follows a caller that stays, lets go in time, and frees what a probe started there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from undercurrent.workers.guard_place import LONG_CALL_NS, CallersPlace, take_short_turns

T = TypeVar("T")
CPUS = frozenset(os.sched_getaffinity(0))
CPU = min(CPUS)

needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU: there is nowhere to go")


def on_a_thread(call: Callable[[], T]) -> T:
    """A mask belongs to a thread, so that of the tests stays as it is."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(call).result(60)


def masks_after(*noted: tuple[int, int]) -> list[set[int]]:
    def note() -> list[set[int]]:
        place, masks = CallersPlace(), []
        for cpu, call_ns in noted:
            place.note_caller(cpu, call_ns)
            masks.append(os.sched_getaffinity(0))
        return masks

    return on_a_thread(note)


@needs_two_cpus
def test_the_second_caller_in_a_row_on_one_cpu_is_followed() -> None:
    assert masks_after((CPU, 0), (CPU, 0), (CPU, 0)) == [CPUS, {CPU}, {CPU}]


@needs_two_cpus
def test_callers_here_and_there_are_not_followed() -> None:
    other = max(CPUS)
    assert masks_after((CPU, 0), (other, 0), (CPU, 0), (other, 0)) == [CPUS] * 4


@needs_two_cpus
@pytest.mark.parametrize("ending", [(-1, 0), (CPU, LONG_CALL_NS + 1)], ids=["caller says nothing", "long call"])
def test_a_guard_that_was_kept_is_free_again(ending: tuple[int, int]) -> None:
    assert masks_after((CPU, 0), (CPU, 0), ending) == [CPUS, {CPU}, CPUS]


def test_a_cpu_that_is_not_allowed_is_not_followed() -> None:
    assert masks_after((4095, 0), (4095, 0), (2**31, 0), (2**31, 0)) == [CPUS] * 4


@needs_two_cpus
def test_leaving_frees_the_thread_until_the_next_caller() -> None:
    def leave_and_return() -> list[set[int]]:
        place = CallersPlace()
        place.note_caller(CPU, 0)
        place.note_caller(CPU, 0)
        place.leave()
        masks = [os.sched_getaffinity(0)]
        place.note_caller(CPU, 0)
        return [*masks, os.sched_getaffinity(0)]

    assert on_a_thread(leave_and_return) == [CPUS, {CPU}]


@needs_two_cpus
def test_threads_that_a_probe_started_here_get_all_cpus_and_nobody_is_followed_any_more() -> None:
    def start_one() -> tuple[set[int], set[int], set[int]]:
        place, leave = CallersPlace(), threading.Event()
        place.note_caller(CPU, 0)
        place.note_caller(CPU, 0)
        started = threading.Thread(target=leave.wait, args=(60,))
        started.start()
        try:
            assert started.native_id is not None
            before = os.sched_getaffinity(started.native_id)
            place.free_others()
            after = os.sched_getaffinity(started.native_id)
        finally:
            leave.set()
            started.join(60)
        place.note_caller(CPU, 0)
        place.note_caller(CPU, 0)
        return before, after, os.sched_getaffinity(0)

    assert on_a_thread(start_one) == ({CPU}, CPUS, CPUS)


def test_short_turns_leave_policy_and_priority_alone() -> None:
    def take() -> tuple[bool, int, int]:
        is_taken = take_short_turns()
        return is_taken, os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    is_taken, policy, nice = on_a_thread(take)
    assert isinstance(is_taken, bool)
    assert (policy, nice) == (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))


def test_where_the_kernel_refuses_there_are_no_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undercurrent.workers.guard_place._SYSTEM_CALLS", {os.uname().machine: (-1, -1)})
    assert not on_a_thread(take_short_turns)
