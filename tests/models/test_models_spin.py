"""The exchange ring's protocol, searched exhaustively with kills of both sides at every statement."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed (needs Debian package spin)"),
]


def run(*arguments: str) -> list[str]:
    command = [sys.executable, str(RUN), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}"
    return done.stdout.splitlines()


def test_no_kill_at_any_statement_breaks_the_protocol() -> None:
    lines = run("spin")
    assert len(lines) == 30
    assert all(line.startswith("ok ") for line in lines)


def test_each_planted_bug_of_the_protocol_is_found() -> None:
    lines = run("mutants")
    assert len(lines) == 22
    assert all(line.startswith("caught ") for line in lines)
