"""`undercurrent record` and `undercurrent replay`: yesterday's traffic through today's probes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import call

from undercurrent.core import unregister_probe
from undercurrent.errors import ProbeNotFoundError

PROBES = '''
from undercurrent.core import Probe, ProbeAction, ProbeResult, ProbeSignal, register_probe

class Count(Probe):
    """Flags every record; its verdict is how many there were."""
    probe_kind = "trajectory"
    def on_start(self, request_ctx): self.count = 0
    def on_activation(self, record):
        self.count += 1
        return ProbeSignal(ProbeAction.FLAG)
    def on_end(self, request_ctx): return ProbeResult(self.request_id, self.extraction_point_name, self.count)

class Stop(Count):
    def on_activation(self, record):
        super().on_activation(record)
        return ProbeSignal(ProbeAction.ABORT) if self.count == 3 else None

register_probe("replay_count", Count)
register_probe("replay_stop", Stop)
'''
RECORDED = """
extraction_points:
  - {name: all, layers: [1, 2], tensor_type: residual_stream, position: "generated[*]", probe_type: not_written_yet,
     probe_kind: trajectory}
"""
NEW = """
extraction_points:
  - {name: counted, layers: [2], tensor_type: residual_stream, position: "generated[*]", probe_type: replay_count,
     probe_kind: trajectory, execution_mode: async}
  - {name: stopping, layers: [1], tensor_type: residual_stream, position: "generated[*]", probe_type: replay_stop,
     probe_kind: trajectory}
"""
TOKENS = 6


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with specs, probes and a recording of two prompts; its probes are forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "replay_probes.py").write_text(PROBES)
    (tmp_path / "old.yaml").write_text(RECORDED)
    (tmp_path / "new.yaml").write_text(NEW)
    prompts = ("--prompt", "The river", "--prompt", "A boat")
    answer = call(
        "record", "old.yaml", "--model", "tiny", *prompts, "--max-new-tokens", str(TOKENS), "--out", "traffic"
    )
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("traffic: 2 requests, 20 records, ")
    yield tmp_path
    sys.modules.pop("replay_probes", None)
    for name in ("replay_count", "replay_stop"):
        with contextlib.suppress(ProbeNotFoundError):
            unregister_probe(name)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_new_spec_is_tested_on_what_was_recorded(folder: Path) -> None:
    answer = call("replay", "traffic", "new.yaml", "--import", "replay_probes.py", "--json")
    assert answer.exit_code == 0, answer.stderr
    first, second, end = events(answer.stdout)
    for request in (first, second):
        assert (request["event"], request["abort_point"]) == ("request", "stopping")
        # The third record stops the request: what lies behind its step is not replayed.
        assert [request["results"][name]["verdict"] for name in ("counted", "stopping")] == [3, 3]
        assert request["results"]["counted"]["flags"] == 3
        assert request["results"]["stopping"]["aborts"] == 1
        assert request["results"]["counted"]["metadata"]["coverage"]["complete"]
    assert (end["event"], end["requests"], end["is_complete"], end["cut_off"]) == ("end", 2, True, 0)
    assert end["points"]["counted"] == {"records": 6, "flags": 6, "aborts": 0, "missing": 0, "incomplete": 0}


def test_equal_recordings_give_equal_verdicts_and_a_table(folder: Path) -> None:
    lines = [
        call("replay", "traffic", "new.yaml", "--import", "replay_probes.py", "--speed", speed).stdout.splitlines()
        for speed in ("full", "1000x")
    ]
    assert lines[0] == lines[1]
    assert any("stopped here" in line and "stopping" in line for line in lines[0])


def test_a_log_gets_every_signal_and_result(folder: Path) -> None:
    call("replay", "traffic", "new.yaml", "--import", "replay_probes.py", "--log", "out.ndjson")
    written = events((folder / "out.ndjson").read_text())
    assert [record["kind"] for record in written].count("result") == 4
    assert {record["extraction_point_name"] for record in written} == {"counted", "stopping"}


def test_what_was_not_recorded_is_an_error_that_says_what_was(folder: Path) -> None:
    (folder / "deep.yaml").write_text(NEW.replace("layers: [2]", "layers: [3]"))
    answer = call("replay", "traffic", "deep.yaml", "--import", "replay_probes.py")
    assert answer.exit_code == 1
    assert "point 'counted': the recording has no residual_stream of layer 3; it has residual_stream of layer 1" in (
        answer.stderr
    )


def test_a_recording_that_was_cut_off_is_replayed_and_says_so(folder: Path) -> None:
    manifest = folder / "traffic" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"is_complete": true', '"is_complete": false'))
    answer = call("replay", "traffic", "new.yaml", "--import", "replay_probes.py")
    assert answer.exit_code == 0
    assert "the recording was cut off; what is there is replayed" in answer.stderr


@pytest.mark.parametrize("speed", ["0", "-1x", "fast", "nan", "inf"])
def test_a_speed_that_is_none_is_a_usage_error(speed: str, folder: Path) -> None:
    answer = call("replay", "traffic", "new.yaml", "--speed", speed)
    assert answer.exit_code == 2
    assert "expected 'full' or a number above 0" in answer.stderr


def test_recording_refuses_a_folder_in_use_and_a_spec_that_does_not_fit(folder: Path) -> None:
    common = ("--model", "tiny", "--prompt", "x")
    answer = call("record", "old.yaml", *common, "--out", "traffic")
    assert (answer.exit_code, "is there and not empty" in answer.stderr) == (1, True)
    (folder / "deep.yaml").write_text(RECORDED.replace("[1, 2]", "[1, 20]"))
    answer = call("record", "deep.yaml", *common, "--out", "other")
    assert answer.exit_code == 1
    assert "must be 0 to 3, got 20" in answer.stderr


def test_record_reports_in_json(folder: Path) -> None:
    answer = call(
        "record", "old.yaml", "--model", "tiny", "--prompt", "x", "--max-new-tokens", "3", "--out", "b", "--json"
    )
    report = json.loads(answer.stdout)
    assert {name: report[name] for name in ("folder", "requests", "records", "shards")} == {
        "folder": "b",
        "requests": 1,
        "records": 4,
        "shards": 1,
    }


def test_what_is_no_recording_is_an_error(folder: Path) -> None:
    answer = call("replay", str(folder), "new.yaml", "--import", "replay_probes.py")
    assert answer.exit_code == 1
    assert "holds no recording" in answer.stderr
