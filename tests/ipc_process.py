"""The other process of the ring's tests: an honest consumer or producer, started by exec or fork, killed at any time.

Run as `python ipc_process.py control_fd payload_fd ring_index queue_depth policy generation report_fd` it consumes
until the ring's end and reports each record's position as eight bytes.
"""

from __future__ import annotations

import os
import struct
import sys

from undercurrent.ipc import ConsumerLane, ProducerRing, layout

TORN = 3
TOKEN_POS = 11  # index of a record's number in its unpacked header
SIZES = (8, 200, 1600, 9000)


def payload_of(number: int) -> bytes:
    """A payload that shows whether it is whole: its number, over and over."""
    return number.to_bytes(8, "little") * (SIZES[number % len(SIZES)] // 8)


def consume(
    control_fd: int, payload_fd: int, ring_index: int, queue_depth: int, policy: int, generation: int, report_fd: int
) -> int:
    """Takes every record, checks it, reports its position; returns an exit status."""
    lane = ConsumerLane(control_fd, payload_fd)
    ring = lane.attach_ring(ring_index, queue_depth=queue_depth, policy=policy, generation=generation)
    while not ring.at_end:
        lane.wait(1.0)
        lane.take_ready()
        while (batch := ring.take(5)) is not None:
            headers = list(struct.iter_unpack(layout.HEADER_FORMAT, batch.headers))
            for i, header in enumerate(headers):
                if batch.view(i) != payload_of(header[TOKEN_POS]):
                    return TORN
            os.write(report_fd, b"".join(struct.pack("<Q", header[0]) for header in headers))
            ring.finish(batch)
    ring.detach()
    lane.close()
    return 0


def produce(ring: ProducerRing, count: int) -> None:
    """Publishes numbered records, waiting for room under block, at most a minute for one."""
    for number in range(count):
        while ring.publish(payload_of(number), 0, 0, number, 0, 0.0) == layout.FULL and ring.policy == layout.BLOCK:
            if not ring.wait_room(60.0):
                raise TimeoutError("the consumer made no room")


if __name__ == "__main__":
    sys.exit(consume(*map(int, sys.argv[1:])))
