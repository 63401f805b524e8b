"""The record whose wait is measured is another one in each batch, and stands for all of it."""

from __future__ import annotations

import time
from typing import Any

from ipc_rig import rig
from router_points import Collect, context, make_point

from undercurrent.core import ProbeFactory
from undercurrent.workers import serving
from undercurrent.workers.meters import PointMeter


class Heard(PointMeter):
    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[int, int]] = []

    def note_wait(self, duration_ns: int, count: int) -> None:
        self.waits.append((duration_ns, count))


class Ages:
    """Four records, by the time they have waited."""

    def age_ns(self, index: int) -> int:
        return (900, 800, 700, 600)[index]


def make_binding(ring: Any, meter: PointMeter) -> serving.ServedBinding:
    parts: dict[str, Any] = {"taker": object(), "note_call": id, "restarts": 0, "reasons": ()}
    return serving.ServedBinding(
        binding_id=1, request_id="r", point=make_point(mode="async"), ring=ring, meter=meter, **parts
    )


def test_each_batch_has_another_record_measured() -> None:
    with rig() as both:
        binding = make_binding(both.reader, PointMeter())
        batch: Any = Ages()
        assert sorted(binding._sample_wait(batch, 4) for _ in range(4)) == [600, 700, 800, 900]


def test_what_one_record_waited_stands_for_all_of_its_batch() -> None:
    meter = Heard()
    with rig() as both:
        binding = make_binding(both.reader, meter)
        binding.start(ProbeFactory(Collect, {}), context("r"))
        before_ns = time.monotonic_ns()
        for _ in range(3):
            both.publish(b"abc")
        binding.serve(time.monotonic_ns())
        ((waited_ns, count),) = meter.waits
        assert count == binding.activations == 3
        assert 0 <= waited_ns <= time.monotonic_ns() - before_ns
