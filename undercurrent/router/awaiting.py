"""Blocking calls of the router, awaited from an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from undercurrent.router.call_threads import CallThreads

__all__ = ["Awaiting"]

_logger = logging.getLogger("undercurrent.router")

# Each thread waits for one request at a time, so this many requests may drain slowly before others queue behind them.
_THREAD_COUNT_MAX = 32

ReturnT = TypeVar("ReturnT")


class Awaiting:
    """Owns the threads `undercurrent-asyncio`; they are started when needed. `close` is idempotent."""

    def __init__(self) -> None:
        self._threads = CallThreads(name="undercurrent-asyncio", thread_count_max=_THREAD_COUNT_MAX)

    async def run(self, call: Callable[[], ReturnT], *, undo: Callable[[], object] | None = None) -> ReturnT:
        """Makes `call` on a thread and returns what it returns.

        The call is made even when the awaiting task is cancelled; `undo` is then called after it has succeeded.
        """
        future = self._threads.submit(call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if undo is not None:
                future.add_done_callback(lambda done: _undo(done, undo))
            raise

    def close(self) -> None:
        """Lets the threads end after their calls; waits for none."""
        self._threads.close()


def _undo(done: Future[ReturnT], undo: Callable[[], object]) -> None:
    if done.exception() is not None:
        return
    try:
        undo()
    except Exception:
        _logger.exception("a cancelled registration could not be undone")
