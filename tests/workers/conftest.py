"""A supervisor whose workers are processes, and the proof that none of them is left."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from worker_rig import deadline

from undercurrent.workers import Supervisor


@pytest.fixture
def processes() -> Iterator[Supervisor]:
    children = set(psutil.Process().children(recursive=True))
    made = Supervisor(worker_pool_size=2)
    yield made
    made.close(wait=True, deadline=deadline())
    left = set(psutil.Process().children(recursive=True)) - children
    assert not left, f"processes were left behind: {left}"
