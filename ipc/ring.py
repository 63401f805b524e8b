"""Lanes and rings as the engine uses them, and the consumer's end of one ring.

The hot path is C: `ProducerRing.publish` and `ConsumerRing.take` are methods of the extension. Python comes in when a
ring is opened, gets its slots, closes, or loses its consumer; that part runs under the lane's lock.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Final, Literal

from undercurrent.errors import RingError, RingMemoryError, RingUnavailableError
from undercurrent.ipc.counters import NO_COUNTS, LaneStatistics, RingStatistics, to_statistics
from undercurrent.ipc.forks import watch_forks
from undercurrent.ipc.layout import (
    BLOCK_BYTES,
    CLASS_COUNT,
    CLOSED,
    HEADER_BYTES,
    NO_SLOT,
    OK,
    PAYLOAD_BYTES_MAX,
    QUEUE_DEPTH_MAX,
    TOO_LARGE,
    class_hand_count,
    class_of,
)
from undercurrent.ipc.memory import ExtentAllocator, LaneMemory, MemoryBudget, SlotStore, start_ticks

if TYPE_CHECKING:
    from undercurrent.ipc import _ring as extension
    from undercurrent.ipc._ring import Batch
else:
    try:
        from undercurrent.ipc import _ring as extension
        from undercurrent.ipc._ring import Batch
    except ImportError as _error:
        _reason = str(_error)

        class _Unavailable:
            """Stands where a type of the extension would, so that `import undercurrent.ipc` works anywhere."""

            def __new__(cls, *_args: object, **_kwargs: object) -> _Unavailable:
                raise RingUnavailableError(
                    "rings need Linux (memfd_create, futex) and the compiled extension undercurrent.ipc._ring;"
                    f" this is {sys.platform}: {_reason}"
                )

        class extension:  # noqa: N801
            """Without the extension."""

            ProducerLaneCore = ProducerRingCore = ConsumerLaneCore = ConsumerRingCore = _Unavailable
            monotonic_ns = publish_rows = register_arrays = _Unavailable

        Batch = _Unavailable

__all__ = [
    "Batch",
    "ConsumerRing",
    "ProducerLane",
    "ProducerRing",
    "extension",
    "publish_rows",
    "register_arrays",
]

_ENTRY_COUNT: Final = 1 << 21  # entry words of one lane: 128 MiB of addresses, committed as rings need them
_RING_BLOCK_BYTES: Final = 512
_ENTRY_STRIDE: Final = 64
_ANSWER_CELL_BYTES: Final = 1024
_SPARES_MAX: Final = 64
_REFUSALS: Final = {"no_memory": 0, "unsupported": 1, "too_large": 2, "block_timeout": 3}
_SLEEP_STATES: Final = ("awake", "napping", "parked")
_READER_ATTACHED: Final = 1

publish_rows, register_arrays = extension.publish_rows, extension.register_arrays

ConsumerState = Literal["awake", "napping", "parked"]


class ProducerRing(extension.ProducerRingCore):
    """One binding's ring, as the engine fills it. Made by `ProducerLane.open_ring`; `release` ends it.

    `publish`, `publish_opaque`, `wait_room`, `interrupt` and the methods about answers come from the extension. Any
    thread may call any method; publications take turns under the interpreter's lock, and their order is the order of
    the turns.
    """

    _lane: ProducerLane
    _first_entry: int
    _last: RingStatistics | None = None
    _is_released = False

    def _reserve(self, length: int) -> int:
        """Gets the slot in hand to hold `length` bytes; called by the extension when it does not. Answers a status."""
        lane = self._lane
        slot_bytes = length + HEADER_BYTES
        if class_of(slot_bytes) == CLASS_COUNT:
            return TOO_LARGE
        with lane._lock:
            if not lane.is_open or self._is_released:
                return CLOSED
            if self._hand_bytes >= slot_bytes:
                return OK
            try:
                return self._fill_hand(class_of(slot_bytes))
            except RingMemoryError as error:
                lane.last_refusal = str(error)
                return NO_SLOT

    def _fill_hand(self, class_index: int) -> int:
        lane = self._lane
        is_first = self._hand_bytes == 0
        count = self.queue_depth + 1 if is_first else 1
        lane._deal_hand(class_index)
        slots = lane._slots.take(class_index, count, f"a ring of {self.queue_depth} records")
        if is_first:
            status = self._install(slots)
            unused = slots if status != OK else []
        else:
            replaced = self._replace_hand(slots[0])
            status = OK if replaced >= 0 else -replaced
            unused = [replaced] if status == OK else slots
        lane._slots.give(unused)
        return status

    def count_refused(self, reason: str) -> None:
        """Counts a record that did not get in: "no_memory", "unsupported", "too_large" or "block_timeout"."""
        self._refuse(_REFUSALS[reason])

    def statistics(self) -> RingStatistics:
        """Returns the counters; of a released ring, or in a forked child, the last ones seen here."""
        counts = None if self._is_released else self._counts()
        if counts is not None:
            self._last = to_statistics(counts, self.queue_depth)
        return self._last or to_statistics(NO_COUNTS, self.queue_depth)

    def close(self) -> None:
        """Ends the stream: what waits is still delivered, then the consumer meets its end. Idempotent."""
        self._close()

    def release(self) -> None:
        """Gives slots and ring block back to the lane, closing first. Idempotent.

        Raises:
            RingError: the consumer is still attached. It detaches, or is dead and `recover_consumer` was called.
        """
        lane = self._lane
        with lane._lock:
            if not lane.is_open or self._is_released:
                return
            if self._reader_state == _READER_ATTACHED:
                raise RingError(
                    f"ring {self.ring_index} has a consumer still: it must detach, or be dead and recovered"
                )
            self._close()
            self.statistics()
            self._is_released = True
            lane._slots.give(self._slots())
            lane._forget_ring(self)


class ProducerLane(extension.ProducerLaneCore):
    """Everything between the engine and one worker: two memfds, their rings, their slots, the doorbell.

    Owner: the supervisor, which passes the two fds to the worker and calls `close`. Thread-safe. `begin_step`,
    `end_step` and `ring_mail` come from the extension.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        *,
        ring_capacity: int = 4096,
        payload_capacity_bytes: int | None = None,
        record_bytes_max: int = 16 << 20,
    ) -> None:
        """Makes the memory; `payload_capacity_bytes` is addresses, not memory (default: what the budget allows)."""
        super().__init__()
        self._lock = threading.RLock()
        self._rings: dict[int, ProducerRing] = {}
        self._free_indices = list(range(ring_capacity - 1, -1, -1))
        self._entries = ExtentAllocator(_ENTRY_COUNT)
        # Places of released rings by depth, to be opened again as they are: requests come with the same few depths.
        self._spares: dict[int, list[tuple[int, int]]] = {}
        self._hands: set[int] = set()
        self._deaths = 0
        self.last_refusal: str | None = None
        if payload_capacity_bytes is None:
            payload_capacity_bytes = min(PAYLOAD_BYTES_MAX, max(64 << 20, budget.limit_bytes))
        block_count = -(-payload_capacity_bytes // BLOCK_BYTES)
        payload_bytes = block_count * BLOCK_BYTES
        control_bytes, self._rings_offset, self._entries_offset, self._answers_offset = extension.measure(
            ring_capacity, _ENTRY_COUNT, payload_bytes, record_bytes_max
        )
        self.record_bytes_max = record_bytes_max
        self._memory = LaneMemory(budget, control_bytes=control_bytes, payload_bytes=payload_bytes)
        try:
            self._memory.commit_control(0, self._rings_offset, "a lane")
            self._format(
                self._memory.control.map,
                self._memory.payload.map,
                ring_capacity,
                _ENTRY_COUNT,
                record_bytes_max,
                os.getpid(),
                start_ticks("self"),
                os.urandom(16),
            )
        except BaseException:
            self._memory.close()
            raise
        self._slots = SlotStore(self._memory, self, block_count)
        watch_forks(self)

    @property
    def control_fd(self) -> int:
        """The control memfd, to be passed to the worker. The lane closes it."""
        return self._memory.control.fd

    @property
    def payload_fd(self) -> int:
        """The payload memfd, to be passed to the worker. The lane closes it."""
        return self._memory.payload.fd

    def open_ring(self, *, queue_depth: int, policy: int, generation: int, start: int | None = None) -> ProducerRing:
        """Opens a ring. It costs no system call once the lane has grown; its slots come with the first record.

        Raises:
            RingMemoryError: the budget, the kernel or the lane's capacity refuses; the message names the sum.
            RingError: the lane is closed.
        """
        if not 1 <= queue_depth <= QUEUE_DEPTH_MAX:
            raise ValueError(f"`queue_depth` must be 1 to {QUEUE_DEPTH_MAX}, got {queue_depth}")
        start = queue_depth if start is None else start
        if start < queue_depth:
            raise ValueError(f"`start` must be >= `queue_depth` ({queue_depth}), got {start}")
        with self._lock:
            if not self.is_open:
                raise RingError("the lane is closed")
            spares = self._spares.get(queue_depth)
            ring_index, first_entry = spares.pop() if spares else self._find_ring(queue_depth)
            try:
                ring = ProducerRing(self, ring_index, first_entry, queue_depth, policy, generation, start)
            except BaseException:
                self._give_ring(ring_index, first_entry, queue_depth)
                raise
            ring._lane, ring._first_entry = self, first_entry
            self._rings[ring_index] = ring
            return ring

    def _find_ring(self, queue_depth: int) -> tuple[int, int]:
        """Returns a ring block and the first of `queue_depth` entry words, committed."""
        first_entry = self._entries.allocate(queue_depth) if self._free_indices else None
        if first_entry is None and any(self._spares.values()):
            for depth, places in self._spares.items():
                for place in places:
                    self._give_ring(*place, depth)
            self._spares.clear()
            return self._find_ring(queue_depth)
        if first_entry is None:
            raise RingMemoryError(f"the lane is full: {len(self._rings)} rings, {queue_depth} words wanted")
        ring_index = self._free_indices.pop()
        try:
            self._commit_ring(ring_index, first_entry, queue_depth)
        except BaseException:
            self._give_ring(ring_index, first_entry, queue_depth)
            raise
        return ring_index, first_entry

    def _give_ring(self, ring_index: int, first_entry: int, queue_depth: int) -> None:
        self._free_indices.append(ring_index)
        self._entries.release(first_entry, queue_depth)

    def _commit_ring(self, ring_index: int, first_entry: int, queue_depth: int) -> None:
        purpose = f"a ring of {queue_depth} records"
        block = self._rings_offset + ring_index * _RING_BLOCK_BYTES
        self._memory.commit_control(block, _RING_BLOCK_BYTES, purpose)
        cell = self._answers_offset + ring_index * _ANSWER_CELL_BYTES
        self._memory.commit_control(cell, _ANSWER_CELL_BYTES, purpose)
        words = self._entries_offset + first_entry * _ENTRY_STRIDE
        self._memory.commit_control(words, queue_depth * _ENTRY_STRIDE, purpose)

    def _forget_ring(self, ring: ProducerRing) -> None:
        del self._rings[ring.ring_index]
        spares = self._spares.setdefault(ring.queue_depth, [])
        if len(spares) < _SPARES_MAX:
            spares.append((ring.ring_index, ring._first_entry))
        else:
            self._give_ring(ring.ring_index, ring._first_entry, ring.queue_depth)

    def _deal_hand(self, class_index: int) -> None:
        """Deals the consumer its slots of a class, once per class: no record of the class is published before."""
        if class_index in self._hands:
            return
        slots = self._slots.take(class_index, class_hand_count(class_index), "the consumer's hand")
        self._deal(class_index, slots)
        self._hands.add(class_index)

    def recover_consumer(self) -> None:
        """Makes the lane ready for a new consumer. The caller knows that the old one is dead.

        What the dead one had in hand is counted `lost`, its slots are dealt anew, and a new epoch begins. A ring whose
        words are nonsense becomes corrupt, and answers so.
        """
        with self._lock:
            if not self.is_open:
                return
            in_rings: set[int] = set()
            for ring in self._rings.values():
                ring._reap()
                in_rings.update(ring._slots())
            for class_index, issued in self._slots.issued().items():
                dead_hand = sorted(issued - in_rings)
                count = class_hand_count(class_index)
                self._slots.give(dead_hand[count:])
                if class_index in self._hands:
                    dead_hand += self._slots.take(class_index, max(0, count - len(dead_hand)), "a new consumer's hand")
                    self._deal(class_index, dead_hand[:count])
            self._deaths += 1
            self._next_epoch()

    @property
    def consumer_state(self) -> ConsumerState:
        """How deep the consumer sleeps."""
        state = self._sleep_state()
        return _SLEEP_STATES[state] if state < len(_SLEEP_STATES) else "awake"

    def statistics(self) -> LaneStatistics:
        """Returns what the lane holds now."""
        with self._lock:
            return LaneStatistics(
                rings=len(self._rings),
                committed_bytes=self._memory.committed_bytes,
                slots_issued=sum(len(slots) for slots in self._slots.issued().values()),
                slots_free=self._slots.free_count,
                consumer_deaths=self._deaths,
            )

    def close(self) -> None:
        """Closes every ring, tells the consumer, returns the memory. Idempotent.

        A waiter in another thread returns first; the mappings end with it.
        """
        if not self.is_open:
            return
        with self._lock:
            for ring in self._rings.values():
                ring.close()
                ring.statistics()
            self._shut()
            self._rings.clear()
            self._memory.close()

    def __enter__(self) -> ProducerLane:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _after_fork(self) -> None:
        """In a forked child: publishing answers CLOSED, and no mapping is touched. The fds of the child are closed."""
        self._lock = threading.RLock()
        self._forget()
        self._memory.abandon()


class ConsumerRing(extension.ConsumerRingCore):
    """One ring as the worker empties it. Made by `ConsumerLane.attach_ring`; one thread.

    `take`, `finish`, `answer`, `detach` and `at_end` come from the extension.
    """

    def whole_count(self) -> int | None:
        """Returns how many records there were, if every one was consumed and none refused, dropped or lost."""
        counts = self._counts()
        return counts[0] if counts is not None and counts[0] == counts[1] and not any(counts[2:11]) else None

    def statistics(self) -> RingStatistics:
        """Returns the counters, read from shared memory; zeros when the lane is closed or its words are nonsense."""
        return to_statistics(self._counts() or NO_COUNTS, self.queue_depth)
