"""A semaphore that serves the most urgent waiter first, and is tied to no event loop while nobody waits."""

from __future__ import annotations

import asyncio
import heapq
import itertools

__all__ = ["PrioritySlots"]


class PrioritySlots:
    """`count` slots, for one event loop at a time. Among equal priorities the first to come is the first served."""

    def __init__(self, count: int) -> None:
        self.free = count
        """Slots nobody has."""
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    async def take(self, priority: int = 0) -> None:
        """Takes a slot; waits behind waiters of higher or equal priority."""
        if self.free > 0:
            self.free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (-priority, next(self._arrivals), waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            # Cancelled after the slot was handed over: it goes to the next one.
            if waiter.done() and not waiter.cancelled():
                self.give()
            raise

    def give(self) -> None:
        """Gives a slot back, to the most urgent waiter where there is one."""
        while self._waiters:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1
