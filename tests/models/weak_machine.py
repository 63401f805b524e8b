"""A view-based weak memory: what two threads can read, and what they know of each other, as one hashable value.

Every atomic location keeps all its messages in modification order. A thread may read any message that is not older than
what it knows; an acquire joins the view that a release left in the message; a read-modify-write takes the newest
message and carries its view on (release sequences); sequentially consistent fences join one global view. Load buffering
is not modelled; instead plain memory is watched for races, which shows an order whose only work is to keep a *read*
before a swap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

View = tuple[int, ...]
PRODUCER, CONSUMER, FENCES = 0, 1, 2


class ProtocolError(Exception):
    """The search reached a state that the protocol must not have."""


class Message(NamedTuple):
    value: object
    view: View


class Memory(NamedTuple):
    """A view has one number per atomic location, the newest message known, and two per plain cell: how many of the
    producer's writes and of the consumer's reads of it are known to have happened."""

    messages: tuple[tuple[Message | None, ...], ...]
    cells: tuple[int, ...]
    counts: View  # writes of each cell, then reads of each cell
    views: tuple[View, View, View]  # producer, consumer, sequentially consistent fences


class Machine:
    """Atomic and plain accesses over a Memory. Pure: each returns new memories."""

    def __init__(self, initial: tuple[object, ...], cell_count: int) -> None:
        self.atomics, self.cell_count = len(initial), cell_count
        self.zero: View = (0,) * (self.atomics + 2 * cell_count)
        self.initial = initial

    def start(self) -> Memory:
        messages = tuple((Message(value, self.zero),) for value in self.initial)
        cells, counts = (0,) * self.cell_count, (0,) * (2 * self.cell_count)
        return Memory(messages, cells, counts, (self.zero,) * 3)

    # ---- plain memory: the producer writes, the consumer reads ------------------------------------------------------
    def write(self, memory: Memory, cell: int, value: int) -> Memory:
        reads = self.cell_count + cell
        if memory.views[PRODUCER][self.atomics + reads] != memory.counts[reads]:
            raise ProtocolError(f"race: slot {cell} is written while a read of it may still be under way")
        cells = (*memory.cells[:cell], value, *memory.cells[cell + 1 :])
        return self._count(memory._replace(cells=cells), PRODUCER, cell)

    def read(self, memory: Memory, cell: int) -> tuple[int, Memory]:
        if memory.views[CONSUMER][self.atomics + cell] != memory.counts[cell]:
            raise ProtocolError(f"race: slot {cell} is read while a write of it may still be under way")
        return memory.cells[cell], self.note_read(memory, cell)

    def note_read(self, memory: Memory, cell: int) -> Memory:
        return self._count(memory, CONSUMER, self.cell_count + cell)

    def _count(self, memory: Memory, thread: int, index: int) -> Memory:
        count = memory.counts[index] + 1
        view = put(memory.views[thread], self.atomics + index, count)
        return memory._replace(counts=put(memory.counts, index, count), views=_put_view(memory.views, thread, view))

    # ---- atomic memory ----------------------------------------------------------------------------------------------
    def loads(self, memory: Memory, thread: int, where: int, acquire: bool) -> Iterator[tuple[object, Memory]]:
        history = memory.messages[where]
        for index in range(memory.views[thread][where], len(history)):
            message = history[index]
            assert message is not None, "a message was forgotten that a thread can still read"
            yield message.value, self._see(memory, thread, where, index, message, acquire)

    def store(self, memory: Memory, thread: int, where: int, value: object, release: bool) -> Memory:
        return self._append(memory, thread, where, value, release, self.zero)

    def update(
        self,
        memory: Memory,
        thread: int,
        where: int,
        change: Callable[[object], object],
        *,
        acquire: bool,
        release: bool,
    ) -> tuple[object, Memory]:
        """A read-modify-write of the newest message; returns what it read."""
        message, index = memory.messages[where][-1], len(memory.messages[where]) - 1
        assert message is not None
        memory = self._see(memory, thread, where, index, message, acquire)
        return message.value, self._append(memory, thread, where, change(message.value), release, message.view)

    def swaps(
        self,
        memory: Memory,
        thread: int,
        where: int,
        expected: object,
        desired: object,
        *,
        acquire: bool,
        release: bool,
        acquire_failed: bool = False,
    ) -> Iterator[tuple[bool, object, Memory]]:
        """A strong compare-and-swap. A failure is a load of any message but the expected value."""
        if self.newest(memory, where) == expected:
            after = self.update(memory, thread, where, lambda _: desired, acquire=acquire, release=release)[1]
            yield True, expected, after
        for value, after in self.loads(memory, thread, where, acquire=acquire_failed):
            if value != expected:
                yield False, value, after

    def newest(self, memory: Memory, where: int) -> object:
        """What the kernel compares in FUTEX_WAIT."""
        message = memory.messages[where][-1]
        assert message is not None
        return message.value

    # ---- fences -----------------------------------------------------------------------------------------------------
    def fence_seq_cst(self, memory: Memory, thread: int) -> Memory:
        """Weaker than C11's in one way, which can only find more: relaxed accesses around it are not made stronger."""
        view = join(memory.views[thread], memory.views[FENCES])
        return memory._replace(views=_put_view(_put_view(memory.views, thread, view), FENCES, view))

    def barrier_everywhere(self, memory: Memory, thread: int) -> Memory:
        """membarrier(2): a full fence on the other thread's processor, and one here before and after."""
        for fencing in (thread, CONSUMER if thread == PRODUCER else PRODUCER, thread):
            memory = self.fence_seq_cst(memory, fencing)
        return memory

    # ---- parts ------------------------------------------------------------------------------------------------------
    def _see(self, memory: Memory, thread: int, where: int, index: int, message: Message, acquire: bool) -> Memory:
        view = put(memory.views[thread], where, index)
        if acquire:
            return memory._replace(views=_put_view(memory.views, thread, join(view, message.view)))
        return memory._replace(views=_put_view(memory.views, thread, view))

    def _append(self, memory: Memory, thread: int, where: int, value: object, release: bool, carried: View) -> Memory:
        index = len(memory.messages[where])
        view = put(memory.views[thread], where, index)
        given = view if release else put(self.zero, where, index)
        messages = list(memory.messages)
        messages[where] = (*messages[where], Message(value, join(carried, given)))
        return memory._replace(messages=tuple(messages), views=_put_view(memory.views, thread, view))

    def forget(self, memory: Memory) -> Memory:
        """Drops what no thread can read or learn again, so that states with equal futures become equal."""
        low = tuple(map(min, memory.views[PRODUCER], memory.views[CONSUMER]))
        messages = tuple(
            (None,) * low[where] + history[low[where] :] if low[where] else history
            for where, history in enumerate(memory.messages)
        )
        return memory._replace(messages=messages)


def join(left: View, right: View) -> View:
    return tuple(map(max, left, right))


def put(view: View, where: int, value: int) -> View:
    return (*view[:where], value, *view[where + 1 :])


def _put_view(views: tuple[View, View, View], thread: int, view: View) -> tuple[View, View, View]:
    first, second, third = (*views[:thread], view, *views[thread + 1 :])
    return first, second, third
