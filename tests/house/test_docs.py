"""Examples in the guides and in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT, code_blocks, module_name, product_files

GUIDES = [page for page in sorted((ROOT / "docs").glob("*.md")) if code_blocks(page.read_text(), "python")]
EXAMPLES = [module_name(path) for path in product_files() if ">>> " in path.read_text()]


@pytest.mark.timeout(150)
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_guide_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "guide.py"
    script.write_text("\n".join(code_blocks(page.read_text(), "python")))
    command = [sys.executable, "-P", str(script)]
    answer = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring_examples_run(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.attempted
    assert not outcome.failed
