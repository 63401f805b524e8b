"""Marks the processes of a test, so that it can say that none of them is left."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "place_program.py"
_MARK = "UNDERCURRENT_TEST_PLACE"


@contextmanager
def no_process_left(**variables: str) -> Iterator[dict[str, str]]:
    """Yields an environment; at the end no living process has it, waited for by a deadline."""
    mark = uuid.uuid4().hex
    yield {**os.environ, **variables, _MARK: mark}
    deadline = time.monotonic() + 30
    while left := marked_processes(mark):
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.01)


def marked_processes(mark: str) -> list[str]:
    """Returns pid and name of the living processes that were started with this mark."""
    needle = f"{_MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if needle in (folder / "environ").read_bytes():
                found.append(f"{folder.name} {(folder / 'comm').read_text().strip()}")
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return found


def check_answer(text: str) -> dict[str, Any]:
    """Checks the line that the program printed: ten records, seen by another process."""
    answer: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    assert answer["verdict"]["total"] == 60.0
    assert answer["verdict"]["pid"] != answer["pid"]
    assert answer["coverage"]["seen"] == answer["coverage"]["routed"] == 10
    assert answer["coverage"]["complete"] is True
    return answer
