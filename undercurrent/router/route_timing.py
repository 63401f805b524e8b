"""Times some calls of `route()`: the others are not slowed by it at all, as they meet nothing new on their way."""

from __future__ import annotations

import time
from collections.abc import Iterable

from undercurrent.core import ProbeSignal
from undercurrent.router.inline import Dispatch
from undercurrent.router.requests import LiveRequest, RequestTable, RouteKey
from undercurrent.spec import ActivationRecord
from undercurrent.workers.measures import ROUTE_AT, Measures, PointKey
from undercurrent.workers.meters import SharedMeter

__all__ = ["RouteTimer"]

_FIRST_CALLS = 8


class RouteTimer:
    """Puts a stop-watch in place of a route for one call, then takes it out again.

    Each point of a request has one of its first eight calls timed, another one in each request, and one more after each
    `arm`. A stop-watch that is passed over costs one more function call.
    """

    def __init__(self, table: RequestTable, measures: Measures) -> None:
        self._table = table
        self._measures = measures
        self._number = 0  # only ever a little wrong when two threads register: it spreads the sample

    def begin(self, request: LiveRequest) -> None:
        """Times one of the first calls of each point of a request that was just published."""
        self._number += 1
        self._arm(request, skip_count=self._number % _FIRST_CALLS)

    def arm(self, requests: Iterable[LiveRequest]) -> None:
        """Times the next call of each point of these requests."""
        for request in requests:
            self._number += 1
            self._arm(request, skip_count=0)

    def _arm(self, request: LiveRequest, *, skip_count: int) -> None:
        by_point: dict[str, list[RouteKey]] = {}
        for key in request.routes:
            by_point.setdefault(key[1], []).append(key)
        for name, keys in by_point.items():
            meter = self._measures.point(self._measures.fit(PointKey.of(request.points[name])))
            key = keys[self._number % len(keys)]
            dispatch = request.routes[key]
            self._table.replace_route(key, dispatch, self._timed(key, dispatch, meter, skip_count))

    def _timed(self, key: RouteKey, dispatch: Dispatch, meter: SharedMeter, skip_count: int) -> Dispatch:
        def dispatch_timed(record: ActivationRecord) -> ProbeSignal | None:
            nonlocal skip_count
            if skip_count > 0:
                skip_count -= 1
                return dispatch(record)
            self._table.replace_route(key, dispatch_timed, dispatch)
            started_ns = time.monotonic_ns()
            try:
                return dispatch(record)
            finally:
                meter.note(ROUTE_AT, time.monotonic_ns() - started_ns)

        return dispatch_timed
