"""A lane: its memory, its doorbell, many rings, forks and its end."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from ipc_rig import attach, rig

from undercurrent.errors import RingCorruptError, RingError, RingMemoryError
from undercurrent.ipc import ConsumerLane, MemoryBudget, ProducerLane, layout, publish_rows


def until(condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    """Polls for a condition of another thread or process."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.001)


def test_payload_is_read_only_for_the_worker_by_the_kernel() -> None:
    with rig() as both:
        with pytest.raises(PermissionError):
            mmap.mmap(both.lane.payload_fd, 1 << 20)
        with pytest.raises(PermissionError):
            os.write(both.lane.payload_fd, b"x")
        for fd in (both.lane.control_fd, both.lane.payload_fd):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 0)
            assert os.fstat(fd).st_mode & 0o777 == 0o600


def test_memfd_without_seals_is_refused() -> None:
    with rig() as both:
        fd = os.memfd_create("bare", os.MFD_CLOEXEC)
        os.ftruncate(fd, 1 << 20)
        with pytest.raises(RingCorruptError, match="expected seals"):
            ConsumerLane(both.lane.control_fd, fd)
        with pytest.raises(RingCorruptError, match="expected seals"):
            ConsumerLane(fd, both.lane.payload_fd)
        os.close(fd)


def test_file_that_is_no_memfd_is_refused(tmp_path: os.PathLike[str]) -> None:
    with (
        rig() as both,
        open(os.path.join(tmp_path, "file"), "w+b") as file,
        pytest.raises(RingCorruptError, match="no memfd"),
    ):
        ConsumerLane(file.fileno(), both.lane.payload_fd)


def test_sealed_memory_without_a_header_is_refused() -> None:
    with rig() as both:
        fd = os.memfd_create("empty", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, os.fstat(both.lane.control_fd).st_size)
        fcntl.fcntl(fd, 1033, 0x2 | 0x4)
        with pytest.raises(RingCorruptError, match="header"):
            ConsumerLane(fd, both.lane.payload_fd)
        os.close(fd)


def test_memory_grows_by_the_records_and_returns_at_the_end() -> None:
    budget = MemoryBudget(256 << 20)
    with ProducerLane(budget) as lane:
        empty = budget.used_bytes
        assert empty < 1 << 20
        rings = [lane.open_ring(queue_depth=32, policy=0, generation=i) for i in range(20)]
        for ring in rings:
            assert ring.publish(bytes(8192), 0, 0, 0, 0, 0.0) == layout.OK
        # 20 rings of 33 slots and the hand of 16, 8448 B each
        assert 5.6 * 2**20 < budget.used_bytes - empty < 7.5 * 2**20
        assert os.fstat(lane.payload_fd).st_blocks * 512 <= budget.used_bytes
    assert budget.used_bytes == 0


def test_lanes_share_one_limit() -> None:
    budget = MemoryBudget(4 << 20)
    with ProducerLane(budget) as first, ProducerLane(budget) as second:
        for lane in (first, second):
            assert lane.open_ring(queue_depth=4, policy=0, generation=1).publish(b"x", 0, 0, 0, 0, 0.0) == layout.OK
        with pytest.raises(RingMemoryError, match="in use by all lanes together; raise `memory_max_bytes`"):
            first.open_ring(queue_depth=100_000, policy=0, generation=2)
        assert first.statistics().rings == 1


def test_lane_without_free_rings_says_so() -> None:
    with ProducerLane(MemoryBudget(8 << 20), ring_capacity=64) as lane:
        rings = [lane.open_ring(queue_depth=1, policy=0, generation=i) for i in range(64)]
        with pytest.raises(RingMemoryError, match="the lane is full: 64 rings"):
            lane.open_ring(queue_depth=1, policy=0, generation=99)
        rings[7].release()
        assert lane.open_ring(queue_depth=1, policy=0, generation=99).ring_index == 7


@pytest.mark.parametrize(("name", "value"), [("queue_depth", 0), ("queue_depth", 2**20 + 1), ("start", 3)])
def test_ring_arguments_out_of_range_are_refused(name: str, value: int) -> None:
    with ProducerLane(MemoryBudget(8 << 20), ring_capacity=64) as lane:
        arguments = {"queue_depth": 4, "policy": 0, "generation": 1} | {name: value}
        with pytest.raises(ValueError, match=f"`{name}`"):
            lane.open_ring(**arguments)


def test_blocks_are_cut_anew_for_another_size() -> None:
    with ProducerLane(MemoryBudget(12 << 20), ring_capacity=64) as lane:
        for size in (8 << 10, 32 << 10, 90 << 10, 8 << 10, 60 << 10):
            ring = lane.open_ring(queue_depth=32, policy=0, generation=1)
            assert ring.publish(bytes(size), 0, 0, 0, 0, 0.0) == layout.OK, lane.last_refusal
            ring.release()


def test_ready_rings_are_named_once_and_in_order() -> None:
    with rig() as both:
        other = both.lane.open_ring(queue_depth=2, policy=0, generation=9)
        attach(both.consumer, other)
        assert both.consumer.take_ready() == [0, 1], "attaching marks a ring"
        assert both.consumer.take_ready() == []
        other.publish(b"x", 0, 0, 0, 0, 0.0)
        both.publish(b"x")
        both.publish(b"y")
        assert both.consumer.wait(10)
        assert both.consumer.take_ready() == [0, 1]
        assert not both.consumer.wait(0)
        both.consumer.mark_ready(1)
        assert both.consumer.take_ready() == [1]


def test_closing_a_ring_makes_it_ready() -> None:
    with rig() as both:
        both.consumer.take_ready()
        both.ring.close()
        assert both.consumer.take_ready() == [0]


