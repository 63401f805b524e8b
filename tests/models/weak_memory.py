"""Searches the exchange ring exhaustively under a weak memory model, in small bounds, for the first error.

The two threads below are ring.c, consumer.c and doorbell.c with every order at its weakest that is still correct; the
code may be stronger. One ring, one slot in each hand, no deaths: kills are the business of exchange_ring.pml.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weak_bounds import Bounds
from weak_machine import CONSUMER, PRODUCER, Machine, Memory, ProtocolError

Word = tuple[int, int, int, int]  # position, full, evicted, slot
AWAKE, PARKED = 0, 2
STATE_LIMIT = 8_000_000


class Producer(NamedTuple):
    label: str
    head: int
    hand: int
    offered: int = 0
    word: Word = (0, 0, 0, 0)
    then: str = "offer"  # where the doorbell returns to
    room: int = 0


class Consumer(NamedTuple):
    label: str
    next: int
    hand: int
    word: Word = (0, 0, 0, 0)
    may_end: bool = False
    copy: int = 0
    seen: int = 0


class State(NamedTuple):
    memory: Memory
    producer: Producer
    consumer: Consumer
    asleep: tuple[bool, bool] = (False, False)
    taken: int = 0
    dropped: int = 0
    refused: int = 0
    last: int = 0


class Search:
    """One configuration with at most one mutation."""

    def __init__(self, bounds: Bounds, mutation: str = "") -> None:
        self.bounds, self.mutation = bounds, mutation
        depth, slots = bounds.depth, bounds.depth + 2
        self.tick, self.sleep, self.closed, self.waiting, self.room = range(depth, depth + 5)
        self.first_cell = depth + 5  # copying: slots are atomic cells, read while they may be written
        words: tuple[object, ...] = tuple((position, 0, 0, position) for position in range(depth))
        cells = (0,) * slots if bounds.copying else ()
        self.machine = Machine((*words, 0, AWAKE, 0, 0, 0, *cells), slots)

    def has(self, name: str) -> bool:
        return self.mutation != name

    def fence(self, memory: Memory, thread: int, name: str) -> Memory:
        return self.machine.fence_seq_cst(memory, thread) if self.has(name) else memory

    # ---- the producer -----------------------------------------------------------------------------------------------
    def producer_steps(self, state: State) -> Iterator[State]:
        step = getattr(self, f"_p_{state.producer.label}", None)
        if step is not None:
            yield from step(state, state.memory, state.producer)

    def _p_offer(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        """drop_oldest fills at once; the others look for room first. Nobody sees the hand while it is filled, so that
        is part of the same step."""
        if p.offered == self.bounds.records:
            yield state._replace(producer=p._replace(label="close"))
        elif self.bounds.policy == "drop_oldest":
            yield self._filled(state, memory, p)
        else:
            for value, after in self.machine.loads(memory, PRODUCER, p.head % self.bounds.depth, acquire=False):
                if not _word(value)[1]:
                    yield self._filled(state, after, p)
                elif self.bounds.policy == "drop_newest":
                    following = p._replace(offered=p.offered + 1)
                    yield state._replace(memory=after, producer=following, refused=state.refused + 1)
                else:
                    yield state._replace(memory=after, producer=p._replace(label="wait_room"))

    def _filled(self, state: State, memory: Memory, p: Producer) -> State:
        memory = self.machine.write(memory, p.hand, p.head)
        if self.bounds.copying:  # the consumer may read it by an old word: also as an atomic cell
            memory = self.machine.store(memory, PRODUCER, self.first_cell + p.hand, p.head, release=False)
        return state._replace(memory=memory, producer=p._replace(label="load"))

    def _p_load(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        acquire = self.has("acquire of the look before the publication")
        for value, after in self.machine.loads(memory, PRODUCER, p.head % self.bounds.depth, acquire):
            word = _word(value)
            if word[0] != p.head - self.bounds.depth:
                raise ProtocolError(f"the word at position {p.head} is of position {word[0]}")
            yield state._replace(memory=after, producer=p._replace(label="swap" if word[1] else "put", word=word))

    def _p_put(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        """Into a free word, which nobody else writes."""
        where = p.head % self.bounds.depth
        if self.machine.newest(memory, where) != p.word:
            raise ProtocolError(f"{self.machine.newest(memory, where)} is overwritten, {p.word} was seen")
        release = self.has("release of the publishing store")
        memory = self.machine.store(memory, PRODUCER, where, (p.head, 1, 0, p.hand), release)
        yield self._published(state, memory, p)

    def _p_swap(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        """Against a full word, whose record is dropped with it unless the consumer was faster."""
        for won, value, after in self.machine.swaps(
            memory,
            PRODUCER,
            p.head % self.bounds.depth,
            p.word,
            (p.head, 1, 1, p.hand),
            acquire=False,
            release=self.has("release of the publishing swap"),
            acquire_failed=self.has("acquire of the publishing swap that fails"),
        ):
            word = _word(value)
            if won:
                yield self._published(state, after, p)._replace(dropped=state.dropped + 1)
            elif word[1] or word[0] != p.word[0]:
                raise ProtocolError(f"the swap lost against {word}, expected {p.word}: not a take")
            else:
                yield state._replace(memory=after, producer=p._replace(label="put", word=word))

    def _published(self, state: State, memory: Memory, p: Producer) -> State:
        label = "grow_tick" if self.bounds.doorbell else "offer"
        return state._replace(memory=memory, producer=Producer(label, p.head + 1, p.word[3], p.offered + 1))

    def _p_close(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        memory = self.machine.store(memory, PRODUCER, self.closed, 1, release=self.has("release of the close"))
        following = p._replace(label="grow_tick" if self.bounds.doorbell else "done", then="done")
        yield state._replace(memory=memory, producer=following)

    def _p_grow_tick(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        tick = self.machine.newest(memory, self.tick)  # its only writer knows it
        assert isinstance(tick, int)
        memory = self.machine.store(memory, PRODUCER, self.tick, tick + 1, release=self.has("release of the tick"))
        yield state._replace(memory=memory, producer=p._replace(label="light_fence"))

    def _p_light_fence(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        if not self.bounds.barrier:
            memory = self.fence(memory, PRODUCER, "fence before the sleep word")
        yield state._replace(memory=memory, producer=p._replace(label="look_at_sleep"))

    def _p_look_at_sleep(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        for value, after in self.machine.loads(memory, PRODUCER, self.sleep, acquire=False):
            yield state._replace(memory=after, producer=p._replace(label="wake" if value == PARKED else p.then))

    def _p_wake(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        old, memory = self.machine.update(memory, PRODUCER, self.sleep, lambda _: AWAKE, acquire=True, release=True)
        asleep = (state.asleep[0], state.asleep[1] and old != PARKED)
        yield state._replace(memory=memory, producer=p._replace(label=p.then), asleep=asleep)

    def _p_wait_room(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        for value, after in self.machine.loads(memory, PRODUCER, self.room, acquire=False):
            assert isinstance(value, int)
            yield state._replace(memory=after, producer=p._replace(label="wait_flag", room=value))

    def _p_wait_flag(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        memory = self.machine.store(memory, PRODUCER, self.waiting, 1, release=False)
        yield state._replace(memory=memory, producer=p._replace(label="wait_fence"))

    def _p_wait_fence(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        memory = self.fence(memory, PRODUCER, "fence of the producer that waits")
        yield state._replace(memory=memory, producer=p._replace(label="wait_look"))

    def _p_wait_look(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        for value, after in self.machine.loads(memory, PRODUCER, p.head % self.bounds.depth, acquire=False):
            following = p._replace(label="wait_futex") if _word(value)[1] else p._replace(label="offer", room=0)
            yield state._replace(memory=after, producer=following)

    def _p_wait_futex(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        sleeps = self.machine.newest(memory, self.room) == p.room
        yield state._replace(producer=p._replace(label="wait_sleep"), asleep=(sleeps, state.asleep[1]))

    def _p_wait_sleep(self, state: State, memory: Memory, p: Producer) -> Iterator[State]:
        if not state.asleep[0]:
            yield state._replace(producer=p._replace(label="offer", room=0))

    # ---- the consumer -----------------------------------------------------------------------------------------------
    def consumer_steps(self, state: State) -> Iterator[State]:
        step = getattr(self, f"_c_{state.consumer.label}", None)
        if step is not None:
            yield from step(state, state.memory, state.consumer)

    def _c_drain(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        for value, after in self.machine.loads(memory, CONSUMER, self.closed, self.has("acquire of the close")):
            yield state._replace(memory=after, consumer=c._replace(label="look", may_end=value == 1))

    def _c_look(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        depth = self.bounds.depth
        acquire = self.bounds.copying and self.has("acquire of the look that a copy begins with")
        for value, after in self.machine.loads(memory, CONSUMER, c.next % depth, acquire):
            word = _word(value)
            following = c._replace(label="drain", may_end=False)
            if word[0] == c.next and word[1]:
                following = c._replace(label="copy" if self.bounds.copying else "take", word=word, may_end=False)
            elif word[0] > c.next:
                following = following._replace(next=word[0] - depth + 1)
            elif word[0] == c.next:
                following = following._replace(next=c.next + 1)
            elif c.may_end:
                following = following._replace(label="done")
            elif self.bounds.doorbell:
                following = following._replace(label="collect")
            yield state._replace(memory=after, consumer=following)

    def _c_take(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        desired = (c.next, 0, c.word[2], c.hand)
        for won, _, after in self.machine.swaps(
            memory,
            CONSUMER,
            c.next % self.bounds.depth,
            c.word,
            desired,
            acquire=self.has("acquire of the taking swap"),
            release=self.has("release of the taking swap"),
        ):
            if not won:
                yield state._replace(memory=after, consumer=c._replace(label="drain", word=(0, 0, 0, 0)))
                continue
            found, after = self.machine.read(after, c.word[3])
            yield self._taken(state._replace(memory=after), c._replace(hand=c.word[3]), found)

    def _c_copy(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        cell = self.first_cell + c.word[3]
        for value, after in self.machine.loads(memory, CONSUMER, cell, acquire=False):
            assert isinstance(value, int)
            yield state._replace(memory=after, consumer=c._replace(label="keep", copy=value))

    def _c_keep(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        """A copy that is kept counts as a read of plain memory: it must be over before the producer has the slot."""
        m, where = self.machine, c.next % self.bounds.depth
        desired = (c.next, 0, c.word[2], c.word[3])
        release = self.has("release of the swap that keeps a copy")
        noted = m.note_read(memory, c.word[3])
        for won, _, after in m.swaps(noted, CONSUMER, where, c.word, desired, acquire=False, release=release):
            if won:
                yield self._taken(state._replace(memory=after), c, c.copy)
        for won, _, after in m.swaps(memory, CONSUMER, where, c.word, desired, acquire=False, release=release):
            if not won:
                yield state._replace(memory=after, consumer=c._replace(label="drain", word=(0, 0, 0, 0), copy=0))

    def _taken(self, state: State, c: Consumer, found: int) -> State:
        if found != c.next or c.next <= state.last:
            raise ProtocolError(f"record {c.next} was taken after {state.last}, its slot holds {found}")
        label = "signal_fence" if self.bounds.policy == "block" else "drain"
        following = Consumer(label, c.next + 1, c.hand, seen=c.seen)
        return state._replace(consumer=following, taken=state.taken + 1, last=c.next)

    def _c_signal_fence(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        memory = self.fence(memory, CONSUMER, "fence after a take under block")
        yield state._replace(memory=memory, consumer=c._replace(label="look_at_waiting"))

    def _c_look_at_waiting(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        for value, after in self.machine.loads(memory, CONSUMER, self.waiting, acquire=False):
            yield state._replace(memory=after, consumer=c._replace(label="take_flag" if value else "drain"))

    def _c_take_flag(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        old, memory = self.machine.update(memory, CONSUMER, self.waiting, lambda _: 0, acquire=True, release=True)
        yield state._replace(memory=memory, consumer=c._replace(label="grow_room" if old else "drain"))

    def _c_grow_room(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        grow = lambda value: value + 1  # noqa: E731
        _, memory = self.machine.update(memory, CONSUMER, self.room, grow, acquire=False, release=True)
        yield state._replace(memory=memory, consumer=c._replace(label="drain"), asleep=(False, state.asleep[1]))

    def _c_collect(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        for value, after in self.machine.loads(memory, CONSUMER, self.tick, self.has("acquire of the collect")):
            assert isinstance(value, int)
            following = c._replace(label="park") if value == c.seen else c._replace(label="drain", seen=value)
            yield state._replace(memory=after, consumer=following)

    def _c_park(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        memory = self.machine.store(memory, CONSUMER, self.sleep, PARKED, release=False)
        yield state._replace(memory=memory, consumer=c._replace(label="park_fence"))

    def _c_park_fence(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        if not self.bounds.barrier or not self.has("barrier on the producer's processor"):
            memory = self.fence(memory, CONSUMER, "fence before parking")
        elif self.has("barrier before parking"):
            memory = self.machine.barrier_everywhere(memory, CONSUMER)
        yield state._replace(memory=memory, consumer=c._replace(label="park_look"))

    def _c_park_look(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        for value, after in self.machine.loads(memory, CONSUMER, self.tick, acquire=False):
            label = "park_futex" if value == c.seen else "wake_up"
            yield state._replace(memory=after, consumer=c._replace(label=label))

    def _c_park_futex(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        sleeps = self.machine.newest(memory, self.sleep) == PARKED
        yield state._replace(consumer=c._replace(label="park_sleep"), asleep=(state.asleep[0], sleeps))

    def _c_park_sleep(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        if not state.asleep[1]:
            yield state._replace(consumer=c._replace(label="wake_up"))

    def _c_wake_up(self, state: State, memory: Memory, c: Consumer) -> Iterator[State]:
        memory = self.machine.store(memory, CONSUMER, self.sleep, AWAKE, release=False)
        yield state._replace(memory=memory, consumer=c._replace(label="collect"))

    # ---- the search -------------------------------------------------------------------------------------------------
    def run(self, limit: int = STATE_LIMIT) -> int:
        """The number of states, all of them sound. Raises ProtocolError at the first that is not."""
        depth = self.bounds.depth
        first = State(self.machine.start(), Producer("offer", depth, depth), Consumer("drain", depth, depth + 1))
        seen, stack = {first}, [first]
        while stack:
            state = stack.pop()
            following = [*self.producer_steps(state), *self.consumer_steps(state)]
            if not following:
                self._check_end(state)
            for after in following:
                known = len(seen)
                after = after._replace(memory=self.machine.forget(after.memory))
                seen.add(after)
                if len(seen) > known:
                    stack.append(after)
            if len(seen) > limit:
                raise RuntimeError(f"{self.bounds.name}: more than {limit} states; choose smaller bounds")
        return len(seen)

    def _check_end(self, state: State) -> None:
        if (state.producer.label, state.consumer.label) != ("done", "done"):
            labels = f"producer at {state.producer.label}, consumer at {state.consumer.label}"
            raise ProtocolError(f"lost wake-up: {labels}")
        if state.taken + state.dropped + state.refused != self.bounds.records:
            raise ProtocolError(f"{state.taken} taken + {state.dropped} dropped + {state.refused} refused")


def _word(value: object) -> Word:
    assert isinstance(value, tuple)
    return value
