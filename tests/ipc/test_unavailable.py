"""Where Linux or the extension is missing, importing works and using says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from undercurrent.errors import RingUnavailableError
from undercurrent.ipc import MemoryBudget, ProducerLane

WITHOUT_EXTENSION = """
import sys
sys.modules["undercurrent.ipc._ring"] = None
import undercurrent.ipc as ipc
assert ipc.layout.OK == 0
for make in (lambda: ipc.ProducerLane(ipc.MemoryBudget(1 << 20)), lambda: ipc.ConsumerLane(0, 1)):
    try:
        make()
    except ipc.ring.RingUnavailableError as error:
        assert isinstance(error, OSError)
        print(error)
"""


def test_import_works_without_the_extension_and_use_says_so() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTENSION], check=True, capture_output=True, text=True, timeout=60
    )
    lines = finished.stdout.splitlines()
    assert len(lines) == 2
    assert all("rings need Linux (memfd_create, futex)" in line for line in lines)


def test_missing_memfd_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(RingUnavailableError, match="memfd_create"):
        ProducerLane(MemoryBudget(1 << 20))
