"""Inline points: the probe runs on the caller's thread, inside `route()`."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from router_points import REGISTRY, Collect, context, fresh_id, make_point, make_record

from undercurrent.core import Probe, ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.router import Router, RouterError
from undercurrent.spec import ActivationRecord, ProbeKind, Sample, SampleBy, TensorType


@pytest.fixture(name="router")
def _router() -> Any:
    with Router(REGISTRY) as router:
        yield router


def test_inline_signal_is_the_return_value_of_route(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point(probe_type="running_mean")], context(request_id))

    quiet = router.route(make_record(request_id, values=[0.1, 0.2]))
    loud = router.route(make_record(request_id, values=[0.9, 1.0]))

    assert quiet is None
    assert loud is not None
    assert loud.action is ProbeAction.ABORT


def test_inline_probe_runs_on_the_callers_thread(router: Router) -> None:
    threads: list[int] = []

    class Where(Collect):
        def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
            threads.append(threading.get_ident())
            return None

    request_id = fresh_id()
    with Router({"where": Where}) as local:
        local.register_request(request_id, [make_point(probe_type="where")], context(request_id))
        local.route(make_record(request_id))

    assert threads == [threading.get_ident()]


def test_inline_probe_may_be_single_shot(router: Router) -> None:
    request_id = fresh_id()
    point = make_point(probe_type="single", probe_kind=ProbeKind.SINGLE_SHOT)
    router.register_request(request_id, [point], context(request_id))

    signal = router.route(make_record(request_id, values=[0.5, 1.5]))

    assert signal is not None
    assert signal.action is ProbeAction.CONTINUE


def test_inline_router_starts_no_thread_and_no_process(router: Router) -> None:
    before = threading.active_count()
    request_id = fresh_id()
    router.register_request(request_id, [make_point()], context(request_id))
    router.route(make_record(request_id))

    router.end_request(request_id)

    assert threading.active_count() == before
    assert router._supervision.supervisor is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request_id": "req-unknown"}, "is not registered or has already ended"),
        ({"extraction_point_name": "gaurd"}, "did you mean 'guard'"),
        ({"layer": 5}, r"one of its layers \[4\], got layer 5"),
        ({"tensor_type": "mlp_outs"}, "tensor_type 'mlp_out', got 'mlp_outs'"),
    ],
)
def test_record_that_fits_no_binding_is_refused(router: Router, change: dict[str, Any], words: str) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point()], context(request_id))
    record = make_record(request_id)
    for name, value in change.items():
        setattr(record, name, value)

    with pytest.raises(RouterError, match=words):
        router.route(record)


def test_refusal_suggests_the_nearest_live_request(router: Router) -> None:
    router.register_request("generation-17", [make_point()], context("generation-17"))

    with pytest.raises(RouterError, match="did you mean 'generation-17'"):
        router.route(make_record("generation-71"))


def test_tensor_type_may_be_the_enum_member(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point()], context(request_id))
    record = make_record(request_id)
    record.tensor_type = TensorType.MLP_OUT

    router.route(record)

    assert router.end_request(request_id)["guard"].metadata["coverage"]["routed"] == 1


def test_no_lock_is_held_while_a_probe_runs() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Waiting(Collect):
        def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
            entered.set()
            assert leave.wait(30)
            return None

    with Router({"waiting": Waiting, "collect": Collect}) as router:
        router.register_request("slow", [make_point(probe_type="waiting")], context("slow"))
        thread = threading.Thread(target=router.route, args=(make_record("slow"),))
        thread.start()
        assert entered.wait(30)
        router.register_request("quick", [make_point()], context("quick"))
        router.route(make_record("quick"))
        verdict = router.end_request("quick")["guard"].verdict
        leave.set()
        thread.join()

    assert len(verdict) == 2


def test_concurrent_route_calls_are_all_counted(router: Router) -> None:
    class Counting(Collect):
        def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
            return None

    request_id = fresh_id()
    with Router({"counting": Counting}) as local:
        local.register_request(request_id, [make_point(probe_type="counting")], context(request_id))
        record = make_record(request_id)

        def route_many() -> None:
            for _ in range(2000):
                local.route(record)

        threads = [threading.Thread(target=route_many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        coverage = local.end_request(request_id)["guard"].metadata["coverage"]

    assert coverage["routed"] == 8000


def test_get_probe_returns_the_live_instance(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point()], context(request_id))

    probe = router.get_probe(request_id, "guard")

    assert isinstance(probe, Collect)
    assert probe.request_id == request_id
    with pytest.raises(RouterError, match="did you mean 'guard'"):
        router.get_probe(request_id, "gard")


def test_inline_point_has_no_metrics(router: Router) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [make_point()], context(request_id))

    with pytest.raises(RouterError, match="runs inline"):
        router.get_metrics(request_id, "guard")


def test_sampled_out_request_gets_no_probe_and_its_result_says_so(router: Router) -> None:
    sample = Sample(rate=1e-9, by=SampleBy.REQUEST)
    request_id = fresh_id()
    router.register_request(request_id, [make_point(sample=sample), make_point("other")], context(request_id))

    signal = router.route(make_record(request_id))
    router.route(make_record(request_id, "other"))
    results = router.end_request(request_id)

    assert signal is None
    assert results["guard"].verdict is None
    assert results["guard"].metadata["coverage"]["reasons"] == ["sampled"]
    assert results["other"].metadata["coverage"]["complete"]


def test_sampled_records_alone_reach_the_probe(router: Router) -> None:
    sample = Sample(rate=0.5, by=SampleBy.RECORD)
    request_id = fresh_id()
    router.register_request(request_id, [make_point(sample=sample)], context(request_id))
    for position in range(200):
        router.route(make_record(request_id, position=position))

    result = router.end_request(request_id)["guard"]

    kept = [position for position, _ in result.verdict[1:]]
    assert kept == [position for position in range(200) if sample.keeps_record(request_id, position)]
    assert 0 < len(kept) < 200
    assert result.metadata["coverage"]["reasons"] == ["sampled"]
    assert not result.metadata["coverage"]["complete"]


def test_probe_classes_need_no_factory() -> None:
    class Named(Probe):
        probe_kind = "trajectory"

        def on_start(self, request_ctx: RequestContext) -> None:
            self.name = request_ctx.prompt_metadata["name"]

        def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
            return None

        def on_end(self, request_ctx: RequestContext) -> ProbeResult:
            return ProbeResult(self.request_id, self.extraction_point_name, self.name)

    with Router({"named": Named}) as router:
        router.register_request("r", [make_point(probe_type="named")], context("r", name="Ada"))
        assert router.end_request("r")["guard"].verdict == "Ada"
