"""What the tests of sinks share: a signal to write, and the records a file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from undercurrent.core import ProbeAction, ProbeSignal

SIGNAL = ProbeSignal(ProbeAction.FLAG, {"score": 0.5, "probe": "mean"}, 0.75, 12.5)


def records_of(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    data = path.read_bytes()
    assert data.endswith(b"\n") or not data
    return [json.loads(line, parse_constant=refuse) for line in data.splitlines()]
