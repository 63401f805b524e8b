"""`undercurrent decide`, with a checkpoint that an installed package offers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_lines import COMMAND, call, start

QUESTIONS = """\
topic:
  type: choice
  instructions: what it is about
  criteria: [parcel, bill, no]
late: {type: noul, instructions: a parcel is late, labels: {true: late, false: early}}
"""


@pytest.fixture(autouse=True)
def _stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `stub`, `slow` and `broken` checkpoints of an installed package, as its entry points would."""
    site = tmp_path / "site"
    package = site / "stubs-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: stubs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[undercurrent.checkpoints]\nstub = stub_checkpoints:load\nbroken = stub_checkpoints:load_broken\n"
        "slow = stub_checkpoints:load_slow\ndirectory = stub_checkpoints:load_folder\n"
    )
    (site / "stub_checkpoints.py").write_text(
        "import time\n"
        "from predict_checkpoints import WordCheckpoint\n"
        "def load(source, **options): return WordCheckpoint(source)\n"
        "def load_broken(source, **options): return WordCheckpoint(source, fails_at='forward')\n"
        "def load_folder(source, **options): return WordCheckpoint('from a folder')\n"
        "class Slow(WordCheckpoint):\n"
        "    def encode(self, state, questions, options):\n"
        "        if 'wait' in state:\n"
        "            print('waiting', flush=True, file=__import__('sys').stderr)\n"
        "            time.sleep(50)\n"
        "        return super().encode(state, questions, options)\n"
        "def load_slow(source, **options): return Slow(source)\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), str(Path(__file__).parents[1]))))
    monkeypatch.chdir(tmp_path)
    Path("q.yaml").write_text(QUESTIONS)


def decide(*arguments: str, text: str | None = None) -> Any:
    return call("decide", "--questions", "q.yaml", "--model", "stub", *arguments, text=text)


def write_lines(path: str, *lines: Any) -> None:
    Path(path).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_one_state_is_a_table_with_the_checkpoint_beside_it() -> None:
    answer = decide("--state", "my bill is wrong")
    assert answer.exit_code == 0
    rows = [line.split("│")[1:4] for line in answer.stdout.splitlines() if "│" in line]
    assert ["topic", "bill"] in [[cell.strip() for cell in row[:2]] for row in rows]
    assert "answered by stub: the call asks for 'stub'" in answer.stderr


@pytest.mark.parametrize("arguments", [("--state", "my bill"), ("--state-file", "s.txt"), ("--state-file", "-"), ()])
def test_state_comes_from_the_option_a_file_or_standard_input(arguments: tuple[str, ...]) -> None:
    Path("s.txt").write_text("my bill")
    result = json.loads(decide("--json", *arguments, text="my bill").stdout)
    assert result["answers"]["topic"]["choice"] == "bill"
    assert set(result["answers"]["topic"]["probabilities"]) == {"parcel", "bill", "no"}


def test_document_of_a_json_file_is_a_state() -> None:
    Path("s.json").write_text('{"subject": "a bill came"}')
    assert json.loads(decide("--json", "--state-file", "s.json").stdout)["answers"]["topic"]["choice"] == "bill"


def test_answers_below_the_threshold_abstain() -> None:
    answers = json.loads(decide("--json", "--state", "hello", "--min-confidence", "0.9").stdout)["answers"]
    assert answers["topic"]["abstention"] == "abstained"
    assert "abstained" in decide("--state", "hello", "--min-confidence", "0.9").stdout


def test_lines_are_answered_in_order_with_their_ids() -> None:
    write_lines(
        "s.jsonl",
        "my bill",
        {"state": "my parcel", "id": "t-2"},
        {"subject": "a bill came"},
        [{"content": "a parcel came"}],
    )
    answer = decide("--states", "s.jsonl", "--json", "--window", "2")
    results = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [(one["id"], one["answers"]["topic"]["choice"]) for one in results] == [
        (1, "bill"),
        ("t-2", "parcel"),
        (3, "bill"),
        (4, "parcel"),
    ]
    assert answer.exit_code == 0


def test_lines_for_people_have_the_answers_in_columns() -> None:
    answer = decide("--states", "-", text='"my bill"\n\n"late parcel"\n')
    first, second = (line.split("\t") for line in answer.stdout.splitlines())
    assert first[0] == "1"
    assert first[1].startswith("topic=bill (0.")
    assert second[0] == "3"
    assert second[2].startswith("late=yes (0.")


def test_ids_reach_no_terminal_with_control_characters() -> None:
    write_lines("s.jsonl", {"state": "my bill", "id": "a\x1b[2J\tb\n"})
    (line,) = decide("--states", "s.jsonl").stdout.splitlines()
    assert line.split("\t")[0] == "a?[2J?b?"


def test_line_may_bring_its_own_questions() -> None:
    questions = {"big": {"type": "score", "instructions": "how big", "criteria": ["small", "big"]}}
    write_lines("s.jsonl", {"state": "so big", "questions": questions})
    answer = call("decide", "--model", "stub", "--states", "s.jsonl", "--json")
    assert json.loads(answer.stdout)["answers"]["big"]["score"] > 0.5


def test_line_that_is_no_state_is_named_and_what_came_before_is_written() -> None:
    Path("s.jsonl").write_text('"my bill"\n"my parcel"\n{"state": 3}\n')
    answer = decide("--states", "s.jsonl", "--json", "--window", "2")
    assert answer.exit_code == 1
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line.get("id") for line in lines] == [1, 2, None]
    assert "s.jsonl:3: a state must be a text, an object or a list, got int" in lines[-1]["error"]["message"]


