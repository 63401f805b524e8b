"""What README.md says is true: the example prints what it shows, commands run, links and names lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT, code_blocks

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "DECISIONS.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[str]:
    """Returns the commands of README's shell blocks, without their comments."""
    lines = [line.partition("#")[0].strip() for block in code_blocks(README, "sh") for line in block.splitlines()]
    return [line for line in lines if line]


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command without input."""
    return subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50)


def test_readme_has_the_two_commands() -> None:
    assert commands()[:2] == ["make demo", "make test"]


def test_example_prints_what_readme_shows(tmp_path: Path) -> None:
    (program,) = code_blocks(README, "python")
    (shown,) = code_blocks(README, "text")
    assert len(program.splitlines()) <= 24
    script = tmp_path / "example.py"
    script.write_text(program)
    answer = run(sys.executable, "-P", str(script), cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, shown), answer.stderr


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("undercurrent")])
def test_installed_commands_run(command: str, tmp_path: Path) -> None:
    program, *arguments = command.split()
    answer = run(str(Path(sys.executable).with_name(program)), *arguments, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout


def test_make_verbs_named_in_the_pages_exist() -> None:
    known = set(re.findall(r"^  make ([a-z-]+)", run("make", "help", cwd=ROOT).stdout, re.MULTILINE))
    named = {verb for page in PAGES for verb in re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)`?", "\n".join(code(page)))}
    assert named <= known, named - known


def code(page: Path) -> list[str]:
    """Returns what a page sets in code: fenced shell blocks and spans."""
    text = page.read_text()
    return code_blocks(text, "sh") + re.findall(r"`([^`\n]+)`", text)


def test_make_alone_prints_its_verbs() -> None:
    assert run("make", cwd=ROOT).stdout == run("make", "help", cwd=ROOT).stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_the_pages_exist(page: Path) -> None:
    named = {
        name
        for name in re.findall(r"`([a-z_]+(?:/[\w.-]+)+\.(?:py|c|h|md|pyi|pml))(?:::\w+)?`", page.read_text())
        if not name.startswith("site-packages")
    }
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_every_row_of_the_failure_tables_names_its_test() -> None:
    tables = (ROOT / "ARCHITECTURE.md").read_text().partition("## What happens when")[2]
    rows = [line for line in tables.splitlines() if line.startswith("| ") and not line.startswith("| what fails")]
    assert len(rows) > 80
    assert not [row for row in rows if not re.search(r"`test_\w+`[^|]*\|$", row)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_named_in_the_pages_exist(page: Path) -> None:
    named = set(re.findall(r"\b(test_[a-z0-9_]+)\b(?!\.py)", page.read_text()))
    defined = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*") if path.suffix in {".py", ".c"})
    unknown = [name for name in sorted(named) if not re.search(rf"\b{name}\b", defined)]
    assert not unknown
