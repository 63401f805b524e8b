"""What a full queue does, in every policy."""

from __future__ import annotations

import threading

import pytest
from router_points import (
    REGISTRY,
    Gate,
    context,
    fresh_id,
    make_point,
    make_record,
    positions,
    register_gated,
    wait_until,
)

from undercurrent.router import OverflowPolicy, Router


def test_full_queue_drops_the_oldest_by_default(router: Router, gate: Gate) -> None:
    request_id = register_gated(router, gate, queue_depth=4)
    for position in range(1, 11):
        router.route(make_record(request_id, "watch", position=position))
    metrics = router.get_metrics(request_id, "watch")
    gate.open()
    result = router.end_request(request_id)["watch"]

    assert positions(result) == [0, 7, 8, 9, 10]
    assert (metrics.queue_depth, metrics.drop_count) == (4, 6)
    assert result.metadata["coverage"]["dropped"] == 6
    assert result.metadata["coverage"]["routed"] == 11
    assert result.metadata["coverage"]["reasons"] == ["dropped"]


def test_full_queue_drops_the_newest_where_asked_to(router: Router, gate: Gate) -> None:
    request_id = register_gated(router, gate, queue_depth=4, overflow_policy=OverflowPolicy.DROP_NEWEST)
    for position in range(1, 11):
        router.route(make_record(request_id, "watch", position=position))
    gate.open()
    result = router.end_request(request_id)["watch"]

    assert positions(result) == [0, 1, 2, 3, 4]
    assert result.metadata["coverage"]["dropped"] == 6


def test_blocking_route_waits_for_room_and_drops_nothing(router: Router, gate: Gate) -> None:
    request_id = register_gated(router, gate, queue_depth=2, overflow_policy=OverflowPolicy.BLOCK)
    routed: list[int] = []

    def route_ten() -> None:
        for position in range(1, 11):
            router.route(make_record(request_id, "watch", position=position))
            routed.append(position)

    thread = threading.Thread(target=route_ten)
    thread.start()
    assert wait_until(lambda: len(routed) == 2)
    still_waits = not wait_until(lambda: len(routed) > 2, timeout_s=0.2)
    gate.open()
    thread.join()
    result = router.end_request(request_id)["watch"]

    assert still_waits
    assert positions(result) == list(range(11))
    assert result.metadata["coverage"]["complete"]


def test_blocking_route_gives_up_after_its_timeout(router: Router, gate: Gate) -> None:
    request_id = register_gated(router, gate, queue_depth=1, overflow_policy=OverflowPolicy.BLOCK, block_timeout_s=0.05)
    for position in (1, 2):
        router.route(make_record(request_id, "watch", position=position))
    gate.open()
    result = router.end_request(request_id)["watch"]

    assert positions(result) == [0, 1]
    assert result.metadata["coverage"]["reasons"] == ["block_timeout"]


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_routers_default_policy_and_depth_hold_for_points_that_say_nothing(mode: str, gate: Gate) -> None:
    with Router(
        REGISTRY, worker_mode=mode, default_queue_depth=3, default_overflow_policy=OverflowPolicy.DROP_NEWEST
    ) as router:
        request_id = register_gated(router, gate)
        for position in range(1, 11):
            router.route(make_record(request_id, "watch", position=position))
        gate.open()
        result = router.end_request(request_id)["watch"]

    assert positions(result) == [0, 1, 2, 3]


def test_each_request_has_a_queue_of_its_own(router: Router, gate: Gate) -> None:
    slow = register_gated(router, gate, queue_depth=1)
    for position in range(1, 6):
        router.route(make_record(slow, "watch", position=position))
    other = fresh_id()
    router.register_request(other, [make_point("other", "async", queue_depth=8)], context(other))
    for position in range(5):
        router.route(make_record(other, "other", position=position))
    result = router.end_request(other)["other"]
    gate.open()
    router.end_request(slow)

    assert positions(result) == list(range(5))
    assert result.metadata["coverage"]["complete"]
