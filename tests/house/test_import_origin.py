"""Tests import what is installed, also when pytest is started as a module in the checkout."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from source_tree import ROOT

import undercurrent


def test_tests_import_the_installed_package() -> None:
    installed = importlib.metadata.distribution("undercurrent")
    files = [file for file in installed.files or [] if str(file) == "undercurrent/__init__.py"]
    origin = Path(str(undercurrent.__file__)).resolve()
    if files:
        assert origin == Path(str(installed.locate_file(files[0]))).resolve()
    else:  # an editable install lists its finder, not the modules
        assert origin == ROOT / "undercurrent" / "__init__.py"
