"""The command lines that 0.1.0 documents run with the same meaning and the same exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_lines import SPEC, call

from undercurrent.cli import CLIError, UsageError, main
from undercurrent.core import default_registry
from undercurrent.errors import ProbingError

CALLS = [
    ("--version", 0),
    ("", 2),
    ("validate good.yaml", 0),
    ("validate good.yaml old.yaml --strict", 1),
    ("validate good.yaml bad.yaml", 1),
    ("validate missing.yaml", 1),
    ("validate", 2),
    ("validate good.yaml --format yaml", 2),
    ("validate good.yaml --import json", 2),
    ("validate good.yaml --check-probes", 1),
    ("validate good.yaml --check-probes --import published_probes", 0),
    ("validate good.yaml --check-probes --import no_such_module", 2),
    ("--debug validate good.yaml", 0),
    ("validate --debug good.yaml", 0),
    ("schema", 0),
    ("schema -o schema.json", 0),
    ("schema --output schema.json", 0),
    ("schema -o missing/schema.json", 1),
    ("inspect-model model", 0),
    ("inspect-model model --backend hf", 0),
    ("inspect-model model --backend vllm --format text", 0),
    ("inspect-model model --backend all --format json", 0),
    ("inspect-model model --trust-remote-code --revision main", 0),
    ("inspect-model model --emit-spec spec.yaml", 0),
    ("inspect-model model --backend hg", 2),
    ("inspect-model", 2),
    ("no-such-command", 2),
]


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spec of each kind, a module of probes, and a model without weights; and we are in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    good = SPEC.replace("loudness", "published_probe")
    (tmp_path / "good.yaml").write_text(good)
    (tmp_path / "old.yaml").write_text(good.replace("layers", "layer"))
    (tmp_path / "bad.yaml").write_text(good.replace("residual_stream", "residual"))
    (tmp_path / "published_probes.py").write_text(
        "from undercurrent import probe\n@probe('published_probe')\ndef score(record):\n    return 0.0\n"
    )
    (tmp_path / "model").mkdir()
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 10}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call imports the module of probes anew, into a registry that does not know them."""
    monkeypatch.delitem(sys.modules, "published_probes", raising=False)
    if "published_probe" in default_registry:
        default_registry.unregister("published_probe")


@pytest.mark.parametrize(("line", "status"), CALLS, ids=[line or "(nothing)" for line, _ in CALLS])
def test_documented_call_ends_with_its_status(line: str, status: int) -> None:
    answer = call(*line.split())
    assert answer.exit_code == status, answer.output
    assert bool(answer.stderr.strip()) or status != 2


def test_errors_are_probing_errors_and_main_returns_their_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert issubclass(UsageError, CLIError)
    assert issubclass(CLIError, ProbingError)
    assert main(["validate", "bad.yaml"]) == 1
    assert main(["validate"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
