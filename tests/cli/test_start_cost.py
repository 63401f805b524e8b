"""What the command line loads before it works; counted, since time depends on the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from undercurrent.cli.commands import VERBS

HEAVY = {"torch", "numpy", "rich", "yaml", "transformers", "msgspec", "orjson", "psutil", "asyncio", "multiprocessing"}
# Bare click loads 105 modules beyond those of an empty program; ours may add a few.
MODULES_MAX = 150
PROGRAM = """
import sys
before = set(sys.modules)
from undercurrent.cli import main
status = main(sys.argv[1:])
print(*sorted(set(sys.modules) - before), file=sys.stderr)
sys.exit(status)
"""


def loaded_by(*arguments: str, cwd: Path) -> set[str]:
    """Runs a command line in a fresh interpreter and returns the modules it loaded."""
    answer = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=50
    )
    assert answer.returncode == 0, answer.stderr
    return set(answer.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("version",), ("version", "--json")], ids=" ".join)
def test_what_is_asked_first_loads_nothing_heavy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    loaded = loaded_by(*arguments, cwd=tmp_path)
    heavy = HEAVY - {"orjson"} if "--json" in arguments else HEAVY
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(heavy)
    assert len(loaded) < MODULES_MAX, len(loaded)


def test_help_of_every_verb_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = loaded_by("help", "--markdown", cwd=tmp_path)
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(HEAVY)


def test_help_imports_no_verb(tmp_path: Path) -> None:
    verbs = {f"undercurrent.cli.{entry.module}" for entry in VERBS.values()}
    assert verbs.isdisjoint(loaded_by("--help", cwd=tmp_path))
