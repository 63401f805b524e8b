"""How requests with inline points end: results, coverage, listeners."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from router_points import REGISTRY, Collect, context, fresh_id, make_point, make_record

from undercurrent.core import ProbeAction, ProbeFactory, ProbeResult, RequestContext
from undercurrent.router import Router, RouterError


@pytest.fixture(name="router")
def _router() -> Any:
    with Router(REGISTRY) as router:
        yield router


def test_result_says_what_it_covers(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point()], context(request_id))
    for position in range(3):
        router.route(make_record(request_id, position=position))

    coverage = router.end_request(request_id)["guard"].metadata["coverage"]

    assert coverage["routed"] == coverage["seen"] == 3
    assert coverage["complete"]
    assert coverage["reasons"] == []


def test_probe_error_propagates_and_makes_coverage_incomplete(router: Router) -> None:
    request_id = fresh_id()
    point = make_point(probe_type="failing", probe_args={"where": "on_activation"})
    router.register_request(request_id, [point], context(request_id))
    router.route(make_record(request_id, position=2))

    with pytest.raises(ValueError, match="in on_activation"):
        router.route(make_record(request_id, position=3))
    result = router.end_request(request_id)["guard"]

    assert result.verdict == [("start", request_id), (2, [1.0])]
    assert result.metadata["coverage"]["errors"] == 1
    assert result.metadata["coverage"]["reasons"] == ["probe_error"]


@pytest.mark.parametrize(("on_error", "action"), [("abort", ProbeAction.ABORT), ("continue", ProbeAction.CONTINUE)])
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_on_error_answers_for_a_probe_that_raises(
    router: Router, on_error: str, action: ProbeAction, error: type, caplog: pytest.LogCaptureFixture
) -> None:
    request_id = fresh_id()
    args = {"where": "on_activation", "error": error}
    router.register_request(
        request_id, [make_point(probe_type="failing", probe_args=args, on_error=on_error)], context(request_id)
    )

    signals = [router.route(make_record(request_id, position=position)) for position in (1, 3)]
    result = router.end_request(request_id)["guard"]

    assert [signal.action for signal in signals if signal is not None] == [action, action]
    assert signals[0] is not None
    assert signals[0].metadata["error_type"] == error.__name__
    assert result.metadata["coverage"]["errors"] == 2
    assert len(caplog.records) == 1


def test_failing_on_end_keeps_the_other_results(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    request_id = fresh_id()
    points = [make_point("bad", probe_type="failing", probe_args={"where": "on_end"}), make_point("good")]
    router.register_request(request_id, points, context(request_id))
    ended: list[dict[str, ProbeResult]] = []
    remove = router.on_request_end(lambda _, results: ended.append(results))

    with caplog.at_level(logging.ERROR, "undercurrent.router"):
        results = router.end_request(request_id)
    remove()

    assert list(results) == ["bad", "good"]
    assert results["bad"].verdict is None
    assert results["bad"].metadata["error"] == "in on_end"
    assert results["bad"].metadata["coverage"]["reasons"] == ["probe_error"]
    assert results["good"].metadata["coverage"]["complete"]
    assert ended == [results]
    assert "`on_end` of point 'bad' raised" in caplog.text


def test_anything_else_from_on_end_becomes_the_verdict(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point(probe_type="bare")], context(request_id))
    router.route(make_record(request_id))

    result = router.end_request(request_id)["guard"]

    assert result.verdict == {"count": 1}
    assert result.metadata["coverage"]["seen"] == 1


def test_result_object_that_a_probe_returns_twice_gets_a_coverage_of_its_own() -> None:
    shared = ProbeResult("any", "guard", "same")

    class Sharing(Collect):
        def on_end(self, request_ctx: RequestContext) -> ProbeResult:
            return shared

    with Router({"sharing": Sharing}) as router:
        points = [make_point("one", probe_type="sharing"), make_point("two", probe_type="sharing")]
        request_id = fresh_id()
        router.register_request(request_id, points, context(request_id))
        router.route(make_record(request_id, "one"))
        results = router.end_request(request_id)

    assert results["one"].metadata["coverage"]["routed"] == 1
    assert results["two"].metadata["coverage"]["routed"] == 0
    assert shared.metadata == {}


def test_probe_arguments_are_no_ones_but_the_instances(router: Router) -> None:
    class Appending(Collect):
        def __init__(self, *, words: list[str]) -> None:
            super().__init__()
            words.append("mine")
            self.seen = words

    words: list[str] = []
    with Router({"appending": ProbeFactory(Appending, {"words": words})}) as local:
        for _ in range(2):
            request_id = fresh_id()
            local.register_request(request_id, [make_point(probe_type="appending")], context(request_id))
            assert local.end_request(request_id)["guard"].verdict == ["mine", ("start", request_id)]

    assert words == []


def test_late_record_is_refused(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point()], context(request_id))
    router.end_request(request_id)

    with pytest.raises(RouterError, match="has already ended"):
        router.route(make_record(request_id))


def test_request_id_can_be_used_again_after_its_end(router: Router) -> None:
    for _ in range(2):
        router.register_request("again", [make_point()], context("again"))
        router.route(make_record("again"))
        assert router.end_request("again")["guard"].metadata["coverage"]["routed"] == 1


def test_request_without_points_ends_with_no_results(router: Router) -> None:
    router.register_request("empty", [], context("empty"))

    assert router.end_request("empty") == {}


def test_two_threads_that_end_one_request_get_one_result(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point()], context(request_id))
    barrier = threading.Barrier(2)
    outcomes: list[str] = []

    def end() -> None:
        barrier.wait()
        try:
            router.end_request(request_id)
            outcomes.append("ended")
        except RouterError:
            outcomes.append("refused")

    threads = [threading.Thread(target=end) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcomes) == ["ended", "refused"]


def test_listeners_are_called_in_order_after_the_end(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def raising(request_id: str, results: dict[str, ProbeResult]) -> None:
        calls.append("raising")
        results.clear()
        with pytest.raises(RouterError):
            router.route(make_record(request_id))
        raise ValueError("listener")

    router.on_request_end(raising)
    remove = router.on_request_end(lambda request_id, results: calls.append(f"{request_id} {list(results)}"))
    for request_id in ("first", "second"):
        router.register_request(request_id, [make_point()], context(request_id))
        router.end_request(request_id)
        remove()
        remove()

    assert calls == ["raising", "first ['guard']", "raising"]
    assert "a request-end listener raised" in caplog.text
