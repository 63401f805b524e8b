"""The tables of `undercurrent/README.md` name tests that exist, and leave nothing out."""

from __future__ import annotations

import re

import pytest
from source_tree import ROOT

README = (ROOT / "undercurrent" / "README.md").read_text()
DEFINED = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}
WEAK_POINTS = re.findall(r"^\| (\d+) \| (.+?) \| (.*?) \|$", README, re.MULTILINE)
FORBIDDEN = re.findall(
    r"^\| (.+?) \| (.+?) \| (.+?) \|$",
    README.partition("### What a process border forbids")[2].partition("###")[0],
    re.MULTILINE,
)[1:]


def test_each_of_the_26_weak_points_has_a_row() -> None:
    assert [int(number) for number, _, _ in WEAK_POINTS] == list(range(1, 27))


@pytest.mark.parametrize(("number", "text", "shown"), WEAK_POINTS)
def test_weak_point_is_shown_right_by_a_test_or_said_to_be_open(number: str, text: str, shown: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", shown))
    assert named <= DEFINED, named - DEFINED
    assert named or "not yet" in shown


@pytest.mark.parametrize(("allowed", "happens", "shown"), FORBIDDEN)
def test_what_a_border_forbids_is_shown_by_a_test(allowed: str, happens: str, shown: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", shown))
    assert named
    assert named <= DEFINED, named - DEFINED


def test_border_table_is_read() -> None:
    assert len(FORBIDDEN) >= 8