def parked(both_lane: ProducerLane, consumer: ConsumerLane, answers: list[bool]) -> threading.Thread:
    """Starts a thread that waits, and returns once it sleeps deeply."""
    thread = threading.Thread(target=lambda: answers.append(consumer.wait(60)), name="test-waiter")
    thread.start()
    until(lambda: both_lane.consumer_state == "parked")
    return thread


@pytest.mark.parametrize("waker", ["publish", "mail", "wake", "close ring", "close lane"])
def test_parked_consumer_is_woken(waker: str) -> None:
    with rig() as both:
        both.consumer.take_ready()
        answers: list[bool] = []
        thread = parked(both.lane, both.consumer, answers)
        calls: dict[str, Callable[[], object]] = {
            "publish": lambda: both.publish(b"x"),
            "mail": both.lane.ring_mail,
            "wake": both.consumer.wake,
            "close ring": both.ring.close,
            "close lane": both.lane.close,
        }
        calls[waker]()
        thread.join()
        assert answers == [waker != "wake"]


def test_step_wakes_once_at_its_end() -> None:
    with rig(depth=8) as both:
        both.consumer.take_ready()
        answers: list[bool] = []
        thread = parked(both.lane, both.consumer, answers)
        both.lane.begin_step()
        both.lane.begin_step()
        for _ in range(5):
            both.publish(b"x")
        both.lane.end_step()
        assert both.lane.consumer_state == "parked"
        both.lane.end_step()
        thread.join()
        assert answers == [True]


def test_mail_is_counted_and_heard_once() -> None:
    with rig() as both:
        both.consumer.take_ready()
        both.lane.ring_mail()
        both.lane.ring_mail()
        assert both.consumer.mail == 2
        assert both.consumer.wait(0)
        assert not both.consumer.wait(0)


def test_interruption_before_the_wait_is_not_lost() -> None:
    with rig() as both:
        both.consumer.take_ready()
        both.consumer.wake()
        begin = time.monotonic()
        assert not both.consumer.wait(60)
        assert time.monotonic() - begin < 30


def test_ctrl_c_ends_a_wait() -> None:
    with rig() as both:
        both.consumer.take_ready()
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            until(lambda: both.lane.consumer_state == "parked")
            signal.pthread_kill(main, signal.SIGINT)

        killer = threading.Thread(target=interrupt, name="test-killer")
        killer.start()
        with pytest.raises(KeyboardInterrupt):
            both.consumer.wait(60)
        killer.join()


def test_activity_names_whose_code_runs_and_since_when() -> None:
    with rig() as both:
        assert both.lane.activity() == (0, 0)
        before = time.monotonic_ns()
        both.consumer.set_activity(77)
        generation, since_ns = both.lane.activity()
        assert generation == 77
        assert before <= since_ns <= time.monotonic_ns()
        both.consumer.set_activity(0)
        assert both.lane.activity()[0] == 0


def test_forked_child_publishes_nothing_and_touches_nothing() -> None:
    with rig() as both:
        both.publish(b"before")
        pid = os.fork()
        if pid == 0:
            answer = 1
            try:
                closed = both.publish(b"child") == layout.CLOSED
                targets = {("r", "p"): (both.lane, both.ring)}
                rows = publish_rows(np.zeros((1, 1)), 0, 0, 0.0, targets, (), [("r", "p", 0, False)]) == [0]
                both.lane.ring_mail()
                both.ring.statistics()
                both.ring.close()
                both.ring.release()
                both.lane.close()
                both.consumer.close()
                gc.collect()
                answer = 0 if closed and rows else 2
            finally:
                os._exit(answer)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert both.publish(b"after") == layout.OK
        assert both.take() == [b"before", b"after"]


def test_forked_child_can_have_lanes_of_its_own() -> None:
    with rig():
        pid = os.fork()
        if pid == 0:
            answer = 1
            try:
                with rig() as own:
                    own.publish(b"child")
                    answer = 0 if own.take() == [b"child"] else 2
            finally:
                os._exit(answer)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_closed_lane_answers_closed_and_keeps_the_last_counters() -> None:
    with rig() as both:
        both.publish(b"x")
        both.lane.close()
        both.lane.close()
        assert both.publish(b"y") == layout.CLOSED
        assert both.ring.statistics().produced == 1
        assert both.consumer.is_closed_by_producer
        assert both.take() == [b"x"], "what was published is still there for the consumer"
        with pytest.raises(RingError, match="closed"):
            both.lane.open_ring(queue_depth=1, policy=0, generation=1)


def test_closing_a_lane_frees_a_waiter_for_room() -> None:
    with rig(depth=1, policy=layout.BLOCK) as both:
        both.publish(b"x")
        closing = threading.Timer(0.02, both.lane.close)
        closing.start()
        assert not both.ring.wait_room(30)
        closing.join()


def test_nothing_is_left_of_a_thousand_lanes() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    budget = MemoryBudget(64 << 20)
    gc.collect()
    before = descriptors()
    for _ in range(1000):
        lane = ProducerLane(budget, ring_capacity=64)
        lane.close()
    gc.collect()
    assert descriptors() == before
    assert budget.used_bytes == 0


def test_threads_that_publish_take_turns() -> None:
    with rig(depth=4096, policy=layout.DROP_NEWEST) as both:
        threads = [
            threading.Thread(target=lambda: [both.publish(bytes(100 * n)) for n in range(200)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sizes = []
        while batch := both.take():
            sizes += [len(payload) for payload in batch]
        assert sorted(sizes) == sorted(100 * n for n in range(200) for _ in range(4))
