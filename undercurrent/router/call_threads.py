"""Threads that make blocking calls for an event loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["CallThreads"]

ReturnT = TypeVar("ReturnT")
_Call = tuple["Future[Any]", Callable[[], Any]]


class CallThreads:
    """Up to `thread_count_max` threads, started when needed.

    `concurrent.futures` joins its threads at interpreter exit, so a pending drain would hold up an exit without
    shutdown; these are daemon threads, which own nothing but the call they make.
    """

    def __init__(self, *, name: str, thread_count_max: int) -> None:
        self._name = name
        self._thread_count_max = thread_count_max
        self._lock = threading.Lock()
        # Unbounded: each entry belongs to a coroutine that awaits it, so their number is the caller's.
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread_count = 0  # guarded by _lock
        self._unfinished_count = 0  # guarded by _lock: calls submitted and not yet returned
        self._is_closed = False  # guarded by _lock

    def submit(self, call: Callable[[], ReturnT]) -> Future[ReturnT]:
        """Has `call` made on one of the threads; never waits. The future cannot be cancelled.

        Raises:
            RuntimeError: the threads were closed.
        """
        future: Future[ReturnT] = Future()
        # From here on `cancel()` is refused: a request that was taken out to be ended must be ended.
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"threads {self._name!r} are closed")
            self._unfinished_count += 1
            needs_thread = self._thread_count < min(self._unfinished_count, self._thread_count_max)
            self._thread_count += needs_thread
            self._calls.put((future, call))
        if needs_thread:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """Lets the threads end after the calls already submitted; waits for none. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for _ in range(self._thread_count):
                self._calls.put(None)

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            future, call = entry
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            with self._lock:
                self._unfinished_count -= 1
            # An idle thread must not keep the last caller's request alive.
            del entry, future, call
