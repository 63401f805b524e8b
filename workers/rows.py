"""Rows of one layer and step, published together: one call into each lane instead of one per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undercurrent.errors import UnsupportedPayloadError
from undercurrent.ipc.layout import FULL, OK
from undercurrent.workers.frames import OPAQUE_KIND_MIN, describe

if TYPE_CHECKING:
    from undercurrent.workers.lane import Lane

__all__ = ["LaneRow", "publish_rows"]

LaneRow = tuple[Any, int, int, int]
"""(ring, index of the row, token position, whether it is generated), as the lane takes it."""


def publish_rows(lane: Lane, rows: Any, layer: int, timestamp: float, lane_rows: list[LaneRow]) -> list[int]:
    """Publishes `rows[row]` for each entry and wakes the lane's worker once.

    `rows` is an array or tensor of two dimensions. Returns the indices in `lane_rows` of what the lane does not take at
    once: the first row of a binding or one larger than before, and everything where `rows` is not contiguous or of a
    type a ring cannot read. Those go the way of single records, `AsyncBinding.accept`.
    """
    try:
        kind, source = describe(rows)
    except UnsupportedPayloadError:
        kind, source = OPAQUE_KIND_MIN, None
    if kind >= OPAQUE_KIND_MIN:
        return list(range(len(lane_rows)))
    answers = lane.memory.publish_rows(source, kind, layer, timestamp, lane_rows)
    if answers.count(OK) == len(answers):
        return []
    return [index for index, answer in enumerate(answers) if answer not in (OK, FULL)]
