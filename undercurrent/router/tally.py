"""A counter that several threads bump without a lock."""

from __future__ import annotations

import itertools

__all__ = ["Tally"]


class Tally:
    """Counts calls of `bump`, which is one C call and therefore indivisible between threads.

    `counter.value += 1` is three bytecodes and may lose an increment when threads switch between them; a lock would
    cost more than the rest of an inline `route()`. `bump` returns how often it was called before.
    """

    __slots__ = ("_before", "_count", "bump")

    def __init__(self) -> None:
        self._count = itertools.count()
        self.bump = self._count.__next__
        self._before = 0

    @property
    def value(self) -> int:
        """How often `bump` was called."""
        # An `itertools.count` shows its next number in its repr only; to take it would change what `bump` returns.
        return int(repr(self._count)[len("count(") : -1]) - self._before

    def begin_at_zero(self) -> None:
        """Forgets what was counted so far; what `bump` returns goes on."""
        self._before += self.value
