"""`undercurrent version`, `completion` and `bench`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from command_lines import COMMAND, call

import undercurrent
from undercurrent.benchmarks import __main__ as benchmarks
from undercurrent.cli.bench import QUESTIONS
from undercurrent.cli.completion import INSTALL_LINES

SHELLS = [
    "bash",
    *(
        pytest.param(shell, marks=pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed"))
        for shell in ("zsh", "fish")
    ),
]


def test_version_as_json_tells_what_a_bug_report_needs() -> None:
    facts = json.loads(call("version", "--json").stdout)
    assert facts["undercurrent"] == undercurrent.__version__
    assert facts["packages"]["numpy"] == version("numpy")
    assert facts["packages"]["vllm"] is None
    assert facts["build"]["extension"].startswith("_ring.")
    assert {"version", "implementation", "executable"} == set(facts["python"])


def test_version_for_people_begins_as_the_option_does() -> None:
    assert call("version").stdout.startswith(call("--version").stdout)


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_accepts_its_completion_script(shell: str) -> None:
    script = call("completion", shell).stdout
    answer = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, timeout=50)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("shell", INSTALL_LINES)
def test_completion_script_names_the_command_and_how_to_install_it(shell: str) -> None:
    report = json.loads(call("completion", shell, "--json").stdout)
    assert "_UNDERCURRENT_COMPLETE" in report["script"]
    assert report["install"].startswith(f"undercurrent completion {shell} >")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("undercurrent val", {"validate"}),
        ("undercurrent help insp", {"inspect-model"}),
        ("undercurrent doctor --re", {"--remove-stale"}),
        ("undercurrent bench thr", {"throughput"}),
        ("undercurrent completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_shell_is_offered_what_fits(words: str, offered: set[str], tmp_path: Path) -> None:
    count = len(words.split(" ")) - 1
    environment = {
        **os.environ,
        "_UNDERCURRENT_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(count),
    }
    answer = subprocess.run([str(COMMAND)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50)
    assert answer.returncode == 0, answer.stderr
    assert {line.partition(",")[2] for line in answer.stdout.splitlines()} == offered


def test_benchmark_as_json_has_rows_and_the_machine(tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    answer = call("bench", "recovery", "--quick", "--json", "--output", str(output))
    assert answer.exit_code == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["machine"]["cpus"] >= 1
    assert report["failures"] == {}
    assert all(row["ours"] > 0 for row in report["rows"])
    assert len(json.loads(output.read_text())["rows"]) == len(report["rows"])


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [(("--plot", "plot.png"), 2, "add --peer"), (("--markdown", "no/table.md"), 1, "'no': no such folder")],
)
def test_what_a_benchmark_could_not_write_is_refused_before_it_runs(
    options: tuple[str, ...], status: int, said: str
) -> None:
    answer = call("bench", *options)
    assert answer.exit_code == status
    assert said in answer.stderr


def test_questions_are_those_of_the_benchmarks() -> None:
    assert sorted(benchmarks.QUESTIONS) == list(QUESTIONS)
