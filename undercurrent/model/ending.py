"""Ends requests without holding the text up: requests whose probes are in workers are ended on threads of their own."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from undercurrent.core import ProbeResult
from undercurrent.engines.base import RowRouter
from undercurrent.router.call_threads import CallThreads

__all__ = ["RequestEnder"]

# Each waits for one request; further ones are ended as soon as one of these has.
_THREAD_COUNT_MAX = 32


class RequestEnder:
    """Owns the threads `undercurrent-results`; they are daemons, as an interpreter that exits waits for no verdict.

    `close` is idempotent; the requests handed over so far are ended all the same, each within the router's
    `drain_timeout`.
    """

    def __init__(self, *, waits_for_workers: bool) -> None:
        self._waits_for_workers = waits_for_workers
        self._threads = CallThreads(name="undercurrent-results", thread_count_max=_THREAD_COUNT_MAX)
        self._lock = threading.Lock()
        self._pending: set[Future[dict[str, ProbeResult]]] = set()  # guarded by _lock

    def end(self, router: RowRouter, request_id: str) -> Future[dict[str, ProbeResult]]:
        """Ends a request at `router`; the future holds its results, or what ending it raised.

        Probes of this process are done when the text is: a request that has only those is ended on this thread.
        """
        if not self._waits_for_workers:
            return _end_here(router, request_id)
        try:
            future = self._threads.submit(lambda: router.end_request(request_id))
        except RuntimeError:
            # `close` gave up waiting for a step that takes very long; what was opened is ended all the same.
            return _end_here(router, request_id)
        with self._lock:
            self._pending.add(future)
        future.add_done_callback(self._forget)
        return future

    def close(self, *, wait: bool) -> None:
        """Ends the threads once they have nothing left to do; with `wait`, returns when every request has ended."""
        with self._lock:
            pending = list(self._pending) if wait else []
        for future in pending:
            future.exception()
        self._threads.close()

    def _forget(self, future: Future[dict[str, ProbeResult]]) -> None:
        with self._lock:
            self._pending.discard(future)


def _end_here(router: RowRouter, request_id: str) -> Future[dict[str, ProbeResult]]:
    done: Future[dict[str, ProbeResult]] = Future()
    try:
        done.set_result(router.end_request(request_id))
    except Exception as error:
        done.set_exception(error)
    return done
