"""What `Router.totals` counts, of inline points and async ones, while requests live and after they ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from router_points import (
    REGISTRY,
    Gate,
    ListSink,
    context,
    fresh_id,
    make_point,
    make_record,
    register_gated,
    wait_until,
)

from undercurrent.errors import RouterError
from undercurrent.router import InMemoryMetricsRegistry, LatencyHistogram, PointMetrics, Router
from undercurrent.sinks import FileLogSink
from undercurrent.spec import OverflowPolicy, Sample, SampleBy
from undercurrent.workers.measures import PointKey


@pytest.fixture(name="own", params=["process", "thread"])
def _own(request: pytest.FixtureRequest) -> Iterator[Router]:
    """A router that has counted nothing yet."""
    with Router(REGISTRY, worker_mode=request.param, worker_pool_size=1) as router:
        yield router


@pytest.fixture(name="inline_only")
def _inline_only() -> Iterator[Router]:
    with Router(REGISTRY) as router:
        yield router


def of(router: Router, name: str) -> PointMetrics:
    found = router.totals().point(name)
    assert found is not None
    assert found.routed == found.consumed + found.dropped_total + found.lost + found.waiting + found.in_hand
    return found


def run_request(router: Router, *points: Any, count: int = 4) -> dict[str, Any]:
    """Registers, routes `count` records to each point, ends."""
    request_id = fresh_id()
    router.register_request(request_id, points, context(request_id))
    for position in range(count):
        for point in points:
            router.route(make_record(request_id, point.name, position=position))
    return router.end_request(request_id)


def test_totals_cover_inline_points_and_async_ones_and_outlive_their_requests(own: Router) -> None:
    points = [make_point("guard", probe_type="flagging"), make_point("watch", "async", probe_type="flagging")]
    for _ in range(3):
        run_request(own, *points)

    totals = own.totals()
    assert (totals.requests_begun, totals.requests_ended, totals.requests_live) == (3, 3, 0)
    for name in ("guard", "watch"):
        found = of(own, name)
        assert (found.routed, found.consumed, found.seen, found.dropped_total) == (12, 12, 12, 0)
        assert found.signals == {"continue": 0, "abort": 0, "flag": 12, "other": 0}
        assert found.results == {"complete": 3, "sampled": 0, "partial": 0}
        assert (found.bindings, found.queue_depth) == (0, 0)


def test_totals_count_requests_that_live(own: Router, gate: Gate) -> None:
    request_id = register_gated(own, gate, queue_depth=8)
    for position in range(1, 4):
        own.route(make_record(request_id, "watch", position=position))
    live = of(own, "watch")
    gate.open()
    own.end_request(request_id)

    assert (live.routed, live.waiting, live.in_hand) == (4, 3, 1)
    assert (live.bindings, live.queue_depth) == (1, 8)
    assert of(own, "watch").consumed == 4


def test_get_metrics_forgets_an_ended_request_and_totals_do_not(own: Router) -> None:
    registry = InMemoryMetricsRegistry()
    own.attach_metrics_sink(registry)
    request_id = fresh_id()
    own.register_request(request_id, [make_point("watch", "async")], context(request_id))
    own.route(make_record(request_id, "watch"))
    own.end_request(request_id)
    assert own.flush(30)

    with pytest.raises(RouterError, match="has already ended"):
        own.get_metrics(request_id, "watch")
    snapshot = registry.snapshot(request_id, "watch")
    assert snapshot is not None
    assert snapshot.activation_count == of(own, "watch").seen == 1


def test_latency_has_a_histogram_and_not_only_a_mean(own: Router) -> None:
    run_request(own, make_point("watch", "async", queue_depth=64), count=40)
    found = of(own, "watch")

    assert found.queue_wait.count == found.probe_call.count == 40
    assert found.queue_wait.sum_s > 0
    median_s, tail_s = found.probe_call.quantile_s(0.5), found.probe_call.quantile_s(0.99)
    assert median_s is not None
    assert tail_s is not None
    assert 0 < median_s <= tail_s
    assert found.route.count == 1


def test_drops_are_counted_by_reason(own: Router, gate: Gate) -> None:
    request_id = register_gated(own, gate, queue_depth=2)
    for position in range(1, 8):
        own.route(make_record(request_id, "watch", position=position))
    own.route(make_record(request_id, "watch", values=object(), position=8))
    dropped = of(own, "watch").dropped
    gate.open()
    own.end_request(request_id)

    assert {reason: count for reason, count in dropped.items() if count} == {"drop_oldest": 5, "unsupported": 1}
    assert of(own, "watch").dropped == dropped


def test_refused_records_have_reasons_of_their_own(own: Router, gate: Gate) -> None:
    policy = OverflowPolicy.DROP_NEWEST
    request_id = register_gated(own, gate, queue_depth=2, overflow_policy=policy)
    for position in range(1, 6):
        own.route(make_record(request_id, "watch", position=position))
    gate.open()
    own.end_request(request_id)
    assert of(own, "watch").dropped["drop_newest"] == 3


def test_what_still_waits_at_the_deadline_is_unread(gate: Gate) -> None:
    with Router(REGISTRY, worker_mode="thread", drain_timeout=0.2) as router:
        request_id = register_gated(router, gate, queue_depth=8)
        for position in range(1, 5):
            router.route(make_record(request_id, "watch", position=position))
        result = router.end_request(request_id)["watch"]
        gate.open()
        assert wait_until(lambda: of(router, "watch").dropped["unread"] == 4)
        found = of(router, "watch")

    assert "drain_timeout" in result.metadata["coverage"]["reasons"]
    assert (found.waiting, found.in_hand, found.consumed) == (0, 0, 1)
    assert found.results["partial"] == 1


def test_errors_are_counted_where_probes_raise(own: Router) -> None:
    raising: dict[str, Any] = {"probe_type": "failing", "probe_args": {"where": "on_activation"}}
    run_request(own, make_point("watch", "async", **raising), make_point("guard", on_error="continue", **raising))

    for name in ("watch", "guard"):
        found = of(own, name)
        assert (found.seen, found.errors) == (4, 2)
        assert found.signals["continue"] == 2  # what is said about a record at which the probe raised
        assert found.results["partial"] == 1


def test_records_of_a_probe_that_did_not_start_are_consumed_and_not_seen(own: Router) -> None:
    run_request(own, make_point("watch", "async", probe_type="failing", probe_args={"where": "on_start"}))
    found = of(own, "watch")
    assert (found.routed, found.consumed, found.seen) == (4, 4, 0)


def test_an_inline_abort_is_counted(inline_only: Router) -> None:
    request_id = fresh_id()
    inline_only.register_request(request_id, [make_point("guard", probe_type="running_mean")], context(request_id))
    inline_only.route(make_record(request_id, values=[1.0]))
    assert inline_only.totals().aborts == 1
    inline_only.end_request(request_id)
    assert inline_only.totals().aborts == 1


def test_reading_totals_leaves_the_numbers_of_records_as_they_are(inline_only: Router) -> None:
    sink = ListSink()
    numbers: list[int] = []

    class Numbered(ListSink):
        def write_signal_record(self, record: Any) -> None:
            numbers.append(record.sequence)

        def write_result_record(self, record: Any) -> None:
            sink.events.append(("result", "", "", record))

    inline_only.attach_log_sink(Numbered(), inline=True)
    with inline_only.request([make_point("guard", probe_type="flagging")]) as request:
        for position in range(5):
            request.route(make_record(request.request_id, position=position))
            inline_only.totals()
    assert numbers == [0, 1, 2, 3, 4]
    assert request.results["guard"].metadata["coverage"]["routed"] == 5


def test_points_are_told_apart_by_name_probe_and_mode(inline_only: Router) -> None:
    run_request(inline_only, make_point("guard", probe_type="collect"), count=3)
    run_request(inline_only, make_point("guard", probe_type="flagging"), count=2)
    counted = {point.key: point.routed for point in inline_only.totals().points}
    assert counted == {
        PointKey("guard", "collect", "inline"): 3,
        PointKey("guard", "flagging", "inline"): 2,
    }


def test_equal_points_of_different_specifications_are_one(inline_only: Router) -> None:
    for _ in range(3):
        run_request(inline_only, make_point("guard"), count=2)  # a new object each time
    assert [point.routed for point in inline_only.totals().points] == [6]


def test_results_that_sampling_left_incomplete_are_not_partial(inline_only: Router) -> None:
    sampled = make_point("guard", sample=Sample(rate=0.5, by=SampleBy.RECORD))
    skipped = make_point("other", sample=Sample(rate=1e-9, by=SampleBy.REQUEST))
    run_request(inline_only, sampled, skipped)
    assert of(inline_only, "guard").results == {"complete": 0, "sampled": 1, "partial": 0}
    assert of(inline_only, "other").results == {"complete": 0, "sampled": 0, "partial": 0}


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_shutdown_keeps_what_was_counted(mode: str) -> None:
    with Router(REGISTRY, worker_mode=mode) as router:
        run_request(router, make_point("watch", "async"))
        router.register_request("cut", [make_point("watch", "async"), make_point("guard")], context("cut"))
        router.route(make_record("cut", "watch"))
        router.route(make_record("cut", "guard"))
    totals = router.totals()

    assert (totals.requests_begun, totals.requests_ended, totals.requests_abandoned) == (2, 1, 1)
    assert totals.requests_live == 0
    assert of(router, "watch").routed == 5
    assert of(router, "guard").routed == 1
    assert of(router, "watch").bindings == 0
    assert totals.workers == ()


def test_a_registration_that_fails_is_no_request(inline_only: Router) -> None:
    with pytest.raises(ValueError, match="on_start"):
        run_request(inline_only, make_point("guard", probe_type="failing", probe_args={"where": "on_start"}))
    assert inline_only.totals().requests_begun == 0


def test_a_cancelled_registration_is_abandoned(inline_only: Router) -> None:
    async def register_and_leave() -> None:
        entered, leave = threading.Event(), threading.Event()

        class Slow(REGISTRY["collect"].probe_cls):  # type: ignore[name-defined,misc]
            def on_start(self, request_ctx: Any) -> None:
                entered.set()
                assert leave.wait(30)

        router = Router({"slow": Slow})
        point = make_point("guard", probe_type="slow")
        task = asyncio.create_task(router.aregister_request("req", [point], context("req")))
        await asyncio.to_thread(entered.wait, 30)
        task.cancel()
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(wait_until, lambda: router.totals().requests_abandoned == 1)
        assert router.totals().requests_live == 0
        router.shutdown()

    asyncio.run(register_and_leave())


def test_threads_lose_no_count(inline_only: Router) -> None:
    points = [make_point("guard", probe_type="flagging")]

    def serve() -> None:
        for _ in range(20):
            with inline_only.request(points) as request:
                for position in range(50):
                    request.route(make_record(request.request_id, position=position))

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen: list[int] = []
    while any(thread.is_alive() for thread in threads):
        seen.append(inline_only.totals().routed)
    for thread in threads:
        thread.join()

    found = of(inline_only, "guard")
    assert (found.routed, found.signals["flag"], found.results["complete"]) == (4_000, 4_000, 80)
    assert seen == sorted(seen)


def test_sinks_of_this_process_are_counted_and_timed(own: Router) -> None:
    class Moody(ListSink):
        def write_signal(self, request_id: str, extraction_point_name: str, signal: Any) -> None:
            if signal.metadata["position"] % 2:
                raise OSError("full")

    own.attach_log_sink(Moody(), inline=True)
    run_request(own, make_point("watch", "async", probe_type="flagging"), make_point("guard", probe_type="flagging"))
    (sink,) = own.totals().sinks

    assert sink.sink == "Moody"
    assert (sink.records, sink.errors) == (2 * (2 + 1), 2 * 2)  # signals and a result of each point
    assert sink.write.count == sink.records


def test_sinks_of_workers_are_counted_and_timed(own: Router, tmp_path: Path) -> None:
    own.attach_log_sink(FileLogSink(tmp_path / "lines", redact=len))  # a redaction that returns no record
    run_request(own, make_point("watch", "async", probe_type="flagging"))
    assert own.flush(30)
    (sink,) = own.totals().sinks

    assert (sink.sink, sink.records, sink.errors) == ("FileLogSink", 5, 0)
    assert sink.events["redaction_error"] == 5
    assert sink.write.count > 0


def test_quantiles_are_interpolated_within_their_bucket() -> None:
    bounds = LatencyHistogram.bounds_s()
    counts = [0] * (len(bounds) + 1)
    counts[1], counts[-1] = 10, 10  # 1 to 2 us, and over 100 s
    histogram = LatencyHistogram(tuple(counts), 1e-5)

    assert histogram.quantile_s(0.25) == pytest.approx(1.5e-6)
    assert histogram.quantile_s(0.5) == pytest.approx(2e-6)
    assert histogram.quantile_s(0.99) == bounds[-1]
    assert histogram.mean_s == pytest.approx(5e-7)


def test_a_histogram_of_nothing_has_no_quantile() -> None:
    assert LatencyHistogram().quantile_s(0.5) is None
    assert LatencyHistogram().mean_s is None


def test_totals_are_frozen(inline_only: Router) -> None:
    with pytest.raises(AttributeError):
        inline_only.totals().requests_begun = 5  # type: ignore[misc]
