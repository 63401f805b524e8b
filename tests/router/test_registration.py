"""Registration checks everything first and is all or nothing."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from router_points import REGISTRY, Collect, Failing, context, fresh_id, make_point, make_record

from undercurrent.core import ProbeFactory, ProbeRegistry, RequestContext, register_probe, unregister_probe
from undercurrent.errors import ProbingError, ProbingTypeError, ProbingValueError, UndercurrentError
from undercurrent.router import (
    DEFAULT_CIRCUIT_BREAKER_THRESHOLD,
    DEFAULT_DRAIN_TIMEOUT,
    DEFAULT_QUEUE_DEPTH,
    InterventionMode,
    InterventionPolicy,
    Router,
    RouterError,
    default_worker_pool_size,
)
from undercurrent.spec import ExtractionPoint, ProbeKind, ProbeSpec

BLOCKING = InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, timeout_ms=50)


@pytest.fixture(name="router")
def _router() -> Any:
    with Router(REGISTRY) as router:
        yield router


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (make_point(probe_type="colect"), "did you mean 'collect'"),
        (make_point(probe_kind=ProbeKind.SINGLE_SHOT), "`probe_kind` is 'single_shot'.*a 'trajectory' probe"),
        (make_point(mode="async", probe_type="single", probe_kind=ProbeKind.SINGLE_SHOT), "needs a 'trajectory' probe"),
        (make_point(mode="async", intervention=BLOCKING), "cannot block until a signal"),
        (make_point(layers=()), "`layers` must be"),
        (make_point(layers=[True]), "`layers` must be"),
        (make_point(mode="async", queue_depth=0), "`queue_depth` must be an int >= 1.*got 0"),
        (make_point(mode="async", batch=17), "`batch` must be an int >= 1 and <= 16, got 17"),
        (make_point(mode="async", batch=4, queue_depth=3), "`batch` must be <= 3"),
        (make_point(mode="async", batch=0), "`batch` must be"),
    ],
)
def test_point_that_cannot_be_served_is_refused(router: Router, point: ExtractionPoint, words: str) -> None:
    with pytest.raises(RouterError, match=words) as caught:
        router.register_request("req", [make_point("other"), point], context("req"))

    assert repr(point.name) in str(caught.value)
    router.register_request("req", [make_point("other")], context("req"))


def test_two_points_of_one_name_are_refused(router: Router) -> None:
    with pytest.raises(RouterError, match="'guard' occurs twice"):
        router.register_request("req", [make_point(), make_point()], context("req"))


def test_batch_is_checked_against_the_routers_default_depth() -> None:
    with Router(REGISTRY, default_queue_depth=4) as router, pytest.raises(RouterError, match="the queue's depth 4"):
        router.register_request("req", [make_point(mode="async", batch=5)], context("req"))


def test_blocking_default_policy_is_refused_for_async_points_too() -> None:
    with Router(REGISTRY, default_intervention_policy=BLOCKING) as router, pytest.raises(RouterError, match="block"):
        router.register_request("req", [make_point(mode="async")], context("req"))


def test_something_that_is_no_point_is_refused(router: Router) -> None:
    with pytest.raises(ProbingTypeError, match="ExtractionPoint"):
        router.register_request("req", ["guard"], context("req"))  # type: ignore[list-item]


@pytest.mark.parametrize(("request_id", "error"), [("", RouterError), (7, ProbingTypeError)])
def test_request_id_must_be_a_non_empty_string(router: Router, request_id: Any, error: type) -> None:
    with pytest.raises(error, match="`request_id` must be a non-empty string"):
        router.register_request(request_id, [make_point()], context("any"))


def test_id_in_use_is_refused_and_the_live_request_goes_on(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point()], context(request_id))

    with pytest.raises(RouterError, match="already registered"):
        router.register_request(request_id, [make_point("other")], context(request_id))

    router.route(make_record(request_id))
    assert router.end_request(request_id)["guard"].metadata["coverage"]["routed"] == 1


@pytest.mark.parametrize("where", ["__init__", "on_start"])
def test_probe_that_does_not_start_leaves_nothing_registered(router: Router, where: str) -> None:
    request_id = fresh_id()
    points = [make_point("fine"), make_point("bad", probe_type="failing", probe_args={"where": where})]

    with pytest.raises(ValueError, match=f"in {where}"):
        router.register_request(request_id, points, context(request_id))

    with pytest.raises(RouterError, match="not registered"):
        router.route(make_record(request_id, "fine"))
    router.register_request(request_id, [make_point("fine")], context(request_id))


def test_failing_inline_start_touches_no_worker() -> None:
    bad = make_point("bad", probe_type="failing", probe_args={"where": "on_start"})

    with Router(REGISTRY) as router:
        points = [make_point("watch", "async"), bad]
        with pytest.raises(ValueError, match="in on_start"):
            router.register_request("req", points, context("req"))
        supervisor = router._supervision.supervisor
        opened = supervisor.workers() if supervisor is not None else []

    assert opened == []


def test_slow_start_of_one_request_delays_no_other() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Collect):
        def on_start(self, request_ctx: RequestContext) -> None:
            entered.set()
            assert leave.wait(30)

    with Router({"slow": Slow, "collect": Collect}) as router:
        router.register_request("quick", [make_point()], context("quick"))
        thread = threading.Thread(
            target=router.register_request, args=("slow", [make_point(probe_type="slow")], context("slow"))
        )
        thread.start()
        assert entered.wait(30)
        router.route(make_record("quick"))
        with pytest.raises(RouterError, match="not registered"):
            router.route(make_record("slow"))
        with pytest.raises(RouterError, match="not registered"):
            router.end_request("slow")
        with pytest.raises(RouterError, match="already registered"):
            router.register_request("slow", [make_point()], context("slow"))
        leave.set()
        thread.join()
        router.route(make_record("slow"))


def test_shutdown_during_a_slow_start_refuses_the_registration() -> None:
    entered, leave = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    class Slow(Collect):
        def on_start(self, request_ctx: RequestContext) -> None:
            entered.set()
            assert leave.wait(30)

    router = Router({"slow": Slow})

    def register() -> None:
        try:
            router.register_request("slow", [make_point(probe_type="slow")], context("slow"))
        except RouterError as error:
            errors.append(error)

    thread = threading.Thread(target=register)
    thread.start()
    assert entered.wait(30)
    router.shutdown()
    leave.set()
    thread.join()

    assert len(errors) == 1
    assert "shut down" in str(errors[0])


def test_mapping_of_probes_is_copied_and_the_only_source() -> None:
    probes: dict[str, Any] = {"mine": Failing}
    register_probe("router-test-global", Collect)
    try:
        with Router(probes) as router:
            probes["late"] = Collect
            for name in ("late", "router-test-global"):
                with pytest.raises(RouterError, match="no probe is registered"):
                    router.register_request("req", [make_point(probe_type=name)], context("req"))
    finally:
        unregister_probe("router-test-global")


def test_registered_probes_are_found_where_no_registry_is_given() -> None:
    with Router() as router:
        register_probe("router-test-late", ProbeFactory(Collect))
        try:
            router.register_request("req", [make_point(probe_type="router-test-late")], context("req"))
        finally:
            unregister_probe("router-test-late")


def test_probe_registry_is_used_as_it_is() -> None:
    registry = ProbeRegistry(load_entry_points=False)
    with Router(registry) as router:
        registry.register("later", Collect)
        router.register_request("req", [make_point(probe_type="later")], context("req"))


def test_spec_is_accepted_as_the_points() -> None:
    with Router(REGISTRY) as router:
        spec = ProbeSpec("1", (make_point("one"), make_point("two")))
        router.register_request("req", spec, context("req"))
        assert list(router.end_request("req")) == ["one", "two"]


def test_probe_args_win_over_the_factorys() -> None:
    with Router({"mean": ProbeFactory(REGISTRY["running_mean"].probe_cls, {"threshold": 0.9})}) as router:
        router.register_request("req", [make_point(probe_type="mean", probe_args={"threshold": 0.1})], context("req"))
        assert router.route(make_record("req", values=[0.5])) is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"worker_pool_size": 0}, "`worker_pool_size` must be >= 1, got 0"),
        ({"default_queue_depth": 0}, "`default_queue_depth` must be >= 1"),
        ({"default_overflow_policy": "drop_oldst"}, "did you mean 'drop_oldest'"),
        ({"drain_timeout": -1}, "`drain_timeout` must be >= 0"),
        ({"drain_timeout": float("nan")}, "`drain_timeout` must be >= 0"),
        ({"circuit_breaker_threshold": 0}, "`circuit_breaker_threshold` must be >= 1"),
        ({"worker_mode": "proces"}, "did you mean 'process'"),
        ({"memory_max_bytes": 0}, "`memory_max_bytes` must be >= 1"),
    ],
)
def test_router_refuses_arguments_out_of_range(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ProbingValueError, match=words):
        Router(**arguments)


def test_defaults_are_the_published_ones() -> None:
    assert (DEFAULT_QUEUE_DEPTH, DEFAULT_DRAIN_TIMEOUT, DEFAULT_CIRCUIT_BREAKER_THRESHOLD) == (32, 30.0, 5)
    assert default_worker_pool_size() == min(len(os.sched_getaffinity(0)), 8)
    assert Router().worker_pool_size == default_worker_pool_size()
    assert Router(worker_pool_size=3).worker_pool_size == 3


def test_router_error_is_what_callers_of_both_kinds_catch() -> None:
    assert issubclass(RouterError, ProbingError)
    assert issubclass(RouterError, UndercurrentError)
    assert issubclass(RouterError, RuntimeError)


@pytest.mark.parametrize("wait", [True, False])
def test_everything_but_shutdown_is_refused_after_shutdown(wait: bool) -> None:
    router = Router(REGISTRY)
    router.register_request("live", [make_point()], context("live"))
    router.shutdown(wait=wait)
    router.shutdown()

    for call in (
        lambda: router.register_request("req", [make_point()], context("req")),
        lambda: router.route(make_record("live")),
        lambda: router.end_request("live"),
        lambda: router.get_probe("live", "guard"),
        lambda: router.get_metrics("live", "guard"),
        lambda: router.prewarm(),
    ):
        with pytest.raises(RouterError, match="shut down"):
            call()


@pytest.mark.parametrize("sink", [object(), type("Sink", (), {"write_signal": print, "write_result": print})])
def test_something_that_is_no_sink_is_refused(router: Router, sink: Any) -> None:
    with pytest.raises(ProbingTypeError, match="write_signal"):
        router.attach_log_sink(sink)
    with pytest.raises(ProbingTypeError, match="write_signal"):
        router.add_log_sink(sink)
    with pytest.raises(RouterError, match="not attached"):
        router.remove_log_sink(sink)