def test_what_a_failed_window_answered_is_written() -> None:
    write_lines(
        "s.jsonl", {"state": "my bill", "id": "a"}, {"state": "b", "model": "broken"}, {"state": "c", "id": "c"}
    )
    answer = decide("--states", "s.jsonl", "--json")
    assert [json.loads(line).get("id") for line in answer.stdout.splitlines()][:2] == ["a", "c"]
    assert answer.exit_code == 1
    assert "the checkpoint raised RuntimeError: broken fails at forward" in answer.stderr + answer.stdout


def test_memory_holds_one_window() -> None:
    from undercurrent.cli.decide_input import StateLines
    from undercurrent.predict import Router

    write_lines("s.jsonl", *(["x" * 1000] * 300))
    lines = StateLines("s.jsonl", {}, {"model": "stub"})
    results = Router().predict_stream((request for _, request in lines.requests()), window=10)
    next(results)
    assert lines.bytes_read < 11 * 1010
    assert sum(1 for _ in results) == 299


def test_interrupted_run_has_written_what_it_answered(tmp_path: Path) -> None:
    write_lines("s.jsonl", "my bill", "my parcel", "wait here")
    process = start(
        *("decide", "--questions", "q.yaml", "--model", "slow", "--states", "s.jsonl", "--json", "--window", "1"),
        cwd=tmp_path,
    )
    try:
        assert process.stderr is not None
        while "waiting" not in (said := process.stderr.readline()):
            assert said
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=50)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert [json.loads(line)["id"] for line in output.splitlines()] == [1, 2]


def test_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    write_lines("s.jsonl", *(["my bill"] * 2000))
    line = f"{COMMAND} decide --questions q.yaml --model stub --states s.jsonl --json | head -n 1"
    shell = ["bash", "-o", "pipefail", "-c", line]
    answer = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (answer.returncode, answer.stderr) == (141, "")


def test_folder_is_a_model() -> None:
    Path("checkpoint").mkdir()
    answer = call("decide", "--questions", "q.yaml", "--model", "./checkpoint", "--state", "bill", "--json")
    assert json.loads(answer.stdout)["model"] == "from a folder"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "no questions; give --questions FILE"),
        (("--questions", "q.yaml", "--state", "a", "--states", "b"), 2, "exclude each other"),
        (("--questions", "-", "--states", "-"), 2, "cannot both be standard input"),
        (("--questions", "q.yaml", "--state", "a", "--min-confidence", "2"), 2, "0<=x<=1"),
        (("--questions", "q.yaml", "--state", "a", "--model", "stubb"), 1, "did you mean 'stub'"),
        (("--questions", "q.yaml", "--state", "a", "--model", "./nowhere"), 1, "./nowhere: no such folder"),
        (("--questions", "none.yaml", "--state", "a"), 1, "No such file"),
        (("--questions", "q.yaml", "--states", "none.jsonl"), 1, "No such file"),
        (("--questions", "list.yaml", "--state", "a"), 1, "expected questions by id, got list"),
        (("--questions", "twice.yaml", "--state", "a"), 1, "'a' comes twice"),
        (("--questions", "bad.json", "--state", "a"), 1, "bad.json: expected JSON"),
        (("--questions", "wrong.yaml", "--state", "a"), 1, "did you mean 'choice'"),
        (("--model", "stub", "--states", "s.jsonl"), 1, "s.jsonl:1: no questions"),
    ],
)
def test_what_does_not_do_is_said_before_anything_runs(arguments: tuple[str, ...], status: int, words: str) -> None:
    Path("list.yaml").write_text("- a\n")
    Path("twice.yaml").write_text("a: 1\na: 2\n")
    Path("bad.json").write_text("{")
    Path("wrong.yaml").write_text("a: {type: choise, instructions: b, criteria: [c]}")
    write_lines("s.jsonl", "a")
    answer = call("decide", *arguments)
    assert answer.exit_code == status, answer.output
    assert words in answer.stderr
    assert answer.stdout == ""
