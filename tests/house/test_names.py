"""Size, names and form: what the style page asks of every file."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from source_tree import ROOMS, ROOT, module_name, package_names, product_files, walk

PYTHON_LINES_MAX = 400
C_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
VAGUE_NAMES = re.compile(r"(^|_)(manager|utils?|helpers?|misc|common|info|stuff)($|_)")
README_HEADINGS = ["Responsibility", "Public surface", "Data flow", "Invariants", "Known issues", "Tests"]

PYTHON_FILES = [*product_files(), *walk(ROOT / "tests", (".py",)), ROOT / "setup.py"]
C_FILES = [path for room in [*ROOMS, "tests"] for path in walk(ROOT / room, (".c", ".h"))]


def relative(path: Path) -> str:
    """Returns the path as the checkout shows it."""
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Returns every function of a file."""
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_python_files_fit_on_few_screens() -> None:
    long = {
        relative(path): count
        for path in PYTHON_FILES
        if (count := len(path.read_text().splitlines())) > PYTHON_LINES_MAX
    }
    assert not long


def test_c_files_fit_on_few_screens() -> None:
    long = {relative(path): count for path in C_FILES if (count := len(path.read_text().splitlines())) > C_LINES_MAX}
    assert not long


def test_functions_fit_on_one_screen() -> None:
    long = {
        f"{relative(path)}:{function.name}": length
        for path in PYTHON_FILES
        for function in functions(path)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert not long


def test_every_module_says_what_it_is() -> None:
    assert not [relative(path) for path in PYTHON_FILES if not ast.get_docstring(ast.parse(path.read_text()))]


def test_modules_have_names_that_say_something() -> None:
    assert not [relative(path) for path in product_files() if VAGUE_NAMES.search(path.stem)]


def test_modules_do_not_shadow_the_standard_library() -> None:
    shadows = {module_name(path) for path in product_files() if path.stem in sys.stdlib_module_names}
    assert not shadows


def test_no_file_carries_a_note_to_its_author() -> None:
    note = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
    assert not [relative(path) for path in [*PYTHON_FILES, *C_FILES] if note.search(path.read_text())]


def test_test_files_have_names_of_their_own_and_no_packages() -> None:
    tests = [path for path in walk(ROOT / "tests", (".py",)) if path.name.startswith("test_")]
    names = [path.name for path in tests]
    assert len(names) == len(set(names))
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_every_package_lists_its_public_names() -> None:
    silent = []
    for path in product_files():
        if path.name == "__init__.py":
            tree = ast.parse(path.read_text())
            imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            if imports and "__all__" not in path.read_text():
                silent.append(relative(path))
    assert not silent


def test_every_room_has_a_readme_in_the_one_form() -> None:
    folders = {ROOT / room for room in ROOMS} | {
        ROOT / "undercurrent" / name.split(".")[1]
        for name in package_names()
        if name.count(".") == 1
        and (ROOT / "undercurrent" / name.split(".")[1]).is_dir()
        and not (ROOT / "undercurrent" / name.split(".")[1]).is_symlink()
    }
    for folder in sorted(folders):
        readme = folder / "README.md"
        assert readme.is_file(), f"{relative(folder)} has no README.md"
        headings = re.findall(r"^#+ (.+)$", readme.read_text(), re.MULTILINE)
        missing = [wanted for wanted in README_HEADINGS if not any(heading.startswith(wanted) for heading in headings)]
        assert not missing, f"{relative(readme)} lacks {missing}"


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "DECISIONS.md", "CHANGELOG.md", "LICENSE", "README.md"])
def test_the_house_has_its_pages(name: str) -> None:
    assert (ROOT / name).stat().st_size > 500
