"""Sinks attached with `inline=True` get aborts, flags and results of inline points, off the engine's thread."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from router_points import REGISTRY, Collect, ListSink, context, fresh_id, make_point, make_record

from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal
from undercurrent.router import Router
from undercurrent.router.inline_outlet import InlineOutlet
from undercurrent.sinks import FileLogSink
from undercurrent.spec import ActivationRecord


def end_flagged_request(router: Router, *, signals: int = 2) -> str:
    request_id = fresh_id()
    router.register_request(request_id, [make_point(probe_type="flagging")], context(request_id, model="tiny"))
    for position in range(signals):
        router.route(make_record(request_id, position=position))
    router.end_request(request_id)
    return request_id


def test_inline_signals_and_result_arrive_in_order_before_the_end_returns() -> None:
    sink = ListSink()
    with Router(REGISTRY) as router:
        router.attach_log_sink(sink, inline=True)
        request_id = end_flagged_request(router)
        events = list(sink.events)

    assert [(kind, rid, name) for kind, rid, name, _ in events] == [
        ("signal", request_id, "guard"),
        ("signal", request_id, "guard"),
        ("result", request_id, "guard"),
    ]
    assert events[0][3].action is ProbeAction.FLAG
    assert events[2][3].metadata["coverage"]["complete"]
    assert threading.get_ident() not in sink.threads


def test_only_sinks_that_asked_get_what_inline_points_say() -> None:
    asked, other, late = ListSink(), ListSink(), ListSink()
    with Router(REGISTRY) as router:
        router.attach_log_sink(other)
        router.add_log_sink(asked, inline=True)
        end_flagged_request(router)
        router.add_log_sink(late)
        router.add_log_sink(late, inline=True)
        router.remove_log_sink(asked)
        end_flagged_request(router)

    assert (len(asked.events), len(other.events), len(late.events)) == (3, 0, 3)


def test_signals_that_only_continue_are_not_forwarded() -> None:
    class Chatty(Collect):
        def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
            return ProbeSignal(metadata={"score": 0.1})

    sink = ListSink()
    with Router({"chatty": Chatty}) as router:
        router.attach_log_sink(sink, inline=True)
        router.register_request("req", [make_point(probe_type="chatty")], context("req"))
        assert router.route(make_record("req")) is not None
        router.end_request("req")

    assert [event[0] for event in sink.events] == ["result"]


def test_abort_for_a_probe_that_raised_is_forwarded() -> None:
    sink = ListSink()
    point = make_point(probe_type="failing", probe_args={"where": "on_activation"}, on_error="abort")
    with Router(REGISTRY) as router:
        router.attach_log_sink(sink, inline=True)
        router.register_request("req", [point], context("req"))
        router.route(make_record("req", position=1))
        router.end_request("req")

    assert [event[0] for event in sink.events] == ["signal", "result"]
    assert sink.events[0][3].metadata["error_type"] == "ValueError"


def test_file_sink_writes_inline_points_with_layer_position_and_model(tmp_path: Path) -> None:
    path = tmp_path / "observations.ndjson"
    with Router(REGISTRY) as router:
        router.attach_log_sink(FileLogSink(path), inline=True)
        end_flagged_request(router)
        lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]

    assert [line["kind"] for line in lines] == ["signal", "signal", "result"]
    assert (lines[1]["sequence"], lines[1]["layer"], lines[1]["position"], lines[1]["model"]) == (1, 4, 1, "tiny")


def test_slow_sink_delays_no_route() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(ListSink):
        def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
            entered.set()
            assert leave.wait(30)
            super().write_signal(request_id, extraction_point_name, signal)

    sink = Slow()
    with Router(REGISTRY) as router:
        router.attach_log_sink(sink, inline=True)
        router.register_request("req", [make_point(probe_type="flagging")], context("req"))
        router.route(make_record("req", position=0))
        assert entered.wait(30)
        for position in range(1, 50):
            router.route(make_record("req", position=position))
        written_meanwhile = len(sink.events)
        leave.set()
        router.end_request("req")

    assert written_meanwhile == 0
    assert len(sink.events) == 51


def test_failing_sink_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(ListSink):
        def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
            raise OSError("disk full")

    failing, healthy = Failing(), ListSink()
    with Router(REGISTRY) as router:
        router.attach_log_sink(failing, inline=True)
        router.add_log_sink(healthy, inline=True)
        end_flagged_request(router)

    assert [event[0] for event in failing.events] == ["result"]
    assert [event[0] for event in healthy.events] == ["signal", "signal", "result"]
    assert "disk full" in caplog.text


def test_sink_that_falls_behind_loses_the_newest_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("undercurrent.router.inline_outlet._WAITING_COUNT_MAX", 3)
    leave = threading.Event()
    written: list[str] = []

    class Slow(ListSink):
        def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
            assert leave.wait(30)
            written.append(extraction_point_name)

    outlet = InlineOutlet()
    outlet.set_sinks([Slow()])
    outlet.take_results({str(number): ProbeResult("req", str(number), None) for number in range(5)}, "req", None)
    leave.set()
    outlet.flush(threading.TIMEOUT_MAX)
    outlet.close()

    assert written == ["0", "1", "2"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
