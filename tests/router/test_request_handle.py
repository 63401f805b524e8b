"""A request as a context manager: registered on entry, ended on exit, whatever happens in between."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from router_points import REGISTRY, context, make_point, make_record

from undercurrent.router import RequestHandle, Router, RouterError


@pytest.fixture(name="router")
def _router() -> Any:
    with Router(REGISTRY) as router:
        yield router


def test_request_is_registered_and_ended_by_its_block(router: Router) -> None:
    with router.request([make_point()], request_id="req", prompt_metadata={"prompt": "hello"}) as request:
        assert isinstance(request, RequestHandle)
        assert request.request_id == "req"
        assert request.request_ctx.prompt_metadata == {"prompt": "hello"}
        has_ended_inside = request.ended
        request.route(make_record("req"))

    assert (has_ended_inside, request.ended) == (False, True)
    assert request.results["guard"].metadata["coverage"]["routed"] == 1
    with pytest.raises(RouterError):
        router.end_request("req")


def test_request_without_an_id_gets_a_fresh_one(router: Router) -> None:
    ids = {router.request([make_point()]).request_id for _ in range(3)}

    assert len(ids) == 3
    assert all(len(request_id) == 32 for request_id in ids)


def test_request_ends_when_its_body_raises(router: Router) -> None:
    handle = router.request([make_point()], request_id="req")

    with pytest.raises(ValueError, match="body"), handle:
        raise ValueError("body")

    assert handle.ended
    assert list(handle.results) == ["guard"]


def test_results_are_refused_before_the_end(router: Router) -> None:
    handle = router.request([make_point()])

    with pytest.raises(RouterError, match="no results yet"):
        _ = handle.results
    with handle, pytest.raises(RouterError, match="no results yet"):
        _ = handle.results


def test_handle_can_be_entered_once(router: Router) -> None:
    handle = router.request([make_point()])
    with handle:
        pass

    with pytest.raises(RouterError, match="can be entered once"), handle:
        pass


def test_handle_routes_its_own_records_inside_its_block_only(router: Router) -> None:
    handle = router.request([make_point()], request_id="mine")
    with pytest.raises(RouterError, match="not active"):
        handle.route(make_record("mine"))

    with handle, pytest.raises(RouterError, match="a record of request 'mine' was expected"):
        handle.route(make_record("other"))

    with pytest.raises(RouterError, match="not active"):
        handle.route(make_record("mine"))


def test_failed_end_raises_and_leaves_no_results(router: Router) -> None:
    handle = router.request([make_point()], request_id="req")

    with pytest.raises(RouterError, match="already ended"), handle:
        router.end_request("req")

    with pytest.raises(RouterError, match="ending request 'req' failed"):
        _ = handle.results


def test_error_of_the_body_wins_over_that_of_the_end(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    handle = router.request([make_point()], request_id="req")

    def fail_inside() -> None:
        with handle:
            router.end_request("req")
            raise ValueError("body")

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="body"):
        fail_inside()

    assert "ending request 'req' failed after its body had failed" in caplog.text


def test_handle_that_failed_to_register_is_not_active(router: Router) -> None:
    router.register_request("taken", [make_point()], context("taken"))
    handle = router.request([make_point()], request_id="taken")

    with pytest.raises(RouterError, match="already registered"), handle:
        pass

    assert not handle.ended
    router.route(make_record("taken"))
