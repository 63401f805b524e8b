"""What holds for every test: imports come from the installed package, nothing is left behind, tiers are named."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# `python -m pytest` puts the working directory first on sys.path, where the source tree would shadow an installed
# wheel. An editable install does not need the entry: its finder knows the way.
sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != ROOT]

# A run in the background of a script inherits an ignored SIGINT, and so would each program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TIERS = {
    "system": "make test-system",
    "engines": "make test-engines",
    "cluster": "make test-cluster",
    "slow": "make test-slow",
}


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts what the tier's `-m` leaves out, by tier, so that the closing summary can name it."""
    if not items:
        return
    counts = items[0].config.stash.setdefault(_DESELECTED, Counter())
    for item in items:
        counts.update(tier for tier in TIERS if item.get_closest_marker(tier))


_DESELECTED: pytest.StashKey[Counter[str]] = pytest.StashKey()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which tests belong to another tier, how many, and how to run them."""
    for tier, count in sorted(terminalreporter.config.stash.get(_DESELECTED, Counter()).items()):
        terminalreporter.write_line(f"not in this run: {count} tests of tier `{tier}` ({TIERS[tier]})")


@pytest.fixture(scope="session", autouse=True)
def _no_control_page_left() -> Iterator[None]:
    """Fails the run when a control page of this process outlives its tests."""
    from undercurrent.ipc.page import ControlPage

    yield
    left = [page.instance for page in ControlPage.list_instances() if page.pid == os.getpid()]
    assert not left, f"control pages were left behind: {left}"
