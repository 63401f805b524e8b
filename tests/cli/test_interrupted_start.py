"""Ctrl-C while the command is still importing itself."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import COMMAND

# The command gets the terminal as its own, so that what is typed there becomes a signal, and tells what it imports.
LAUNCHER = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.environ["PYTHONPROFILEIMPORTTIME"] = "1"
os.execv(sys.argv[1], sys.argv[1:])
"""
CTRL_C = b"\x03"
# Lines of imports in the order in which they are done: the first of `main`, those of the table, those of the verb.
MOMENTS = (
    b" click.",
    b" click\r",
    b" undercurrent.errors\r",
    b" undercurrent.cli.failures\r",
    b" undercurrent.cli.commands\r",
    b" undercurrent.cli.specs\r",
    b" undercurrent.spec.words\r",
)
BEFORE_MAIN = """
import importlib, sys
before = set(sys.modules)
import undercurrent.cli
print(*sorted(set(sys.modules) - before))
"""


def interrupted_at(moment: bytes, cwd: Path) -> tuple[int, list[str]]:
    """Types Ctrl-C when `moment` is shown; returns the exit status and what is shown besides imports."""
    ours, terminal = pty.openpty()
    # It waits for a spec from the terminal: it cannot be over before the interrupt comes.
    command = [sys.executable, "-c", LAUNCHER, str(COMMAND), "validate", "-"]
    with subprocess.Popen(
        command, cwd=cwd, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as process:
        os.close(terminal)
        shown, typed_count = b"", 0
        try:
            while chunk := read_or_nothing(ours):
                shown += chunk
                # Python itself drops what is raised while it frees an import lock, and says so: one types it again.
                if moment in shown and typed_count <= shown.count(b"Exception ignored in"):
                    os.write(ours, CTRL_C)
                    typed_count += 1
        finally:
            os.close(ours)  # hangs up on a command that did not end
    lines = shown.replace(b"^C", b"").decode().splitlines()
    return process.returncode, [line for line in lines if line and not line.startswith("import time:")]


def read_or_nothing(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: the last writer is gone
        return b""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.decode().strip())
def test_ctrl_c_while_the_command_starts_ends_it_with_one_line(moment: bytes, tmp_path: Path) -> None:
    status, lines = interrupted_at(moment, tmp_path)
    assert status == 130
    assert lines[-1] == "interrupted"
    assert not any("Traceback" in line for line in lines)


def test_almost_nothing_is_imported_where_ctrl_c_cannot_be_caught(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", BEFORE_MAIN]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=True)
    assert set(answer.stdout.split()) <= {"__future__", "undercurrent", "undercurrent.cli"}
