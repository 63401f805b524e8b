"""What the weak-memory search runs: bounded configurations, and the orders and fences whose absence it must find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    policy: str  # drop_oldest, drop_newest or block
    depth: int
    records: int
    doorbell: bool = True  # False: the consumer polls; the ring alone is searched
    barrier: bool = True  # the producer's process is registered for the consumer's membarrier(2)
    copying: bool = False  # the consumer has no hand: it copies a record, then swaps the slot for itself

    @property
    def name(self) -> str:
        bell = "polling" if not self.doorbell else "membarrier" if self.barrier else "fences"
        return f"{self.policy} depth={self.depth} records={self.records} {bell}{' copying' if self.copying else ''}"


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str  # the order or fence that is missing
    bounds: Bounds  # the configuration that finds it


QUICK = (
    Bounds("drop_oldest", depth=1, records=5, doorbell=False),
    Bounds("drop_oldest", depth=2, records=5, doorbell=False),
    Bounds("drop_oldest", depth=3, records=6, doorbell=False),
    Bounds("drop_oldest", depth=1, records=5, doorbell=False, copying=True),
    Bounds("drop_oldest", depth=2, records=5, doorbell=False, copying=True),
    Bounds("drop_newest", depth=2, records=5, doorbell=False),
    Bounds("drop_oldest", depth=1, records=2),
    Bounds("drop_oldest", depth=1, records=2, barrier=False),
)
SHORT = (
    *QUICK,
    Bounds("block", depth=1, records=2),
    Bounds("block", depth=1, records=2, barrier=False),
)
LONG = (
    *SHORT,
    Bounds("drop_oldest", depth=2, records=9, doorbell=False),
    Bounds("drop_oldest", depth=2, records=9, doorbell=False, copying=True),
    Bounds("drop_oldest", depth=2, records=3),
    Bounds("drop_newest", depth=1, records=3),
)
_RING = Bounds("drop_oldest", depth=1, records=5, doorbell=False)
_COPY = Bounds("drop_oldest", depth=1, records=5, doorbell=False, copying=True)
_BELL = Bounds("block", depth=1, records=2)
_FENCES = Bounds("block", depth=1, records=2, barrier=False)
MUTATIONS = (
    Mutation("release of the publishing store", _RING),
    Mutation("release of the publishing swap", _RING),
    Mutation("acquire of the look before the publication", _RING),
    Mutation("acquire of the publishing swap that fails", _RING),
    Mutation("release of the taking swap", _RING),
    Mutation("acquire of the taking swap", _RING),
    Mutation("acquire of the look that a copy begins with", _COPY),
    Mutation("release of the swap that keeps a copy", _COPY),
    Mutation("release of the close", _RING),
    Mutation("acquire of the close", _RING),
    Mutation("release of the tick", _BELL),
    Mutation("acquire of the collect", _BELL),
    Mutation("barrier before parking", _BELL),
    Mutation("barrier on the producer's processor", _BELL),
    Mutation("fence before parking", _FENCES),
    Mutation("fence before the sleep word", _FENCES),
    Mutation("fence of the producer that waits", _BELL),
    Mutation("fence after a take under block", _BELL),
)
