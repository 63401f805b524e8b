"""A lane with both its ends in one process, and the shortest way to publish to it and to read from it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from undercurrent.ipc import Batch, ConsumerLane, ConsumerRing, MemoryBudget, ProducerLane, ProducerRing, layout

HEADER_NAMES = (
    *("seq", "generation", "length", "kind", "dtype_code", "dtype_bits", "ndim", "shape0", "shape1", "shape2"),
    *("shape3", "token_pos", "layer", "flags", "timestamp", "monotonic_ns", "trace"),
)


@dataclass
class Rig:
    """The engine's lane, the worker's lane, and one ring seen from both."""

    lane: ProducerLane
    ring: ProducerRing
    consumer: ConsumerLane
    reader: ConsumerRing

    def publish(self, payload: bytes, token_pos: int = 0) -> int:
        """Publishes bytes."""
        return self.ring.publish(payload, 1, 2, token_pos, 0, 0.5)

    def take(self, limit: int = 16) -> list[bytes]:
        """Takes, copies and finishes one batch."""
        batch = self.reader.take(limit)
        if batch is None:
            return []
        payloads = payloads_of(batch)
        self.reader.finish(batch)
        return payloads

    def attach_again(self) -> None:
        """Plays the death of the consumer and the start of its successor."""
        self.consumer.close()
        self.lane.recover_consumer()
        self.consumer = ConsumerLane(self.lane.control_fd, self.lane.payload_fd)
        self.reader = attach(self.consumer, self.ring)


def attach(consumer: ConsumerLane, ring: ProducerRing) -> ConsumerRing:
    """Attaches to a ring as its producer describes it."""
    return consumer.attach_ring(
        ring.ring_index, queue_depth=ring.queue_depth, policy=ring.policy, generation=ring.generation
    )


@contextmanager
def rig(
    *,
    depth: int = 4,
    policy: int = layout.DROP_OLDEST,
    start: int | None = None,
    limit_bytes: int = 256 << 20,
    record_bytes_max: int = 16 << 20,
) -> Iterator[Rig]:
    """Opens a lane with one ring and both ends; closes all of it, and checks that the memory is returned."""
    budget = MemoryBudget(limit_bytes)
    lane = ProducerLane(budget, ring_capacity=64, record_bytes_max=record_bytes_max)
    ring = lane.open_ring(queue_depth=depth, policy=policy, generation=7, start=start)
    consumer = ConsumerLane(lane.control_fd, lane.payload_fd)
    both = Rig(lane, ring, consumer, attach(consumer, ring))
    try:
        yield both
    finally:
        both.consumer.close()
        lane.close()
        assert budget.used_bytes == 0


def headers_of(batch: Batch) -> list[dict[str, int]]:
    """The headers of a batch, by field name."""
    fields = struct.iter_unpack(layout.HEADER_FORMAT, batch.headers)
    return [dict(zip(HEADER_NAMES, values, strict=True)) for values in fields]


def payloads_of(batch: Batch) -> list[bytes]:
    """The payloads of a batch, copied."""
    return [bytes(batch.copy(i)) for i in range(len(batch))]
