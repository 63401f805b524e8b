"""Sinks of one's own: what is called of a class that builds on another."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from router_points import REGISTRY, context, fresh_id, make_point, make_record
from sink_lines import records_of
from source_tree import ROOT

from undercurrent import FileLogSink, LogSink, ProbeResult, ProbeSignal, Router
from undercurrent.sinks import SignalRecord, WebhookLogSink, takes_record
from undercurrent.workers.sink_transfer import join_handles, pack_handle, unpack_handles


class Louder(FileLogSink):
    """Written for 0.1.0: sees every signal before it is written."""

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        super().write_signal(request_id, extraction_point_name, ProbeSignal(signal.action, {"louder": True}))


class Whole(Louder):
    """Takes whole records again."""

    def write_signal_record(self, record: SignalRecord) -> None:
        super().write_signal_record(record)


class Plain:
    """No class of ours."""

    def write_signal(self, *_: Any) -> None: ...
    def write_result(self, *_: Any) -> None: ...


@pytest.mark.parametrize("mode", ["inline", "async"])
@pytest.mark.parametrize("worker_mode", ["process", "thread"])
def test_class_that_overrides_write_signal_gets_every_signal(mode: str, worker_mode: Any, tmp_path: Path) -> None:
    path = tmp_path / "observations.ndjson"
    request = fresh_id()
    with Router(REGISTRY, worker_mode=worker_mode) as router:
        router.attach_log_sink(Louder(path), inline=True)
        router.register_request(request, [make_point("guard", mode, probe_type="flagging")], context(request))
        router.route(make_record(request))
        router.end_request(request)
    signal, result = records_of(path)
    assert signal["payload"]["metadata"] == {"louder": True}
    assert result["coverage"]["complete"]


def test_redaction_of_a_closure_travels_and_one_that_cannot_runs_where_it_was_attached(tmp_path: Path) -> None:
    lock = threading.Lock()
    hidden = "hidden"

    def by_value(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "by": hidden, "pid": os.getpid()}

    def bound_to_this_process(record: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return {**record, "by": hidden, "pid": os.getpid()}

    request = fresh_id()
    paths = [tmp_path / "first.ndjson", tmp_path / "second.ndjson"]
    with Router(REGISTRY) as router:
        router.attach_log_sink(FileLogSink(paths[0], redact=by_value))
        router.add_log_sink(FileLogSink(paths[1], redact=bound_to_this_process))
        router.register_request(request, [make_point("guard", "async", probe_type="flagging")], context(request))
        router.route(make_record(request))
        router.end_request(request)
    first, second = (records_of(path) for path in paths)
    assert [[record["kind"] for record in records] for records in (first, second)] == [["signal", "result"]] * 2
    assert {record["by"] for record in first + second} == {hidden}
    assert os.getpid() not in {record["pid"] for record in first}
    assert {record["pid"] for record in second} == {os.getpid()}


PROGRAM = """
import json, sys
from undercurrent import FileLogSink, Router
from router_points import REGISTRY, context, make_point, make_record

class Mine(FileLogSink):
    def __init__(self, path):
        super().__init__(path, redact=hide)
        self.count = 0

    def write_signal(self, *arguments):
        self.count += 1
        super().write_signal(*arguments)

def hide(record):
    return {**record, "hidden": True}

for sink in (Mine(sys.argv[1]), FileLogSink(sys.argv[1], redact=hide)):
    with Router(REGISTRY) as router:
        router.attach_log_sink(sink)
        router.register_request("req-1", [make_point("guard", "async", probe_type="flagging")], context("req-1"))
        router.route(make_record("req-1"))
        coverage = router.end_request("req-1")["guard"].metadata["coverage"]
        assert coverage["complete"], coverage
"""


def test_classes_and_redactions_of_a_script_work_as_they_did(tmp_path: Path) -> None:
    path = tmp_path / "observations.ndjson"
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-P", str(script), str(path)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert answer.returncode == 0, answer.stderr
    records = records_of(path)
    assert [record["kind"] for record in records] == ["signal", "result"] * 2
    assert all(record["hidden"] for record in records)


def test_handle_that_cannot_be_made_in_a_worker_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    good = pack_handle(FileLogSink("/dev/null"))
    assert good is not None
    sinks = unpack_handles(join_handles([b"no pickle", good]))
    assert [type(sink) for sink in sinks] == [FileLogSink]
    assert "could not be made" in caplog.text
    assert unpack_handles(join_handles([])) == []


def test_nearest_of_both_ways_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "observations.ndjson"
    assert takes_record(FileLogSink(path), "signal")
    assert takes_record(WebhookLogSink("https://example.com"), "result")
    assert not takes_record(Louder(path), "signal")
    assert takes_record(Louder(path), "result")
    assert takes_record(Whole(path), "signal")
    assert not takes_record(Plain(), "signal")


def test_sink_built_on_the_base_gets_both_methods_and_its_redaction() -> None:
    class Kept(LogSink):
        def __init__(self) -> None:
            super().__init__(redact=lambda record: {**record, "seen": True})
            self.records: list[Any] = []

        def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
            self.records.append(self._apply_redaction({"id": request_id}))

        def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
            self.records.append(None)

    sink = Kept()
    assert not takes_record(sink, "signal")
    sink.write_signal("req-1", "guard", ProbeSignal())
    assert sink.records == [{"id": "req-1", "seen": True}]
    sink.flush()
    sink.close()
