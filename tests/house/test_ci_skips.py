"""CI names and counts its skips, and fails on one that nobody expected on that machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT

PASSED = '<testcase name="passes"/>'
FAILED = '<testcase name="fails"><failure message="no"/></testcase>'
SKIPPED = '<testcase name="skips"><skipped message="spin is not installed"/></testcase>'
SKIPPED_MODULE = SKIPPED.replace(
    'message="spin is not installed"/>', 'message="collection skipped">(1, "Skipped: spin is not installed")</skipped>'
)


def check(cases: str, rules: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the check over one report and one file of rules."""
    (folder / "rules").write_text(rules)
    (folder / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    command = [sys.executable, str(ROOT / ".ci" / "skips.py"), str(folder / "rules"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("case", [SKIPPED, SKIPPED_MODULE])
def test_expected_skip_is_named_and_counted(case: str, tmp_path: Path) -> None:
    answer = check(PASSED + case, "# why\nspin is not installed :: true\n", tmp_path)
    assert answer.returncode == 0
    assert "spin is not installed" in answer.stdout
    assert answer.stdout.endswith("1 passed, 0 failed, 1 skipped\n")


@pytest.mark.parametrize("rules", ["", "clang is not installed :: true", "spin is not installed :: false"])
@pytest.mark.parametrize("case", [SKIPPED, SKIPPED_MODULE])
def test_unexpected_skip_fails(case: str, rules: str, tmp_path: Path) -> None:
    answer = check(PASSED + case, rules, tmp_path)
    assert answer.returncode == 1
    assert "UNEXPECTED" in answer.stdout


def test_run_without_a_passed_test_fails(tmp_path: Path) -> None:
    assert check("", "", tmp_path).returncode == 1


def test_failure_fails(tmp_path: Path) -> None:
    assert check(PASSED + FAILED, "", tmp_path).returncode == 1


def test_rule_without_a_condition_is_refused(tmp_path: Path) -> None:
    answer = check(PASSED, "spin is not installed", tmp_path)
    assert answer.returncode == 1
    assert "REGEX :: CONDITION" in answer.stderr


def test_shipped_rules_are_well_formed(tmp_path: Path) -> None:
    answer = check(PASSED, (ROOT / ".ci" / "expected-skips").read_text(), tmp_path)
    assert answer.returncode == 0
