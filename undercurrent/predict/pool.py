"""Threads on which hooks with a deadline run: a bounded number, started when needed and kept."""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from undercurrent.predict.errors import HookTimeoutError

__all__ = ["POOL", "HookPool"]

THREAD_COUNT_MAX = 32

MethodT = TypeVar("MethodT")
ArgumentT = TypeVar("ArgumentT")

_Job = tuple[threading.Lock, list[BaseException], contextvars.Context, Callable[[Any, Any], None], Any, Any]
"""What ends the wait, what was raised, and the call: contextvars, function, and its two arguments."""


class _Seat:
    """A thread of the pool, and the place where its next job lies."""

    __slots__ = ("job", "wake")

    def __init__(self) -> None:
        self.job: _Job | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class HookPool:
    """Runs calls under a deadline. Threads are named `undercurrent-hook-<n>`, daemonic, and own nothing.

    A call that outlasts its deadline keeps its thread until it returns; `thread_count_max` such calls leave none, and a
    further call then fails at its own deadline.
    """

    def __init__(self, thread_count_max: int = THREAD_COUNT_MAX) -> None:
        self.thread_count_max = thread_count_max
        self.reset()

    def reset(self) -> None:
        """Forgets all threads: a forked child has none of them."""
        self._idle: list[_Seat] = []
        self._has_idle = threading.Condition()
        self._waiting_count = 0
        self._thread_count = 0

    @property
    def thread_count(self) -> int:
        """Threads that live now."""
        return self._thread_count

    def run(
        self,
        work: Callable[[MethodT, ArgumentT], None],
        method: MethodT,
        argument: ArgumentT,
        deadline_s: float,
        name: str,
    ) -> BaseException | None:
        """Calls `work(method, argument)` on a thread, in a copy of this thread's contextvars, and returns what it
        raised, or None.

        Whatever this method raises itself means that `work` may still run.

        Raises:
            HookTimeoutError: no thread became free, or `work` did not return, within `deadline_s`.
        """
        done = threading.Lock()
        done.acquire()
        raised: list[BaseException] = []
        job: _Job = (done, raised, contextvars.copy_context(), work, method, argument)
        left_s = deadline_s
        try:
            seat = self._idle.pop()
        except IndexError:
            started_at = time.monotonic()
            found = self._find_seat(started_at + deadline_s)
            if found is None:
                raise HookTimeoutError(
                    f"hook {name}: all {self.thread_count_max} threads were busy for its deadline of {deadline_s:g} s;"
                    " look for hooks that do not return"
                ) from None
            seat = found
            left_s = max(0.0, started_at + deadline_s - time.monotonic())
        seat.job = job
        seat.wake.release()
        if not done.acquire(timeout=left_s):
            raise HookTimeoutError(f"hook {name} did not return within its deadline of {deadline_s:g} s")
        return raised[0] if raised else None

    def _find_seat(self, until: float) -> _Seat | None:
        with self._has_idle:
            if self._thread_count < self.thread_count_max:
                self._thread_count += 1
                seat = _Seat()
                thread = threading.Thread(
                    target=self._serve, args=(seat,), name=f"undercurrent-hook-{self._thread_count}", daemon=True
                )
                thread.start()
                return seat
            self._waiting_count += 1
            try:
                while True:
                    if self._idle:
                        try:
                            return self._idle.pop()
                        except IndexError:
                            continue
                    left_s = until - time.monotonic()
                    if left_s <= 0:
                        return None
                    self._has_idle.wait(left_s)
            finally:
                self._waiting_count -= 1

    def _serve(self, seat: _Seat) -> None:
        while True:
            seat.wake.acquire()
            job, seat.job = seat.job, None
            assert job is not None
            done, raised, context, work, method, argument = job
            try:
                context.run(work, method, argument)
            except BaseException as error:
                raised.append(error)
            # What stays in this frame until the next job would keep a context alive.
            del job, raised, context, method, argument
            # Idle before done: whoever waits for this hook finds the thread free for its next one.
            self._idle.append(seat)
            if self._waiting_count:
                with self._has_idle:
                    self._has_idle.notify()
            done.release()


POOL = HookPool()
"""The one pool of this process."""

os.register_at_fork(after_in_child=POOL.reset)
