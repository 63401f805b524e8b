"""The example of the page on execution modes runs unchanged, wherever its code stands."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

import undercurrent.examples
import undercurrent.router

CODE = (Path(__file__).parent.parent / "data" / "seed_example.txt").read_text()
LINES = [
    "aborted at step 2",
    "{'final_mean': 0.5333333333333333, 'count': 3, 'aborted': True}",
    "[('monitor', <ProbeAction.ABORT: 'abort'>)]",
]


def run(*arguments: str, stdin: str = "", folder: Path) -> list[str]:
    """Runs Python in `folder` and returns the lines it printed."""
    done = subprocess.run(
        [sys.executable, *arguments], input=stdin, capture_output=True, text=True, timeout=50, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_example_runs_as_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(CODE)
    assert "__main__" not in CODE

    assert run(str(script), folder=tmp_path) == LINES


def test_example_runs_from_stdin(tmp_path: Path) -> None:
    assert run("-", stdin=CODE, folder=tmp_path) == LINES


def test_example_runs_in_a_notebook_cell(tmp_path: Path) -> None:
    cell = "import sys; exec(compile(sys.stdin.read(), '<cell 1>', 'exec'), globals())"

    assert run("-c", cell, stdin=CODE, folder=tmp_path) == LINES


def test_example_runs_with_a_probe_class_of_its_own(tmp_path: Path) -> None:
    own = CODE.replace(
        "def make_point",
        "class OwnProbe(TrajectoryScoreProbe):\n    pass\n\n\ndef make_point",
    ).replace("ProbeFactory(TrajectoryScoreProbe", "ProbeFactory(OwnProbe")
    script = tmp_path / "example.py"
    script.write_text(own)

    assert run(str(script), folder=tmp_path) == LINES
    assert run("-", stdin=own, folder=tmp_path) == LINES


def test_example_runs_with_workers_in_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_threads = functools.partial(undercurrent.router.Router, worker_mode="thread")
    monkeypatch.setattr(undercurrent.router, "Router", in_threads)

    exec(compile(CODE, "<cell 1>", "exec"), {"__name__": "__main__"})

    assert capsys.readouterr().out.splitlines() == LINES


def test_example_that_is_installed_is_the_one_of_the_page() -> None:
    installed = (Path(undercurrent.examples.__file__).parent / "seed.py").read_text()

    assert installed.endswith('"""\n\n' + CODE)


def test_installed_example_runs_as_a_module(tmp_path: Path) -> None:
    assert run("-m", "undercurrent.examples.seed", folder=tmp_path) == LINES
