"""Times some calls of `route()`: the others are not slowed by it at all, as they meet nothing new on their way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from undercurrent.core import ProbeSignal
from undercurrent.router.inline import Dispatch
from undercurrent.router.requests import LiveRequest, RequestTable, RouteKey, tensor_type_word
from undercurrent.spec import ActivationRecord, ExtractionPoint
from undercurrent.workers.measures import ROUTE_AT
from undercurrent.workers.meters import SharedMeter

__all__ = ["RouteTimer"]

_FIRST_CALLS = 8
_ARMED_MAX = 64


class RouteTimer:
    """Puts a stop-watch in place of a route for one call, then takes it out again.

    Each request has one of its first eight calls for one of its points timed: another call and another point in each.
    After an `arm` the next call of every point is timed. A stop-watch that is passed over costs one more function call.
    """

    def __init__(self, table: RequestTable, meter_of: Callable[[ExtractionPoint], SharedMeter]) -> None:
        self._table = table
        self._meter_of = meter_of
        self._number = 0  # only ever a little wrong when two threads register: it spreads the sample

    def first_routes(self, request: LiveRequest) -> dict[RouteKey, Dispatch]:
        """What to publish in place of some of a new request's routes."""
        if not request.points:
            return {}
        self._number = number = self._number + 1
        names = list(request.points)
        point = request.points[names[number % len(names)]]
        key = _key_of(request, point, number)
        # The call moves on when the point has come round, or a point's place would tell which of its calls is timed.
        skip_count = number // len(names) % _FIRST_CALLS
        return {key: self._timed(key, request.routes[key], self._meter_of(point), skip_count)}

    def arm(self, requests: Iterable[LiveRequest]) -> None:
        """Times the next call of each point of these requests; of 64 of them, others each time."""
        found = list(requests)
        start = self._number % max(1, len(found))
        for request in (found[start:] + found[:start])[:_ARMED_MAX]:
            self._number = number = self._number + 1
            for point in request.points.values():
                key = _key_of(request, point, number)
                dispatch = request.routes[key]
                self._table.replace_route(key, dispatch, self._timed(key, dispatch, self._meter_of(point), 0))

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


def _key_of(request: LiveRequest, point: ExtractionPoint, number: int) -> RouteKey:
    """The route of one of a point's layers."""
    layer = point.layers[number % len(point.layers)]
    return request.request_id, point.name, layer, tensor_type_word(point.tensor_type)
