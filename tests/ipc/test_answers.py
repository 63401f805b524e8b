"""Answers: what the consumer says about a record, and how a producer that waits for it gets it, or learns why not."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from ipc_rig import attach

from undercurrent.ipc import ConsumerLane, ConsumerRing, MemoryBudget, ProducerLane, ProducerRing, layout


class Pair:
    """One ring with answers, seen from both sides."""

    def __init__(self, lane: ProducerLane) -> None:
        self.lane = lane
        self.ring = lane.open_ring(queue_depth=1, policy=layout.DROP_OLDEST, generation=7)
        self.consumer = ConsumerLane(lane.control_fd, lane.payload_fd)
        self.reader: ConsumerRing = attach(self.consumer, self.ring)

    def ask(self, data: bytes = b"record") -> int:
        """Publishes a record and returns its position."""
        position: int = self.ring.next_position
        assert self.ring.publish(data, 1, 2, 3, 0, 0.5) == layout.OK
        return position

    def answer(self, kind: int, data: bytes) -> int:
        """Takes the record that waits and answers it; returns its position."""
        batch = self.reader.take(1)
        assert batch is not None
        position = self.reader.next_position - 1
        assert self.reader.answer(position, kind, data)
        self.reader.finish(batch)
        return position


@pytest.fixture(name="pair")
def _pair() -> Iterator[Pair]:
    budget = MemoryBudget(64 << 20)
    with ProducerLane(budget, ring_capacity=64) as lane:
        pair = Pair(lane)
        yield pair
        pair.consumer.close()
    assert budget.used_bytes == 0


def wait_for(ring: ProducerRing, position: int, timeout_s: float = 0.0) -> tuple[int, int, bytes]:
    """Waits without anything having been interrupted."""
    return ring.await_answer(position, time.monotonic() + timeout_s, ring.answer_interrupts)


def test_an_answer_reaches_the_one_who_waits(pair: Pair) -> None:
    position = pair.ask()
    answering = threading.Thread(target=lambda: pair.answer(9, b"seen"))
    answering.start()

    answer = wait_for(pair.ring, position, 20.0)
    answering.join()

    assert answer == (layout.OK, 9, b"seen")
    assert pair.ring.last_answered() == position


def test_the_answer_to_an_earlier_record_is_never_taken_for_the_current_one(pair: Pair) -> None:
    given_up = pair.ask()
    assert wait_for(pair.ring, given_up)[0] == layout.TIMEOUT
    pair.answer(1, b"late")
    current = pair.ask()

    assert wait_for(pair.ring, current) == (layout.TIMEOUT, 0, b"")
    pair.answer(2, b"own")
    assert wait_for(pair.ring, current) == (layout.OK, 2, b"own")


def test_an_earlier_ring_in_the_same_place_answers_nobody(pair: Pair) -> None:
    position = pair.ask()
    pair.answer(1, b"of the ring before")
    pair.reader.detach()
    pair.ring.release()
    again = pair.lane.open_ring(queue_depth=1, policy=layout.DROP_OLDEST, generation=8)

    assert (again.ring_index, again.next_position) == (pair.ring.ring_index, position)
    assert again.last_answered() == 0
    assert wait_for(again, position)[0] == layout.TIMEOUT


def test_whoever_knows_that_nobody_will_answer_ends_the_wait(pair: Pair) -> None:
    position = pair.ask()
    interrupts = pair.ring.answer_interrupts
    ending = threading.Thread(target=pair.ring.interrupt_answer)
    ending.start()

    answer = pair.ring.await_answer(position, time.monotonic() + 60.0, interrupts)
    ending.join()

    assert answer[0] == layout.PEER_DIED
    assert wait_for(pair.ring, position)[0] == layout.TIMEOUT


def test_an_answer_that_came_before_the_death_counts(pair: Pair) -> None:
    position = pair.ask()
    interrupts = pair.ring.answer_interrupts
    pair.answer(3, b"in time")
    pair.ring.interrupt_answer()

    assert pair.ring.await_answer(position, time.monotonic(), interrupts) == (layout.OK, 3, b"in time")


def test_an_answer_that_no_cell_can_hold_is_refused(pair: Pair) -> None:
    position = pair.ask()

    assert not pair.reader.answer(position, 1, b"x" * (layout.ANSWER_BYTES_MAX + 1))
    assert pair.reader.answer(position, 1, b"x" * layout.ANSWER_BYTES_MAX)
    assert wait_for(pair.ring, position)[2] == b"x" * layout.ANSWER_BYTES_MAX


def test_a_length_that_no_honest_consumer_writes_is_corrupt(pair: Pair) -> None:
    position = pair.ask()
    pair.answer(1, b"fine")
    cell = pair.lane._answers_offset + pair.ring.ring_index * 1024
    pair.lane._memory.control.map[cell + 16 : cell + 20] = (layout.ANSWER_BYTES_MAX + 1).to_bytes(4, "little")

    assert wait_for(pair.ring, position, 1.0) == (layout.CORRUPT, 0, b"")


def test_any_bytes_in_a_cell_end_in_a_status(pair: Pair) -> None:
    position = pair.ask()
    cell = pair.lane._answers_offset + pair.ring.ring_index * 1024
    memory = pair.lane._memory.control.map
    for offset in (*range(28), 128, 129, 256, 1023):
        for bit in range(8):
            pair.reader.answer(position, 1, b"fine")
            memory[cell + offset] ^= 1 << bit
            status, _, data = wait_for(pair.ring, position)
            assert status in (layout.OK, layout.TIMEOUT, layout.CORRUPT)
            assert len(data) <= layout.ANSWER_BYTES_MAX


def test_a_closed_lane_answers_at_once() -> None:
    lane = ProducerLane(MemoryBudget(64 << 20), ring_capacity=64)
    pair = Pair(lane)
    position = pair.ask()
    pair.consumer.close()
    lane.close()

    assert pair.ring.await_answer(position, time.monotonic() + 60.0, 0)[0] == layout.CLOSED
    assert pair.ring.last_answered() == 0


def test_a_signal_handler_ends_the_wait_with_its_exception(pair: Pair) -> None:
    position = pair.ask()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGUSR2, interrupt)
    try:
        caller = threading.main_thread().ident
        assert caller is not None
        threading.Timer(0.05, lambda: signal.pthread_kill(caller, signal.SIGUSR2)).start()
        with pytest.raises(KeyboardInterrupt):
            wait_for(pair.ring, position, 60.0)
    finally:
        signal.signal(signal.SIGUSR2, earlier)


def test_the_consumer_learns_where_its_only_asker_waits(pair: Pair) -> None:
    assert pair.reader.caller_cpu() == -1
    position = pair.ask()
    pair.answer(1, b"")
    interrupts = pair.ring.answer_interrupts

    pair.ring.await_answer(position, time.monotonic(), interrupts, True)
    assert pair.reader.caller_cpu() in os.sched_getaffinity(0)

    pair.ring.await_answer(position, time.monotonic(), interrupts)
    assert pair.reader.caller_cpu() == -1


@pytest.mark.parametrize("arguments", [(), (1, 2), (1, 2.0, 3, True, 5), ("one", 2.0, 3), (-1, 2.0, 3)])
def test_wrong_arguments_raise(pair: Pair, arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        pair.ring.await_answer(*arguments)  # type: ignore[arg-type]
    with pytest.raises((TypeError, OverflowError)):
        pair.reader.answer(*arguments)  # type: ignore[arg-type]


def test_a_consumer_that_never_naps_parks_at_once(pair: Pair) -> None:
    pair.consumer.never_nap()
    states: set[str] = set()
    waiting = threading.Thread(target=lambda: pair.consumer.wait(0.3))
    pair.ask()
    assert pair.consumer.wait(1.0)
    pair.consumer.take_ready()
    waiting.start()
    while waiting.is_alive():
        states.add(pair.lane.consumer_state)
    waiting.join()

    assert "parked" in states
    assert "napping" not in states
