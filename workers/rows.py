"""Rows of one layer and step, published together: one call into each lane instead of one per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from undercurrent.errors import UnsupportedPayloadError
from undercurrent.ipc.layout import FLAG_IS_GENERATED, FULL, OK
from undercurrent.spec import OverflowPolicy
from undercurrent.workers.binding import AsyncBinding
from undercurrent.workers.frames import OPAQUE_KIND_MIN, describe

if TYPE_CHECKING:
    from undercurrent.workers.lane import Lane

__all__ = ["RowOfBinding", "accept_rows"]

RowOfBinding = tuple[AsyncBinding, int, int, bool]
"""(binding, index of the row, token position, whether it is generated)"""


def accept_rows(rows: Any, layer: int, timestamp: float, entries: Sequence[RowOfBinding]) -> None:
    """`AsyncBinding.accept` of `rows[row]` for each entry; per binding in the order of `entries`.

    `rows` is an array or tensor of two dimensions. What a lane does not take at once goes the way of single records:
    rows of bindings that block when they are full, rows that are not contiguous, and rows of a larger size than before.
    """
    one_by_one: list[RowOfBinding] = []
    by_lane: dict[Lane, list[RowOfBinding]] = {}
    for entry in entries:
        binding = entry[0]
        can_block = binding.plan.overflow_policy == OverflowPolicy.BLOCK
        (one_by_one if can_block else by_lane.setdefault(binding.lane, [])).append(entry)
    try:
        kind, source = describe(rows) if by_lane else (0, None)
    except UnsupportedPayloadError:
        kind = OPAQUE_KIND_MIN
    for lane, of_lane in by_lane.items():
        if kind >= OPAQUE_KIND_MIN:
            one_by_one += of_lane
            continue
        for_ring = [
            (binding.ring, row, token_pos, FLAG_IS_GENERATED if is_generated else 0)
            for binding, row, token_pos, is_generated in of_lane
        ]
        answers = lane.memory.publish_rows(source, kind, layer, timestamp, for_ring)
        one_by_one += [entry for entry, answer in zip(of_lane, answers, strict=True) if answer not in (OK, FULL)]
    for binding, row, token_pos, is_generated in one_by_one:
        binding.accept_tensor(rows[row], layer, token_pos, is_generated=is_generated, timestamp=timestamp)
