"""`kill -9` at random points: no row that was reported is missing, and a resumed run ends as an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("kill_program.py")


def run(kills: int, folder: Path, timeout_s: int, *plant: str) -> subprocess.CompletedProcess[str]:
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")  # shown when the test fails; kill_program.py replays it
    command = [sys.executable, "-P", str(PROGRAM), str(kills), str(seed), str(folder), *plant]
    # A writer that is killed while it copies leaves the copy in the temporary folder.
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)


def kill_writers(kills: int, folder: Path, timeout_s: int) -> None:
    done = run(kills, folder, timeout_s)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] >= kills


def test_twenty_killed_writers_lose_no_reported_row(tmp_path: Path) -> None:
    kill_writers(20, tmp_path, 55)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_hundred_killed_writers_lose_no_reported_row(tmp_path: Path) -> None:
    kill_writers(300, tmp_path, 590)


@pytest.mark.slow
def test_rows_that_are_told_of_too_early_are_found(tmp_path: Path) -> None:
    done = run(300, tmp_path, 55, "report_early")
    assert done.returncode != 0
    assert "replay:" in done.stderr
