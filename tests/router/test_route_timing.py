"""A sample of `route()` calls is timed; all others take their route as if nobody looked."""

from __future__ import annotations

import itertools

import pytest
from router_points import REGISTRY, context, fresh_id, make_point, make_record

from undercurrent.errors import RouterError
from undercurrent.router import Router


def timed(router: Router, point: str = "guard") -> int:
    found = router.totals().point(point)
    assert found is not None
    return found.route.count


def test_each_request_has_one_of_its_first_calls_timed() -> None:
    with Router(REGISTRY) as router:
        for _ in range(16):
            with router.request([make_point()]) as request:
                for position in range(8):
                    request.route(make_record(request.request_id, position=position))
        assert timed(router) == 16


def test_the_timed_call_is_another_one_in_each_request() -> None:
    with Router(REGISTRY) as router:
        for calls in itertools.chain(range(8), range(8)):
            with router.request([make_point()]) as request:
                for position in range(calls):
                    request.route(make_record(request.request_id, position=position))
        assert 0 < timed(router) < 16


def test_points_take_turns() -> None:
    points = [make_point("a"), make_point("b")]
    with Router(REGISTRY) as router:
        for _ in range(4):
            with router.request(points) as request:
                for position in range(8):
                    for name in ("a", "b"):
                        request.route(make_record(request.request_id, name, position=position))
        assert (timed(router, "a"), timed(router, "b")) == (2, 2)


def test_an_untimed_call_goes_straight_to_the_probe() -> None:
    with Router(REGISTRY) as router, router.request([make_point()], request_id="req") as request:
        for position in range(8):
            request.route(make_record("req", position=position))
        route = router._routes["req", "guard", 4, "mlp_out"]
        assert route is router._table.live_requests()[0].routes["req", "guard", 4, "mlp_out"]


def test_reading_the_metrics_times_the_next_call_of_every_live_point() -> None:
    with Router(REGISTRY) as router, router.request([make_point()], request_id="req") as request:
        for position in range(8):
            request.route(make_record("req", position=position))
        before = timed(router)
        for position in range(8, 12):
            request.route(make_record("req", position=position))
        assert timed(router) == before + 1


def test_a_timed_call_raises_what_the_probe_raised_and_is_counted() -> None:
    point = make_point(probe_type="failing", probe_args={"where": "on_activation"})
    with Router(REGISTRY) as router:
        request_id = fresh_id()
        router.register_request(request_id, [point], context(request_id))
        raised = 0
        for position in range(16):
            try:
                router.route(make_record(request_id, position=position))
            except ValueError:
                raised += 1
        assert raised == 8
        assert timed(router) == 1
        router.end_request(request_id)


def test_a_stop_watch_keeps_no_route_of_an_ended_request() -> None:
    with Router(REGISTRY) as router:
        router.register_request("req", [make_point()], context("req"))
        router.totals()
        held = router._routes["req", "guard", 4, "mlp_out"]
        router.end_request("req")
        held(make_record("req"))  # a thread that had found its route before the end
        assert not router._routes
        with pytest.raises(RouterError, match="not registered"):
            router.route(make_record("req"))


def test_a_point_of_several_layers_is_timed_once_per_request() -> None:
    point = make_point(layers=(4, 5, 6))
    with Router(REGISTRY) as router:
        for _ in range(6):
            with router.request([point]) as request:
                for position in range(8):
                    for layer in point.layers:
                        record = make_record(request.request_id, position=position)
                        record.layer = layer
                        request.route(record)
        assert timed(router) == 6
