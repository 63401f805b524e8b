"""The ring's orders and fences, searched exhaustively under a weak memory model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")


def run(*arguments: str) -> str:
    command = [sys.executable, str(RUN), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.timeout(540)
def test_no_schedule_of_the_designed_orders_breaks_the_ring() -> None:
    lines = run("weak", "--dose", "quick").splitlines()
    assert len(lines) == 8
    assert all(line.startswith("ok ") for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_no_schedule_of_the_designed_fences_strands_a_waiting_producer() -> None:
    assert "ok      block depth=1 records=2 membarrier" in run("weak")


@pytest.mark.timeout(120)
def test_each_order_and_fence_that_is_taken_away_is_found_missing() -> None:
    lines = run("weak-mutants").splitlines()
    assert len(lines) == 18
    assert all(line.startswith("caught ") for line in lines)
