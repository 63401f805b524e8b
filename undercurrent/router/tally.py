"""A counter that several threads bump without a lock."""

from __future__ import annotations

import itertools

__all__ = ["Tally"]


class Tally:
    """Counts calls of `bump`, which is one C call and therefore indivisible between threads.

    `counter.value += 1` is three bytecodes and may lose an increment when threads switch between them; a lock would
    cost more than the rest of an inline `route()`. `bump` returns how often it was called before.
    """

    __slots__ = ("_before", "_count", "_last", "bump")

    def __init__(self) -> None:
        self._count = itertools.count()
        self.bump = self._count.__next__
        self._before = 0
        self._last: int | None = None

    @property
    def value(self) -> int:
        """How often `bump` was called, up to a call of `close`."""
        if self._last is not None:
            return self._last
        # An `itertools.count` shows its next number in its repr only; to take it would change what `bump` returns.
        return int(repr(self._count)[len("count(") : -1]) - self._before

    def close(self) -> int:
        """Returns `value`, which stands from now on; in a tenth of the time, as no `bump` shall follow."""
        if self._last is None:
            self._last = self.bump() - self._before
        return self._last

    def begin_at_zero(self) -> None:
        """Forgets what was counted so far; what `bump` returns goes on."""
        self._before += self.value
