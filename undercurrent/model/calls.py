"""Which calls run on an object, so that closing it can wait for them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from undercurrent.errors import ProbingRuntimeError

__all__ = ["RunningCalls"]


class RunningCalls:
    """Counts calls by thread; after `close` no further one begins."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts: Counter[int] = Counter()  # guarded by _changed; running calls by thread
        self._is_closed = False  # guarded by _changed

    @property
    def is_closed(self) -> bool:
        """Whether no further call begins."""
        return self._is_closed

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around one call.

        Raises:
            ProbingRuntimeError: closed.
        """
        me = threading.get_ident()
        with self._changed:
            if self._is_closed:
                raise ProbingRuntimeError("this ProbedModel is closed; generate before `close()`, or make a new one")
            self._counts[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._counts[me] -= 1
                self._counts += Counter()  # forgets threads without calls
                self._changed.notify_all()

    def close(self) -> bool:
        """Lets no further call begin; False where that is so already."""
        with self._changed:
            is_first, self._is_closed = not self._is_closed, True
        return is_first

    def wait(self, timeout_s: float) -> bool:
        """Waits for the calls of other threads; one of this thread cannot end before this one."""
        me = threading.get_ident()
        with self._changed:
            return self._changed.wait_for(lambda: not set(self._counts) - {me}, timeout_s)
