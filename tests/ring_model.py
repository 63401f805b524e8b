"""The ring in plain Python: what any sequence of calls must answer. The oracle of the property tests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

DROP_OLDEST, DROP_NEWEST, BLOCK = 0, 1, 2
OK, FULL, CLOSED = 0, 1, 4
HAND = 16


@dataclass
class Record:
    """A published record: its position and its bytes."""

    position: int
    payload: bytes


@dataclass
class RingModel:
    """One ring with its consumer. `hands` are the batches taken and not finished."""

    depth: int
    policy: int
    start: int
    waiting: deque[Record] = field(default_factory=deque)
    hands: list[list[Record]] = field(default_factory=list)
    is_closed: bool = False
    published: int = 0
    consumed: int = 0
    dropped_oldest: int = 0
    dropped_newest: int = 0
    refused: int = 0
    lost: int = 0

    @property
    def in_hand(self) -> int:
        """Records taken and not finished."""
        return sum(len(batch) for batch in self.hands)

    @property
    def hand_room(self) -> int:
        """How many records may be taken now."""
        return min(self.depth, HAND) - self.in_hand

    def publish(self, payload: bytes) -> int:
        """What ProducerRing.publish answers."""
        if self.is_closed:
            return CLOSED
        if len(self.waiting) == self.depth:
            if self.policy == DROP_OLDEST:
                self.waiting.popleft()
                self.dropped_oldest += 1
            else:
                self.dropped_newest += self.policy == DROP_NEWEST
                return FULL
        self.waiting.append(Record(self.start + self.published, payload))
        self.published += 1
        return OK

    def take(self, limit: int) -> list[Record]:
        """What ConsumerRing.take returns; empty for None."""
        count = min(limit, self.hand_room, len(self.waiting))
        batch = [self.waiting.popleft() for _ in range(count)]
        if batch:
            self.hands.append(batch)
        return batch

    def finish(self, index: int) -> None:
        """The batch was handled."""
        self.consumed += len(self.hands.pop(index))

    def refuse(self) -> None:
        """A record was refused before the ring."""
        self.refused += 1

    def lose_consumer(self) -> None:
        """The consumer dies: what it held is lost, what waits stays."""
        self.lost += self.in_hand
        self.hands.clear()

    @property
    def produced(self) -> int:
        """Every record offered and counted."""
        return self.published + self.dropped_newest + self.refused

    @property
    def at_end(self) -> bool:
        """Closed and drained."""
        return self.is_closed and not self.waiting

    def check_identity(self) -> None:
        """Asserts that no record is missing or counted twice."""
        dropped = self.dropped_oldest + self.dropped_newest + self.refused
        assert self.produced == self.consumed + dropped + len(self.waiting) + self.in_hand + self.lost
