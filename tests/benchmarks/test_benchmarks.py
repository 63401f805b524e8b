"""Every scenario runs in a small dose and gives what its rows read; the report shows what was missed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from undercurrent.benchmarks.__main__ import main
from undercurrent.benchmarks.harness import SCENARIOS, BenchmarkError, Row, Runner, machine_facts, write_json
from undercurrent.benchmarks.report import markdown_table, print_table

DOSES = {
    "route_inline": {"calls": 200},
    "route_async": {"calls": 500},
    "route_rows": {"requests": 3, "points": 2, "repeats": 2},
    "gil": {"pairs": 1, "steps": 10},
    "throughput": {"records": 500},
    "latency": {"records": 50},
    "bounded": {"records": 50, "busy": 1},
    "burst": {"records": 2000},
    "registration": {"rounds": 3},
    "round_trip": {"rounds": 3},
    "backlog": {"waiting": 4},
    "live": {"bindings": 5, "idle_s": 0.1},
    "cold": {},
    "recovery": {"kills": 1},
    "memory": {},
    "torch_worker": {},
    "file_sink": {"lines": 100},
}


@pytest.fixture
def runner() -> Runner:
    return Runner(None, is_quick=True)


@pytest.mark.parametrize("scenario", DOSES)
def test_a_scenario_measures_something(runner: Runner, scenario: str) -> None:
    measured = runner.ours(scenario, **DOSES[scenario])
    assert measured
    assert all(number is not None for number in measured.values())


def test_the_burst_is_accounted_for_in_the_result(runner: Runner) -> None:
    assert runner.ours("burst", records=5000)["is_accounted"]


def test_the_ring_is_measured_between_two_processes(runner: Runner) -> None:
    measured = runner.script(SCENARIOS.with_name("uc_bench_ring.py"), "1000")
    assert measured["numpy"]["records_per_s"] > 0
    assert measured["numpy"]["latency_us"]["parked"] > 0


def test_a_failing_scenario_says_why(runner: Runner) -> None:
    with pytest.raises(BenchmarkError, match="KeyError: 'no such scenario'"):
        runner.ours("no such scenario")


def test_without_a_peer_its_column_is_empty(runner: Runner) -> None:
    assert runner.peer("burst") is None


def test_the_report_marks_what_is_missed(tmp_path: Path) -> None:
    rows = [
        Row("fast", "us", 1.0, "2", True, peer=4.0),
        Row("slow", "us", 3.0, "2", False, floor=1.5, floor_name="copy"),
        Row("late", "us", 1.0, peer=2.0, peer_name="laya 0.4.15"),
    ]
    console = Console(width=200, record=True, file=(tmp_path / "out").open("w"))
    print_table(rows, console)
    text = console.export_text()
    assert "missed" in text
    assert "1.5 us (copy)" in text
    assert "2 us (laya 0.4.15)" in text
    assert "| fast | 1 us | 2 | ok | 4 us (0.1.0) |  |" in markdown_table(rows)


def test_the_json_holds_the_machine_s_facts(tmp_path: Path) -> None:
    write_json([Row("a", "us", 1.0)], tmp_path / "rows.json")
    document = json.loads((tmp_path / "rows.json").read_text())
    assert document["machine"]["cpus"] == machine_facts()["cpus"]
    assert document["rows"][0]["what"] == "a"


def test_an_unknown_question_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, "-P", "-m", "undercurrent.benchmarks", "rout"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "'[QUESTION]...': 'rout' is not one of" in done.stderr
    assert "'route'" in done.stderr


def test_the_page_names_questions_once_and_breaks_no_name() -> None:
    page = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    assert "[OPTIONS] [QUESTION]... Measure" in page
    assert "recovery, runtime, predict." in page


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--plot", "plot.png"), 2, "--plot draws ours against the peer; add --peer"),
        (("--json", "no/rows.json"), 1, "'no': no such folder to write 'rows.json' in"),
        (("--markdown", "no/table.md"), 1, "'no': no such folder to write 'table.md' in"),
        (("--peer", "--plot", "no/plot.png"), 1, "'no': no such folder to write 'plot.png' in"),
        (("--json", "."), 2, "'.' is a directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_could_not_be_written_is_refused_before_anything_is_measured(
    options: tuple[str, ...], status: int, said: str
) -> None:
    answer = CliRunner().invoke(main, options)
    assert answer.exit_code == status
    assert said in answer.stderr
    assert answer.stdout == ""
