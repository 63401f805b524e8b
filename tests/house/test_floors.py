"""The floors of the house: the import contracts hold, and each of them sees a planted violation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT, copy_tree

PLANTS = {
    "core reaches up into router": (
        "undercurrent/core/planted.py",
        "import undercurrent.router",
        "Imports go down only",
    ),
    "spec reaches across into ipc": ("undercurrent/spec/planted.py", "import undercurrent.ipc", "Imports go down only"),
    "a room nobody placed": ("undercurrent/planted.py", "", "Imports go down only"),
    "ipc takes numpy": ("ipc/planted.py", "import numpy", "ipc moves bytes"),
    "ipc takes msgspec late": ("ipc/planted.py", "def late():\n    import msgspec\n", "ipc moves bytes"),
    "router takes torch": ("undercurrent/router/planted.py", "import torch", "torch and its models"),
    "workers other than frames take torch": ("workers/planted.py", "import torch", "torch and its models"),
    "router prints with rich": ("undercurrent/router/planted.py", "import rich", "The terminal's libraries"),
}


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs import-linter over a source tree."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=tree, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree to plant in."""
    return copy_tree(tmp_path_factory.mktemp("floors") / "undercurrent")


def test_every_contract_holds() -> None:
    answer = lint_imports(ROOT)
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_violation_is_seen(plant: str, tree: Path) -> None:
    file_name, code, contract = PLANTS[plant]
    planted = tree / file_name
    planted.write_text(f'"""Planted."""\n{code}\n')
    try:
        answer = lint_imports(tree)
    finally:
        planted.unlink()
    assert answer.returncode != 0
    broken = [line for line in answer.stdout.splitlines() if "BROKEN" in line or "exhaustive" in line]
    assert any(contract in line for line in broken), answer.stdout
