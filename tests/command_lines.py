"""Runs the command line in this process or as the installed command; what the tests of `cli` share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from undercurrent.cli.commands import undercurrent

COMMAND = Path(sys.executable).with_name("undercurrent")

SPEC = """\
version: "1"
extraction_points:
  - name: guard
    layers: [2]
    tensor_type: residual_stream
    position: "prompt[-1]"
    probe_type: loudness
    probe_kind: single_shot
"""
"""A sound spec of one inline point whose probe nobody has registered."""


def call(*arguments: str, text: str | bytes | None = None) -> Result:
    """Runs a command line in this process, with `text` as its standard input."""
    return CliRunner().invoke(undercurrent, arguments, input=text)


def start(*arguments: str, cwd: Path, **more: Any) -> subprocess.Popen[str]:
    """Starts the installed command with pipes; the caller waits for it."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    return subprocess.Popen([str(COMMAND), *arguments], cwd=cwd, **options)
