"""Whose turn it is: a bounded number of calls on threads, a bounded queue before them, and an orderly end.

Everything here belongs to the event loop, but for `_work`, which runs on threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from undercurrent.predict.serve.limits import ServeLimits
from undercurrent.predict.serve.problems import Problem

__all__ = ["Turns"]

RETRY_AFTER_S_MAX = 60
_SMOOTHING = 0.2

_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", contextvars.Context, Callable[[], Any]]


class Turns:
    """Runs calls on at most `concurrency` threads, first come first served.

    The threads are named `undercurrent-decide-<n>`, start when needed, stay until `close`, are daemonic and own
    nothing: a model that never returns keeps its thread and its turn, but not the process.
    """

    def __init__(self, limits: ServeLimits) -> None:
        self._limits = limits
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread_count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pending: set[asyncio.Future[Any]] = set()
        self._call_s = 0.0
        self.busy_count = 0
        """Calls that run, those that nobody waits for any more included."""

    @property
    def waiting_count(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether a request that came now would be let in."""
        return self.busy_count < self._limits.concurrency or self.waiting_count < self._limits.queue_depth

    async def run(self, work: Callable[[], Any]) -> Any:
        """Calls `work` on a thread when its turn comes, and returns or raises what it does.

        A caller that is cancelled while it waits leaves the queue; while its call runs, the call goes on.

        Raises:
            Problem: 503 where the queue is full, or the app was stopped.
        """
        await self._enter()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._pending.add(future)
        if self._thread_count < self.busy_count:
            self._thread_count += 1
            name = f"undercurrent-decide-{self._thread_count}"
            threading.Thread(target=_work, args=(self._jobs, self._returned), name=name, daemon=True).start()
        started_at = loop.time()
        self._jobs.put((loop, future, contextvars.copy_context(), work))
        try:
            answer = await future
        finally:
            self._pending.discard(future)
        self._call_s += _SMOOTHING * (loop.time() - started_at - self._call_s)
        return answer

    def fail_pending(self, error: Exception) -> None:
        """Ends the wait of everybody, in the queue or on a thread."""
        for future in (*self._waiting, *self._pending):
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def close(self) -> None:
        """Lets idle threads end, and busy ones when they are done. Calls after it start others."""
        for _ in range(self._thread_count):
            self._jobs.put(None)
        self._jobs = queue.SimpleQueue()
        self._thread_count = 0

    async def _enter(self) -> None:
        if self.busy_count < self._limits.concurrency:
            self.busy_count += 1
            return
        if len(self._waiting) >= self._limits.queue_depth:
            raise Problem(
                503,
                "busy",
                f"{self.busy_count} requests are answered and {len(self._waiting)} wait, which is the limit; try again",
                headers={"Retry-After": str(self._retry_after_s())},
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # The turn was given in the moment of the cancellation: it goes to the next.
                self._leave()
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.busy_count -= 1

    def _retry_after_s(self) -> int:
        rounds = (len(self._waiting) + 1) / self._limits.concurrency
        return min(RETRY_AFTER_S_MAX, max(1, math.ceil(self._call_s * rounds)))

    def _returned(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._leave()
        if future.done():
            return
        if error is None:
            future.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            # No future takes StopIteration, and a thread's SystemExit is no reason to end the server.
            wrapped = RuntimeError(f"the call ended with {type(error).__name__}")
            wrapped.__cause__ = error
            future.set_exception(wrapped)


def _work(
    jobs: queue.SimpleQueue[_Job | None],
    returned: Callable[[asyncio.Future[Any], Any, BaseException | None], None],
) -> None:
    """Runs jobs on a thread until it is told to end."""
    while (job := jobs.get()) is not None:
        loop, future, context, work = job
        try:
            value, error = context.run(work), None
        except BaseException as raised:
            value, error = None, raised
        # A loop that was closed meanwhile has nobody who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(returned, future, value, error)
        del job, context, work, future, value, error
