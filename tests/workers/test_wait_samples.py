"""The record whose wait is measured is another one in each batch, and stands for all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from router_points import make_point

from undercurrent.workers import serving
from undercurrent.workers.frames import HEADER_DTYPE
from undercurrent.workers.meters import PointMeter


class Heard(PointMeter):
    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[int, int]] = []

    def note_wait(self, duration_ns: int, count: int) -> None:
        self.waits.append((duration_ns, count))


class SilentRing:
    def set_user(self, index: int, value: int) -> None:
        """Counts for nobody."""


def test_each_batch_has_another_record_measured_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.time, "monotonic_ns", lambda: 1_000)
    meter, ring, taker = Heard(), SilentRing(), object()
    parts: dict[str, Any] = {"ring": ring, "taker": taker, "note_call": id, "restarts": 0, "reasons": ()}
    binding = serving.ServedBinding(binding_id=1, request_id="r", point=make_point(mode="async"), meter=meter, **parts)
    headers = np.zeros(4, dtype=HEADER_DTYPE)
    headers["monotonic_ns"] = [100, 200, 300, 400]
    for _ in range(4):
        binding._note_wait(headers.tobytes(), 4)

    assert sorted(wait for wait, _ in meter.waits) == [600, 700, 800, 900]
    assert {count for _, count in meter.waits} == {4}
