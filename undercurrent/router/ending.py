"""How a request ends: every binding is told first, then results are collected within one deadline."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from undercurrent.core import ProbeResult
from undercurrent.router.bounded import BoundedBinding
from undercurrent.router.forked import ForkedBinding
from undercurrent.router.requests import LiveRequest, LocalBinding
from undercurrent.router.sampling import mark_sampled, reads_every_record

if TYPE_CHECKING:
    from undercurrent.workers import AsyncBinding
    from undercurrent.workers.lane import Lane

__all__ = ["EndListeners", "RequestEndListener", "collect_results", "tell_workers"]

_logger = logging.getLogger("undercurrent.router")

RequestEndListener = Callable[[str, dict[str, ProbeResult]], None]
"""`listener(request_id, results)`, called once per ended request on the thread that ended it."""


def tell_workers(request: LiveRequest, deadline: float) -> None:
    """Tells every worker of `request` to give its verdict by `deadline`; waits for none, so that all drain at once."""
    by_lane: dict[Lane, list[AsyncBinding]] = {}
    for binding in request.worker_bindings().values():
        if isinstance(binding, ForkedBinding):
            binding.end(deadline)
            continue
        own = binding.guard if isinstance(binding, BoundedBinding) else binding
        if own.is_own_process:
            by_lane.setdefault(own.lane, []).append(own)
    for lane, bindings in by_lane.items():
        lane.end_bindings(bindings, deadline)


def collect_results(request: LiveRequest, deadline: float) -> dict[str, ProbeResult]:
    """Returns a result for every point, in the order of registration, after `tell_workers`.

    Inline points are finished on this thread while the workers drain. No probe's error is raised here: the result of a
    probe whose `on_end` raised is empty and says so. When the caller is interrupted, workers are told to drop the rest.
    """
    results: dict[str, ProbeResult] = {}
    pending = request.worker_bindings()
    try:
        for name, binding in request.bindings.items():
            if isinstance(binding, LocalBinding):
                results[name] = binding.finish()
        for name in list(pending):
            results[name] = pending[name].wait_result(deadline)
            del pending[name]
    except BaseException:
        for worker_binding in pending.values():
            worker_binding.abandon()
        raise
    for name, point in request.points.items():
        if not reads_every_record(point):
            mark_sampled(results[name])
    return {name: results[name] for name in request.bindings}


class EndListeners:
    """Who is told when a request has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[object, RequestEndListener] = {}  # guarded by _lock

    def add(self, listener: RequestEndListener) -> Callable[[], None]:
        """Adds `listener` and returns the function that removes it again; calling that twice is harmless."""
        token = object()
        with self._lock:
            self._listeners[token] = listener

        def remove() -> None:
            with self._lock:
                self._listeners.pop(token, None)

        return remove

    def notify(self, request_id: str, results: dict[str, ProbeResult]) -> None:
        """Calls every listener in the order of adding, each with a dictionary of its own; what they raise is logged."""
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            try:
                listener(request_id, dict(results))
            except Exception:
                _logger.exception("a request-end listener raised, request %r", request_id)

    def renew_after_fork(self) -> None:
        """Replaces the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()
