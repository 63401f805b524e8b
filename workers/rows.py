"""Rows of one layer and step, published together: one call into the extension for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from undercurrent.errors import UnsupportedPayloadError
from undercurrent.ipc import publish_rows as publish_to_rings
from undercurrent.workers.frames import OPAQUE_KIND_MIN, describe

if TYPE_CHECKING:
    from undercurrent.workers.binding import RowTarget

__all__ = ["publish_rows"]


def publish_rows(
    rows: Any,
    layer: int,
    timestamp: float,
    targets: dict[Any, RowTarget],
    tail: tuple[Any, ...],
    entries: Sequence[Any],
) -> Sequence[int]:
    """Publishes `rows[row]` for each entry of (first, second, token position, whether it is generated[, row]).

    `targets[first, second, *tail]` says where; each worker is woken once. `rows` is an array or tensor of two
    dimensions. Returns the indices, sorted, of the entries that no ring took: those without a target, of bindings that
    block, and everything where `rows` is not contiguous or of a type a ring cannot read. Those go the way of single
    records. Nothing was published when it raises.

    Raises:
        ValueError: `rows` has not two dimensions, or an entry has not four or five fields.
        IndexError: a row that is not there.
    """
    # A list's rows have no bytes yet; `describe` would write all of them.
    if type(rows) in (list, tuple):
        return range(len(entries))
    try:
        kind, source = describe(rows)
    except UnsupportedPayloadError:
        return range(len(entries))
    if kind >= OPAQUE_KIND_MIN:
        return range(len(entries))
    return publish_to_rings(source, kind, layer, timestamp, targets, tail, entries)
