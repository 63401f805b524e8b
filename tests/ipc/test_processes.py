"""Two processes: an exec'ed consumer, and kill -9 of either side at moments nobody chose."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import ipc_process
import pytest
from ipc_rig import payloads_of

from undercurrent.ipc import ConsumerLane, ConsumerRing, MemoryBudget, ProducerLane, ProducerRing, layout

POLICIES = [layout.DROP_OLDEST, layout.DROP_NEWEST, layout.BLOCK]
HELPER = Path(ipc_process.__file__)


class Reader:
    """A forked consumer with descriptors of its own, and what it reported."""

    def __init__(self, lane: ProducerLane, ring: ProducerRing) -> None:
        self._report, write_end = os.pipe()
        fds = os.dup(lane.control_fd), os.dup(lane.payload_fd)
        self.pid = os.fork()
        if self.pid == 0:
            status = 9
            try:
                status = ipc_process.consume(
                    *fds, ring.ring_index, ring.queue_depth, ring.policy, ring.generation, write_end
                )
            finally:
                os._exit(status)
        for fd in (write_end, *fds):
            os.close(fd)

    def wait(self) -> tuple[list[int], int]:
        """Reads the positions reported, reaps the process; returns both its results."""
        report = b""
        while part := os.read(self._report, 65536):
            report += part
        os.close(self._report)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        # A kill in the middle of a write may leave a piece of a number; pipes keep writes below 4 KiB whole.
        return [number for (number,) in struct.iter_unpack("<Q", report)], status

    def kill(self) -> tuple[list[int], int]:
        """Kills it, then like `wait`."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()


@pytest.mark.parametrize("policy", POLICIES)
def test_executed_consumer_receives_everything_it_should(policy: int) -> None:
    with ProducerLane(MemoryBudget(64 << 20)) as lane:
        ring = lane.open_ring(queue_depth=32, policy=policy, generation=5)
        read_end, write_end = os.pipe()
        fds = (lane.control_fd, lane.payload_fd, write_end)
        arguments = [*map(str, (*fds[:2], ring.ring_index, ring.queue_depth, policy, 5, write_end))]
        with subprocess.Popen([sys.executable, str(HELPER), *arguments], pass_fds=fds) as process:
            os.close(write_end)
            try:
                ipc_process.produce(ring, 500)
            finally:
                ring.close()
            report = b""
            while part := os.read(read_end, 65536):
                report += part
            os.close(read_end)
            assert process.wait(30) == 0
        positions = [number for (number,) in struct.iter_unpack("<Q", report)]
        statistics = ring.statistics()
        assert positions == sorted(set(positions))
        assert len(positions) == statistics.consumed
        assert statistics.produced == 500 == statistics.consumed + statistics.dropped
        if policy == layout.BLOCK:
            assert statistics.dropped == 0


def publish_some(ring: ProducerRing, number: int, count: int) -> int:
    """Publishes up to `count` more records, as far as there is room; returns the next number."""
    for _ in range(count):
        answer = ring.publish(ipc_process.payload_of(number), 0, 0, number, 0, 0.0)
        if answer == layout.FULL and ring.policy == layout.BLOCK:
            ring.wait_room(0.001)
        else:
            number += 1
    return number


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("depth", [1, 3, 32])
def test_killed_consumers_tear_nothing_and_unbalance_nothing(policy: int, depth: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with ProducerLane(MemoryBudget(64 << 20)) as lane:
        ring = lane.open_ring(queue_depth=depth, policy=policy, generation=5)
        number, seen = 0, []
        for _ in range(12):
            reader = Reader(lane, ring)
            number = publish_some(ring, number, chance.randrange(20, 400))
            positions, status = reader.kill()
            assert status == -signal.SIGKILL, status
            seen += positions
            lane.recover_consumer()
            statistics = ring.statistics()
            assert (statistics.in_hand, statistics.balanced) == (0, True)
            number = publish_some(ring, number, chance.randrange(5))
        reader = Reader(lane, ring)
        ring.close()
        positions, status = reader.wait()
        seen += positions
        assert status == 0
        assert seen == sorted(set(seen)), "delivered in order and at most once, over all consumers"
        statistics = ring.statistics()
        assert statistics.produced == statistics.consumed + statistics.dropped + statistics.lost
        assert statistics.consumed <= len(seen) <= statistics.consumed + statistics.lost
        ring.release()


class Producer:
    """A forked producer that never stops, and our end of its lane. `kill` ends it; so does leaving the block."""

    def __init__(self, policy: int, depth: int) -> None:
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                lane = ProducerLane(MemoryBudget(64 << 20))
                ring = lane.open_ring(queue_depth=depth, policy=policy, generation=5)
                socket.send_fds(theirs, [b"x"], [lane.control_fd, lane.payload_fd])
                ipc_process.produce(ring, 1 << 40)
            finally:
                os._exit(9)
        theirs.close()
        _, fds, _, _ = socket.recv_fds(ours, 1, 2)
        ours.close()
        self.consumer = ConsumerLane(*fds)
        for fd in fds:
            os.close(fd)

    def kill(self) -> None:
        """Kills and reaps it. Idempotent."""
        if self._pid > 0:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        self.consumer.close()


def read_batch(ring: ConsumerRing) -> list[int] | None:
    """Takes a batch, checks its bytes, finishes it; returns the positions, None when empty."""
    batch = ring.take(4)
    if batch is None:
        return None
    headers = list(struct.iter_unpack(layout.HEADER_FORMAT, batch.headers))
    assert payloads_of(batch) == [ipc_process.payload_of(header[ipc_process.TOKEN_POS]) for header in headers]
    ring.finish(batch)
    return [header[0] for header in headers]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("depth", [1, 2, 7, 32])
def test_killed_producer_leaves_whole_records_and_balanced_counters(policy: int, depth: int) -> None:
    positions: list[int] = []
    for target in (1, 50, 200):
        with Producer(policy, depth) as producer:
            ring = producer.consumer.attach_ring(0, queue_depth=depth, policy=policy, generation=5)
            positions = []
            while len(positions) < target:
                assert producer.consumer.wait(30)
                producer.consumer.take_ready()
                while len(positions) < target and (part := read_batch(ring)):
                    positions += part
            producer.kill()
            producer.consumer.producer_gone()
            while not ring.at_end:
                positions += read_batch(ring) or []
            assert positions == sorted(set(positions))
            statistics = ring.statistics()
            assert (statistics.waiting, statistics.in_hand, statistics.lost) == (0, 0, 0)
            assert statistics.produced == statistics.consumed + statistics.dropped
            assert statistics.consumed == len(positions)
