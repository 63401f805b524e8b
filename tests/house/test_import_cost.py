"""What an import may not load, each asked in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import package_names

QUESTION = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*sorted({name.split(".")[0] for name in sys.modules} & {"torch", "numpy", "transformers"}))
"""


def loaded_by(module: str, cwd: Path) -> set[str]:
    """Returns which of the heavy libraries the import of a module loads."""
    answer = subprocess.run([sys.executable, "-P", "-c", QUESTION, module], cwd=cwd, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return set(answer.stdout.split())


def test_importing_undercurrent_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    assert loaded_by("undercurrent", tmp_path) == set()


def test_importing_the_command_line_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    assert loaded_by("undercurrent.cli", tmp_path) == set()


def test_importing_ipc_loads_no_numpy(tmp_path: Path) -> None:
    assert loaded_by("undercurrent.ipc", tmp_path) == set()


@pytest.mark.parametrize("package", sorted(package_names()))
def test_no_package_import_costs_torch(package: str, tmp_path: Path) -> None:
    assert loaded_by(package, tmp_path).isdisjoint({"torch", "transformers"})


def test_version_flag_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-X", "importtime", "-m", "undercurrent", "--version"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0
    assert "0.2.0" in answer.stdout
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in answer.stderr.splitlines()}
    assert loaded.isdisjoint({"torch", "numpy"})
