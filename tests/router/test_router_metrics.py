"""Counters of async bindings reach a metrics sink on a thread of its own."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from router_points import REGISTRY, Gate, context, fresh_id, make_point, make_record, register_gated, wait_until

from undercurrent.router import InMemoryMetricsRegistry, MetricsSink, MetricsSnapshot, Router
from undercurrent.router.metrics_relay import MetricsRelay
from undercurrent.router.tally import Tally
from undercurrent.workers import BindingStatistics

KEY = ("req", "watch")


def test_registry_keeps_totals_by_binding() -> None:
    registry = InMemoryMetricsRegistry()
    registry.register(*KEY)
    registry.record_queue_depth(*KEY, 3)
    registry.record_drop(*KEY)
    registry.record_activation(*KEY, 0.25)
    registry.record_activation(*KEY, 0.75)
    registry.record_probe_error(*KEY)
    registry.record_drop("other", "watch")

    assert registry.snapshot(*KEY) == MetricsSnapshot(3, 1, 2, 1, 0.5)
    assert registry.snapshot("other", "watch") == MetricsSnapshot(0, 1, 0, 0, None)
    registry.forget(*KEY)
    registry.forget(*KEY)
    assert registry.snapshot(*KEY) is None


def test_registered_binding_starts_at_zero() -> None:
    registry = InMemoryMetricsRegistry()
    registry.register(*KEY)

    assert registry.snapshot(*KEY) == MetricsSnapshot(0, 0, 0, 0, None)


def test_metrics_sink_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        MetricsSink()  # type: ignore[abstract]


def test_relay_reports_each_event_once_across_looks() -> None:
    registry = InMemoryMetricsRegistry()
    live = [(KEY, BindingStatistics(activations=2, errors=1, dropped=3, waiting=4, latency_s_total=1.0))]
    relay = MetricsRelay(lambda: list(live))
    relay.attach(registry)
    assert relay.flush(time.monotonic() + 30)
    first = registry.snapshot(*KEY)
    live[0] = (KEY, BindingStatistics(activations=4, errors=1, dropped=5, waiting=0, latency_s_total=2.0))
    assert relay.flush(time.monotonic() + 30)
    second = registry.snapshot(*KEY)
    ended, live[:] = live[0], []
    relay.note_ended([ended])
    assert relay.flush(time.monotonic() + 30)
    relay.close()

    assert first == MetricsSnapshot(4, 3, 2, 1, 0.5)
    assert second == registry.snapshot(*KEY) == MetricsSnapshot(0, 5, 4, 1, 0.5)


def test_relay_reports_a_binding_that_ended_unseen() -> None:
    registry = InMemoryMetricsRegistry()
    relay = MetricsRelay(list)
    relay.attach(registry)
    for _ in range(2):
        relay.note_ended([(KEY, BindingStatistics(activations=1, latency_s_total=0.5))])
        assert relay.flush(time.monotonic() + 30)
    relay.close()

    assert registry.snapshot(*KEY) == MetricsSnapshot(0, 0, 2, 0, 0.5)


def test_raising_metrics_sink_is_logged_once_per_method(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(InMemoryMetricsRegistry):
        def record_drop(self, *args: Any) -> None:
            raise OSError("exporter down")

    sink = Failing()
    relay = MetricsRelay(lambda: [(KEY, BindingStatistics(activations=2, dropped=600, latency_s_total=1.0))])
    relay.attach(sink)
    assert relay.flush(time.monotonic() + 30)
    relay.close()

    assert sink.snapshot(*KEY) == MetricsSnapshot(0, 0, 2, 0, 0.5)
    assert [record.getMessage() for record in caplog.records] == [
        "the metrics sink's `record_drop` raised; further errors of it are not logged"
    ]


def test_flush_of_a_relay_without_a_sink_has_nothing_to_wait_for() -> None:
    relay = MetricsRelay(list)

    assert relay.flush(time.monotonic())
    relay.close()


def test_detaching_ends_the_thread_and_attaching_starts_it_again() -> None:
    def is_running() -> bool:
        return any(thread.name == "undercurrent-metrics" for thread in threading.enumerate())

    registry = InMemoryMetricsRegistry()
    relay = MetricsRelay(lambda: [(KEY, BindingStatistics(dropped=1))])
    relay.attach(registry)
    assert is_running()
    relay.attach(None)
    assert wait_until(lambda: not is_running())
    relay.attach(registry)
    assert relay.flush(time.monotonic() + 30)
    relay.close()

    assert wait_until(lambda: not is_running())
    assert registry.snapshot(*KEY) is not None


def test_counters_of_a_request_reach_the_sink_after_its_end(router: Router) -> None:
    registry = InMemoryMetricsRegistry()
    router.attach_metrics_sink(registry)
    request_id = fresh_id()
    point = make_point("watch", "async", probe_type="failing", probe_args={"where": "on_activation"})
    router.register_request(request_id, [point], context(request_id))
    for position in range(6):
        router.route(make_record(request_id, "watch", position=position))
    router.end_request(request_id)
    assert router.flush(30)
    router.attach_metrics_sink(None)

    snapshot = registry.snapshot(request_id, "watch")
    assert snapshot is not None
    assert (snapshot.activation_count, snapshot.error_count, snapshot.drop_count) == (6, 3, 0)
    assert snapshot.avg_activation_latency_seconds is not None
    assert snapshot.avg_activation_latency_seconds > 0


def test_slow_metrics_sink_delays_no_route(router: Router, gate: Gate) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(InMemoryMetricsRegistry):
        def record_drop(self, *args: Any) -> None:
            entered.set()
            assert leave.wait(30)

    router.attach_metrics_sink(Slow())
    request_id = register_gated(router, gate, queue_depth=1)
    for position in range(1, 10):
        router.route(make_record(request_id, "watch", position=position))
    assert entered.wait(30)
    for position in range(10, 20):
        router.route(make_record(request_id, "watch", position=position))
    metrics = router.get_metrics(request_id, "watch")
    leave.set()
    gate.open()
    router.end_request(request_id)
    router.attach_metrics_sink(None)

    assert metrics.drop_count == 18


def test_metrics_sink_runs_on_no_thread_that_routes(router: Router, gate: Gate) -> None:
    threads: set[str] = set()

    class Watching(InMemoryMetricsRegistry):
        def _note(self, *_: Any) -> None:
            threads.add(threading.current_thread().name)

        record_queue_depth = record_drop = record_activation = record_probe_error = _note

    router.attach_metrics_sink(Watching())
    request_id = register_gated(router, gate, queue_depth=1)
    for position in range(1, 10):
        router.route(make_record(request_id, "watch", position=position))
    gate.open()
    router.end_request(request_id)
    assert router.flush(30)
    router.attach_metrics_sink(None)

    assert threads == {"undercurrent-metrics"}


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_shutdown_reports_the_counters_of_live_requests(mode: str) -> None:
    registry = InMemoryMetricsRegistry()
    with Router(REGISTRY, worker_mode=mode, metrics_sink=registry) as router:
        router.register_request("live", [make_point("watch", "async")], context("live"))
        for position in range(5):
            router.route(make_record("live", "watch", position=position))

    snapshot = registry.snapshot("live", "watch")
    assert snapshot is not None
    assert snapshot.activation_count == 5


def test_tally_counts_exactly_while_it_is_read() -> None:
    tally = Tally()
    reads: list[int] = []

    def bump_many() -> None:
        for _ in range(20_000):
            tally.bump()

    threads = [threading.Thread(target=bump_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        reads.append(tally.value)
    for thread in threads:
        thread.join()

    assert tally.value == tally.close() == tally.value == 80_000
    assert reads == sorted(reads)


def test_reading_a_tally_leaves_the_numbers_that_bump_gives_as_they_are() -> None:
    tally = Tally()
    assert (tally.bump(), tally.value, tally.value, tally.bump()) == (0, 1, 1, 1)
    tally.begin_at_zero()
    assert (tally.value, tally.bump(), tally.value) == (0, 2, 1)
