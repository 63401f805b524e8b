"""What rings and lanes count, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["NO_COUNTS", "LaneStatistics", "RingStatistics", "to_statistics"]

NO_COUNTS: Final = (0,) * 15  # what the extension would count of a ring without a past


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """The counters of one ring. At rest, produced = consumed + dropped + waiting + in_hand + lost."""

    produced: int  # records offered, refused ones included
    consumed: int  # handled by the consumer
    dropped_oldest: int  # overwritten unread
    dropped_newest: int  # refused: the ring was full
    no_memory: int  # refused: no slot within the memory limit
    unsupported: int  # refused: no bytes to be had from the payload
    too_large: int  # refused: longer than the lane's record_bytes_max
    block_timeout: int  # refused: no room came in time
    waiting: int
    in_hand: int  # taken, not yet handled
    lost: int  # taken by a consumer that died
    queue_depth: int
    user: tuple[int, int, int, int]  # the consumer's own counters; their meaning is its own

    @property
    def dropped(self) -> int:
        """Records that no consumer will see: overwritten and refused ones."""
        return (
            self.dropped_oldest
            + self.dropped_newest
            + self.no_memory
            + self.unsupported
            + self.too_large
            + self.block_timeout
        )

    @property
    def balanced(self) -> bool:
        """Whether what the consumer holds is a number it can hold: else a counter was tampered with."""
        return 0 <= self.in_hand <= min(self.queue_depth, 16)


def to_statistics(counts: tuple[int, ...], queue_depth: int) -> RingStatistics:
    """Builds the record from the extension's counts, in the order of `uc_counts_t`."""
    published, consumed, oldest, newest, memory, unsupported, large, timeout, waiting, lost, in_hand = counts[:11]
    return RingStatistics(
        produced=published + newest + memory + unsupported + large + timeout,
        consumed=consumed,
        dropped_oldest=oldest,
        dropped_newest=newest,
        no_memory=memory,
        unsupported=unsupported,
        too_large=large,
        block_timeout=timeout,
        waiting=waiting,
        in_hand=in_hand,
        lost=lost,
        queue_depth=queue_depth,
        user=(counts[11], counts[12], counts[13], counts[14]),
    )


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """What a lane holds."""

    rings: int
    committed_bytes: int
    slots_issued: int
    slots_free: int
    consumer_deaths: int
