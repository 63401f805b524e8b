"""The top-level package: every public name opens, and nothing is loaded before it is asked for."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import undercurrent


@pytest.mark.parametrize("name", undercurrent.__all__)
def test_public_name_opens(name: str) -> None:
    assert getattr(undercurrent, name) is not None
    assert name in dir(undercurrent)


def test_import_loads_no_other_room_and_no_library() -> None:
    source = (
        "import sys; import undercurrent; "
        "print(*[name for name in sys.modules if name.startswith('undercurrent.') or name in ('numpy', 'torch')])"
    )
    answer = subprocess.run([sys.executable, "-P", "-c", source], capture_output=True, text=True, check=True)

    assert answer.stdout.split() == []


@pytest.mark.parametrize("room", ["undercurrent.errors", "undercurrent.spec", "undercurrent.core"])
def test_lower_rooms_load_neither_numpy_nor_torch_nor_yaml(room: str) -> None:
    source = (
        f"import sys; import {room}; print(*[n for n in ('numpy', 'torch', 'yaml', 'asyncio') if n in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-P", "-c", source], capture_output=True, text=True, check=True)

    assert answer.stdout.split() == []


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Rooter'"):
        _ = undercurrent.Rooter


def test_version_is_that_of_the_installed_package() -> None:
    assert undercurrent.__version__.startswith("0.2.")


def test_type_checkers_read_the_names_that_open() -> None:
    stub = ast.parse(Path(undercurrent.__file__).with_suffix(".pyi").read_text())
    imported = {
        alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    listed = next(ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))

    assert listed == undercurrent.__all__
    assert set(imported) | {"__version__"} == set(undercurrent.__all__)
    for name, room in imported.items():
        assert getattr(importlib.import_module(str(room)), name) is getattr(undercurrent, name)


def test_names_are_those_of_their_rooms() -> None:
    from undercurrent.core import probe
    from undercurrent.spec import load_spec

    assert undercurrent.probe is probe
    assert undercurrent.load_spec is load_spec
