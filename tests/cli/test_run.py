"""`undercurrent init` and `undercurrent run`: what init writes runs, and what run shows is what the probes said."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_lines import COMMAND, SPEC, call, start

from undercurrent.cli.prompts import read_prompts
from undercurrent.cli.run_views import PlainView
from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal, unregister_probe
from undercurrent.errors import ProbeNotFoundError
from undercurrent.model import GenerationOutput, SignalEvent

RUN = ("run", "probes.yaml", "--model", "tiny", "--import", "my_probes.py", "--prompt", "The river")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that `init` has filled, and where we are; its probes are forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert call("init").exit_code == 0
    yield tmp_path
    sys.modules.pop("my_probes", None)
    for name in ("loudness", "drift"):
        with contextlib.suppress(ProbeNotFoundError):
            unregister_probe(name)


def events(text: str) -> list[dict[str, Any]]:
    """Returns the events of `--json`."""
    return [json.loads(line) for line in text.splitlines()]


# ---- init -----------------------------------------------------------------------------------------------------------


def test_files_of_init_pass_the_checker(folder: Path) -> None:
    answer = call("validate", "probes.yaml", "--strict", "--check-probes", "--import", "my_probes.py")
    assert answer.stdout == "probes.yaml: OK (2 extraction points)\n"


def test_init_never_overwrites(folder: Path) -> None:
    (folder / "my_probes.py").write_text("mine")
    (folder / "probes.yaml").unlink()
    answer = call("init")
    assert answer.exit_code == 1
    assert "my_probes.py would be overwritten; nothing was written" in answer.stderr
    assert (folder / "my_probes.py").read_text() == "mine"
    assert not (folder / "probes.yaml").exists()


def test_init_makes_the_folder_and_lists_its_files(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    report = json.loads(call("init", str(target), "--json").stdout)
    assert [Path(name).name for name in report["files"]] == ["probes.yaml", "my_probes.py"]
    assert all(Path(name).is_file() for name in report["files"])


def test_dry_run_of_init_writes_nothing(tmp_path: Path) -> None:
    answer = call("init", str(tmp_path / "new"), "--dry-run")
    assert f"would write {tmp_path}/new/probes.yaml" in answer.stdout
    assert not (tmp_path / "new").exists()


# ---- prompts --------------------------------------------------------------------------------------------------------


def test_prompts_come_from_options_and_files(tmp_path: Path) -> None:
    lines, objects = tmp_path / "p.txt", tmp_path / "p.jsonl"
    lines.write_text("one\n\n two \n")
    objects.write_text('{"prompt": "three"}\n{"text": "four", "label": 1}\n')
    assert read_prompts(["zero"], str(lines)) == ["zero", "one", " two "]
    assert read_prompts([], str(objects)) == ["three", "four"]


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "p.jsonl:1: expected a JSON object"), ('{"question": "x"}', "the key 'prompt' or 'text'"), ("3", "got '3'")],
)
def test_line_without_a_prompt_is_named(line: str, said: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    (tmp_path / "p.jsonl").write_text(line)
    answer = call("run", str(spec), "--model", "tiny", "--prompts-file", str(tmp_path / "p.jsonl"))
    assert answer.exit_code == 1
    assert said in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("spec.yaml", "--model", "tiny"), 2, "no prompt"),
        (("spec.yaml", "--prompt", "x"), 2, "--model"),
        (("-", "--model", "tiny", "--prompts-file", "-"), 2, "cannot both be standard input"),
        (("spec.yaml", "--model", "tiny", "--prompts-file", "none.txt"), 1, "'none.txt': No such file"),
        (("spec.yaml", "--model", "tiny", "--prompt", "x", "--max-new-tokens", "0"), 2, "--max-new-tokens"),
        (("missing.yaml", "--model", "tiny", "--prompt", "x"), 1, "missing.yaml: no such file"),
        (("bad.yaml", "--model", "tiny", "--prompt", "x"), 1, "bad.yaml:5: "),
        (("spec.yaml", "--model", "tiny", "--prompt", "x", "--log", "no/where"), 1, "no/where"),
        (("spec.yaml", "--model", "tiny", "--prompt", "x"), 1, "no probe is registered as 'loudness'"),
        (("spec.yaml", "--model", "./nowhere", "--prompt", "x"), 1, "no folder 'nowhere'"),
    ],
)
def test_what_cannot_run_is_refused_in_words(
    arguments: tuple[str, ...], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    Path("bad.yaml").write_text(SPEC.replace("residual_stream", "x"))
    answer = call("run", *arguments)
    assert answer.exit_code == status
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


# ---- run ------------------------------------------------------------------------------------------------------------


def test_events_tell_tokens_signals_and_verdicts(folder: Path) -> None:
    answer = call(*RUN, "--max-new-tokens", "6", "--json")
    assert answer.exit_code == 0, answer.stderr
    told = events(answer.stdout)
    assert told[0] == {"event": "start", "prompt_index": 0, "prompt": "The river"}
    tokens = [event for event in told if event["event"] == "token"]
    assert [event["index"] for event in tokens] == list(range(6))
    signals = [event for event in told if event["event"] == "signal"]
    # The gate reads the prompt; five of six tokens are fed back and seen by the async probe, in order.
    assert [event["point"] for event in signals].count("gate") == 1
    assert [event["point"] for event in signals].count("drift") == 5
    end = told[-1]
    assert end["event"] == "end"
    assert end["text"] == "".join(event["text"] for event in tokens)
    assert (end["aborted"], end["finish_reason"]) == (False, "length")
    assert end["results"]["drift"]["metadata"]["coverage"]["seen"] == 5
    drift = [event["metadata"]["score"] for event in signals if event["point"] == "drift"]
    assert end["results"]["drift"]["verdict"]["max_score"] == pytest.approx(max(drift))


def test_abort_of_a_probe_ends_the_text_and_is_told_and_logged(folder: Path) -> None:
    spec = (folder / "probes.yaml").read_text().replace("threshold: 100000.0", "threshold: 0.0")
    (folder / "probes.yaml").write_text(spec)
    answer = call(*RUN, "--log", "signals.ndjson")
    assert answer.exit_code == 0, answer.stderr
    assert len(answer.stdout.strip()) <= 1
    assert "abort by gate, score " in answer.stderr
    assert "stopped: the probe of 'gate' stopped the generation" in answer.stderr
    logged = events((folder / "signals.ndjson").read_text())
    assert {"signal", "result"} == {line["kind"] for line in logged if line["extraction_point_name"] == "gate"}


def test_error_of_a_probe_is_told_with_its_place_and_is_no_defect(folder: Path) -> None:
    probes = (folder / "my_probes.py").read_text()
    (folder / "my_probes.py").write_text(probes.replace("    return float(np.linalg", "    return float(np.linalk"))
    answer = call(*RUN)
    assert answer.exit_code == 1
    assert "raised AttributeError: module 'numpy' has no attribute 'linalk'" in answer.stderr
    assert "my_probes.py:16" in answer.stderr
    assert "on_error" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_text_goes_to_the_pipe_and_verdicts_to_standard_error(folder: Path) -> None:
    answer = call(*RUN, "--prompt", "A hill", "--max-new-tokens", "5")
    assert answer.exit_code == 0, answer.stderr
    assert [len(line) for line in answer.stdout.splitlines()] == [5, 5]
    assert "prompt 1: The river" in answer.stderr
    assert "prompt 2: A hill" in answer.stderr
    assert answer.stderr.count("(4 of 4 records)") == 2


def test_terminal_shows_the_table(folder: Path) -> None:
    spec = (folder / "probes.yaml").read_text()
    # Inline only: the worker of the second point would import torch, and is shown by the events.
    (folder / "probes.yaml").write_text(spec[: spec.index("  # An async probe")])
    ours, terminal = pty.openpty()
    with subprocess.Popen(
        [str(COMMAND), *RUN, "--max-new-tokens", "6"], cwd=folder, stdout=terminal, stderr=subprocess.PIPE
    ) as process:
        os.close(terminal)
        shown = b"".join(read_terminal(ours)).decode()
        _, talk = process.communicate(timeout=50)
    os.close(ours)
    assert process.returncode == 0, talk.decode()
    last = shown[shown.rindex("aborts") :]
    assert last.splitlines()[1].split()[:3] == ["gate", "inline", "1"]
    assert "gate: flagged no, max_score 13.58, n 1 (1 of 1 records)" in re.sub(r"\x1b\[[0-9;]*m", "", last)


def read_terminal(terminal: int) -> Iterator[bytes]:
    """Yields what is written to the other end of a terminal until nobody has it open."""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # EIO: the last writer is gone
            return
        if not chunk:
            return
        yield chunk


@pytest.mark.timeout(180)
def test_ctrl_c_ends_the_generation_and_every_process(folder: Path) -> None:
    with start(*RUN, "--max-new-tokens", "2000", "--json", cwd=folder) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["event"] != "token":
            pass
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=120)
    assert process.returncode == 130
    assert talk.endswith("\ninterrupted\n")
    assert "Traceback" not in talk
    assert children
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_probe_that_flags_every_token_is_not_said_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    view.begin(0, "x")
    for _ in range(10):
        view.show(SignalEvent("monitor", ProbeSignal(ProbeAction.FLAG, {"score": 0.9})))
    view.show(SignalEvent("monitor", ProbeSignal(ProbeAction.CONTINUE, {"score": 0.1})))
    coverage = {"seen": 11, "routed": 12, "complete": False, "reasons": ["dropped"]}
    result = ProbeResult("r", "monitor", {"ratio": 0.51239, "ok": True}, metadata={"coverage": coverage})
    view.end(GenerationOutput("", "x", "r"), {"monitor": result})
    assert capsys.readouterr().err.splitlines()[1:] == [
        *["flag by monitor, score 0.9"] * 3,
        "monitor: ratio 0.5124, ok yes (11 of 12 records, incomplete: dropped); 7 more signals like these",
    ]


def test_control_characters_of_a_model_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    view.begin(0, "a\x1b[2Jb")
    assert capsys.readouterr().err == "prompt 1: a\ufffd[2Jb\n"
