"""A counter that several threads bump without a lock."""

from __future__ import annotations

import itertools
import threading

__all__ = ["Tally"]


class Tally:
    """Counts calls of `bump`, which is one C call and therefore indivisible between threads.

    `counter.value += 1` is three bytecodes and may lose an increment when threads switch between them; a lock would
    cost more than the rest of an inline `route()`.
    """

    __slots__ = ("_lock", "_read_count", "bump")

    def __init__(self) -> None:
        self.bump = itertools.count().__next__
        self._lock = threading.Lock()
        self._read_count = 0  # guarded by _lock

    @property
    def value(self) -> int:
        """How often `bump` was called."""
        with self._lock:
            # The only way to read an `itertools.count` is to bump it, so reads are counted and taken off again.
            value = self.bump() - self._read_count
            self._read_count += 1
            return value

    def renew_after_fork(self) -> None:
        """Replaces the lock, which a thread of the parent may have held while it read."""
        self._lock = threading.Lock()

    def begin_at_zero(self) -> None:
        """Forgets what was counted so far."""
        counted = self.value
        with self._lock:
            self._read_count += counted
