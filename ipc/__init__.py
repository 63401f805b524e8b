"""Shared memory between an engine process and a worker: bytes in, bytes out.

A `ProducerLane` is the engine's side of everything between it and one worker. It opens a `ProducerRing` per binding;
`publish` copies a record into shared memory in a fraction of a microsecond and never waits. The worker makes a
`ConsumerLane` from the two file descriptors, sleeps in `wait`, and takes records in a `Batch`, in place. All lanes
share a `MemoryBudget`. `layout` holds the format's numbers and the answers of `publish`; `ControlPage` is the page
that other processes read.

    >>> from undercurrent.ipc import ConsumerLane, MemoryBudget, ProducerLane, layout
    >>> engine = ProducerLane(MemoryBudget(64 << 20))
    >>> ring = engine.open_ring(queue_depth=4, policy=layout.DROP_OLDEST, generation=1)
    >>> worker = ConsumerLane(engine.control_fd, engine.payload_fd)
    >>> reader = worker.attach_ring(ring.ring_index, queue_depth=4, policy=layout.DROP_OLDEST, generation=1)
    >>> ring.publish(b"abc", 0, 12, 0, 0, 0.0) == layout.OK
    True
    >>> batch = reader.take(16)
    >>> bytes(batch.view(0))
    b'abc'
    >>> reader.finish(batch)
    >>> worker.close(), engine.close()
    (None, None)
"""

from typing import TYPE_CHECKING, Any

from undercurrent.ipc import layout
from undercurrent.ipc.counters import LaneStatistics, RingStatistics
from undercurrent.ipc.doorbell import ConsumerLane
from undercurrent.ipc.layout import OverflowCode
from undercurrent.ipc.memory import MemoryBudget
from undercurrent.ipc.ring import (
    Batch,
    ConsumerRing,
    ProducerLane,
    ProducerRing,
    publish_rows,
    register_arrays,
)

if TYPE_CHECKING:
    from undercurrent.ipc.page import ControlPage, PageReader

__all__ = [
    "Batch",
    "ConsumerLane",
    "ConsumerRing",
    "ControlPage",
    "LaneStatistics",
    "MemoryBudget",
    "OverflowCode",
    "PageReader",
    "ProducerLane",
    "ProducerRing",
    "RingStatistics",
    "layout",
    "publish_rows",
    "register_arrays",
]


def __getattr__(name: str) -> Any:
    # The page needs psutil and posix_ipc, which a worker never does: it starts 20 ms sooner without them.
    if name in ("ControlPage", "PageReader"):
        from undercurrent.ipc import page

        return getattr(page, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
