"""What async probes raise harms nobody else, and shows in the coverage."""

from __future__ import annotations

import pytest
from router_points import (
    ListSink,
    context,
    fresh_id,
    make_point,
    make_record,
    positions,
)

from undercurrent.core import ProbeAction
from undercurrent.router import Router, RouterError


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_async_probe_error_is_counted_and_the_probe_goes_on(
    router: Router, sink: ListSink, error: type[BaseException]
) -> None:
    request_id = fresh_id()
    args = {"where": "on_activation", "error": error}
    router.register_request(
        request_id, [make_point("watch", "async", probe_type="failing", probe_args=args)], context(request_id)
    )
    for position in range(4):
        router.route(make_record(request_id, "watch", position=position))
    result = router.end_request(request_id)["watch"]

    assert positions(result) == [0, 2]
    assert result.metadata["coverage"]["errors"] == 2
    assert result.metadata["coverage"]["reasons"] == ["probe_error"]
    signals = [event[3] for event in sink.events if event[0] == "signal"]
    assert [signal.action for signal in signals] == [ProbeAction.CONTINUE, ProbeAction.CONTINUE]
    assert signals[0].metadata["error_type"] == error.__name__
    assert signals[0].metadata["extraction_point_name"] == "watch"


@pytest.mark.parametrize("where", ["__init__", "on_start"])
def test_async_start_error_ends_the_binding_with_the_reason(router: Router, where: str) -> None:
    request_id = fresh_id()
    bad = make_point("bad", "async", probe_type="failing", probe_args={"where": where})
    router.register_request(request_id, [bad, make_point("good", "async")], context(request_id))

    router.route(make_record(request_id, "bad"))
    router.route(make_record(request_id, "good"))
    results = router.end_request(request_id)

    assert results["bad"].verdict is None
    assert "start_error" in results["bad"].metadata["coverage"]["reasons"]
    assert results["good"].metadata["coverage"]["complete"]


@pytest.mark.parametrize("where", ["__init__", "on_start"])
def test_registration_that_waits_raises_the_async_start_error(router: Router, where: str) -> None:
    request_id = fresh_id()
    bad = make_point("bad", "async", probe_type="failing", probe_args={"where": where})

    with pytest.raises(ValueError, match=f"in {where}"):
        router.register_request(request_id, [make_point("good", "async"), bad], context(request_id), wait_s=30)

    with pytest.raises(RouterError, match="not registered"):
        router.end_request(request_id)
    router.register_request(request_id, [make_point("good", "async")], context(request_id), wait_s=30)
    assert router.end_request(request_id)["good"].verdict == [("start", request_id)]


def test_async_on_end_error_keeps_the_other_results(router: Router) -> None:
    request_id = fresh_id()
    bad = make_point("bad", "async", probe_type="failing", probe_args={"where": "on_end"})
    router.register_request(request_id, [bad, make_point("good", "async"), make_point()], context(request_id))

    results = router.end_request(request_id)

    assert list(results) == ["bad", "good", "guard"]
    assert results["bad"].verdict is None
    assert results["bad"].metadata["coverage"]["reasons"] == ["probe_error"]
    assert results["good"].metadata["coverage"]["complete"]


def test_anything_else_from_an_async_on_end_becomes_the_verdict(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async", probe_type="bare")], context(request_id))
    router.route(make_record(request_id, "watch"))

    assert router.end_request(request_id)["watch"].verdict == {"count": 1}


def test_probe_of_an_async_point_cannot_be_reached(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))

    with pytest.raises(RouterError, match="lives in a worker"):
        router.get_probe(request_id, "watch")
    router.end_request(request_id)
