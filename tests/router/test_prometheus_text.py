"""The text for scrapers is what Prometheus' own parser reads, and says what the totals say."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus
from router_points import REGISTRY, Gate, ListSink, context, fresh_id, make_point, make_record, register_gated

from undercurrent.router import (
    InterventionMode,
    InterventionPolicy,
    LatencyHistogram,
    PointKey,
    PointMetrics,
    Router,
    RouterMetrics,
    SinkMetrics,
    openmetrics_text,
    prometheus_text,
)
from undercurrent.router.exported import METRICS

PREFIX = "undercurrent_"
Values = dict[str, dict[tuple[tuple[str, str], ...], float]]


@pytest.fixture(name="busy", scope="module", params=["process", "thread"])
def _busy(request: pytest.FixtureRequest) -> Iterator[Router]:
    """A router that has something to say in every metric."""
    policy = InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, 10_000)
    points = [
        make_point("watch", "async", probe_type="flagging"),
        make_point("guard", probe_type="flagging"),
        make_point("gate", probe_type="flagging", intervention=policy),
    ]
    with Router(REGISTRY, worker_mode=request.param) as router:
        router.attach_log_sink(ListSink(), inline=True)
        for _ in range(10):
            request_id = fresh_id()
            router.register_request(request_id, points, context(request_id), wait_s=30)
            for position in range(8):
                for point in points:
                    router.route(make_record(request_id, point.name, position=position))
            router.end_request(request_id)
        assert router.flush(30)
        yield router


class Said:
    """Stands where a router does for the exporter, and says what it is told to."""

    def __init__(self, totals: RouterMetrics) -> None:
        self._totals = totals

    def totals(self) -> RouterMetrics:
        return self._totals


def nothing(**more: Any) -> RouterMetrics:
    with Router({}) as router:
        return replace(router.totals(), **more)


def values_of(families: Iterable[Metric]) -> Values:
    """The numbers by name and labels."""
    found: Values = defaultdict(dict)
    for family in families:
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found[sample.name], "a series occurs twice"
            found[sample.name][labels] = sample.value
    return found


def of(values: Values, name: str, **labels: str) -> float:
    """The sum of the series that have these labels."""
    found = [value for series, value in values[PREFIX + name].items() if labels.items() <= dict(series).items()]
    assert found, f"no series {name} with {labels}"
    return sum(found)


def test_prometheus_parser_reads_every_family_with_its_type_and_help(busy: Router) -> None:
    families = list(parse_prometheus(prometheus_text(busy)))

    assert [family.name for family in families] == [metric.name.removesuffix("_total") for metric in METRICS]
    assert [family.type for family in families] == [metric.type for metric in METRICS]
    assert [family.documentation for family in families] == [metric.help for metric in METRICS]


def test_openmetrics_parser_reads_the_same_numbers(busy: Router) -> None:
    text = openmetrics_text(busy)
    families = list(parse_openmetrics(text))

    assert text.endswith("# EOF\n")
    assert [family.type for family in families] == [metric.type for metric in METRICS]
    said, other = values_of(families), values_of(parse_prometheus(prometheus_text(busy)))
    assert said[f"{PREFIX}probe_records_total"] == other[f"{PREFIX}probe_records_total"]
    assert said[f"{PREFIX}probe_latency_seconds_count"] == other[f"{PREFIX}probe_latency_seconds_count"]


def test_text_says_what_the_totals_say(busy: Router) -> None:
    values = values_of(parse_prometheus(prometheus_text(busy)))

    assert of(values, "requests_begun_total") == of(values, "requests_ended_total") == 10
    for mode, name in (("async", "watch"), ("inline", "guard"), ("inline", "gate")):
        assert of(values, "probe_records_total", point=name, mode=mode, probe="flagging") == 80
        assert of(values, "probe_signals_total", point=name, action="flag") == 80
        assert of(values, "probe_results_total", point=name, coverage="complete") == 10
    assert of(values, "ring_produced_total", point="watch") == of(values, "ring_consumed_total", point="watch") == 80
    for name in ("watch", "gate"):
        for stage in ("queue", "compute"):
            assert of(values, "probe_latency_seconds_count", point=name, stage=stage) == 80
    assert of(values, "breaker_records_total", point="gate", outcome="answered") == 80
    assert of(values, "breaker_state", point="gate", state="closed") == 1
    assert of(values, "breaker_state", point="gate") == 1
    assert of(values, "sink_records_total", sink="ListSink", outcome="ok") == 3 * (80 + 10)
    assert of(values, "worker_up") == 2
    assert of(values, "ring_memory_bytes") > 0


def test_histograms_grow_from_bucket_to_bucket_up_to_their_count(busy: Router) -> None:
    values = values_of(parse_prometheus(prometheus_text(busy)))
    names = [metric.name for metric in METRICS if metric.type == "histogram"]
    checked = 0
    for name in names:
        by_series: dict[Any, list[tuple[float, float]]] = defaultdict(list)
        for series, value in values[f"{name}_bucket"].items():
            labels = dict(series)
            by_series[frozenset(labels.items() - {("le", labels["le"])})].append((float(labels["le"]), value))
        for rest, buckets in by_series.items():
            counts = [value for _, value in sorted(buckets)]
            key = tuple(sorted(rest))
            assert counts == sorted(counts)
            assert counts[-1] == values[f"{name}_count"][key]
            assert values[f"{name}_sum"][key] >= 0
            checked += 1
    assert checked >= 3 + 2 * 2 + 1  # points, stages of those with rings, the sink


def test_every_scrape_accounts_for_every_record(gate: Gate) -> None:
    with Router(REGISTRY, worker_mode="thread") as router:
        request_id = register_gated(router, gate, queue_depth=4)
        is_over = threading.Event()

        def route_on() -> None:
            for position in range(1, 3_000):
                router.route(make_record(request_id, "watch", position=position))
                if position == 1_000:
                    gate.open()
            is_over.set()

        thread = threading.Thread(target=route_on)
        thread.start()
        scrapes = 0
        while not is_over.is_set() or scrapes < 10:
            values = values_of(parse_prometheus(prometheus_text(router)))
            produced = of(values, "ring_produced_total")
            parts = ("ring_consumed_total", "ring_dropped_total", "ring_lost_total", "ring_lag_records")
            assert produced == sum(of(values, part) for part in parts)
            assert 0 <= of(values, "ring_fill_ratio") <= 1
            scrapes += 1
        thread.join()
        router.end_request(request_id)


def test_no_label_names_a_request(gate: Gate) -> None:
    with Router(REGISTRY, worker_mode="thread") as router:
        request_id = register_gated(router, gate)
        text = prometheus_text(router)
        gate.open()
        router.end_request(request_id)
    assert 'point="watch"' in text
    assert request_id not in text


def test_series_stay_bounded_whatever_points_are_called() -> None:
    with Router(REGISTRY) as router:
        for number in range(1_200):
            router.register_request("req", [make_point(f"made-up-{number}")], context("req"))
            router.route(make_record("req", f"made-up-{number}"))
            router.end_request("req")
        text = prometheus_text(router)
        values = values_of(parse_prometheus(text))

    assert len(values[f"{PREFIX}probe_records_total"]) == 1_001
    assert of(values, "probe_records_total", point="other") == 200
    assert of(values, "probe_records_total") == 1_200
    assert of(values, "metrics_series_capped_total") == 200


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_any_name_survives_as_a_label(point: str, sink: str) -> None:
    key = PointKey(point, "p", "inline")
    totals = nothing(
        points=(PointMetrics(key, routed=3, seen=3),), sinks=(SinkMetrics(sink, 1, 2, {}, None, LatencyHistogram()),)
    )
    said: Any = Said(totals)
    for parse, text in ((parse_prometheus, prometheus_text(said)), (parse_openmetrics, openmetrics_text(said))):
        values = values_of(parse(text))
        assert values[f"{PREFIX}probe_records_total"] == {(("mode", "inline"), ("point", point), ("probe", "p")): 3.0}
        assert of(values, "sink_records_total", sink=sink, outcome="error") == 2


def test_a_name_without_utf_8_is_replaced_and_breaks_no_scrape() -> None:
    with Router(REGISTRY) as router:
        for name in ("\ud800", "?"):
            with router.request([make_point(name)], request_id="req") as request:
                request.route(make_record("req", name))
        values = values_of(parse_prometheus(prometheus_text(router).encode().decode()))
    assert of(values, "probe_records_total", point="?") == 2


def test_each_sample_has_the_labels_of_its_family(busy: Router) -> None:
    by_name = {metric.name.removesuffix("_total"): set(metric.labels) for metric in METRICS}
    for family in parse_prometheus(prometheus_text(busy)):
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == by_name[family.name]


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert metric.name.startswith(PREFIX)
        assert (metric.type == "counter") == metric.name.endswith("_total")
        assert (metric.type == "histogram") == metric.name.endswith("_seconds")
        assert not set(metric.labels) & {"request", "request_id", "pid", "position", "token", "tenant", "user"}
