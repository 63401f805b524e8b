"""`route_rows`: all rows of one layer and step in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from undercurrent.core import ProbeSignal
from undercurrent.errors import RouterError
from undercurrent.router.requests import RequestTable, tensor_type_word
from undercurrent.spec import ActivationRecord, TensorType

__all__ = ["RowEntry", "RowLike", "RowsError", "route_rows"]


class RowEntry(NamedTuple):
    """Which request and point a row goes to. A plain tuple in this order will do."""

    request_id: str
    extraction_point_name: str
    token_pos: int
    is_generated: bool
    row: int | None = None
    """Index of the row; None is the entry's own index. Several entries may name one row."""


RowLike = RowEntry | tuple[str, str, int, bool] | tuple[str, str, int, bool, int | None]


class RowsError(RouterError):
    """Some entries of a `route_rows` call failed; all others were routed.

    An engine fails the requests of `errors` and goes on with `signals`, so that one request's probe harms no other.
    """

    def __init__(self, message: str, *, signals: list[ProbeSignal | None], errors: dict[int, Exception]) -> None:
        super().__init__(message)
        self.signals = signals
        """By entry, as `route_rows` returns them; None where the entry failed."""
        self.errors = errors
        """What was raised, by index of the entry."""


def route_rows(
    table: RequestTable, rows: Any, layer: int, tensor_type: TensorType | str, entries: Sequence[RowLike]
) -> list[ProbeSignal | None]:
    """Routes `rows[entry.row]` for each entry, in order; see `Router.route_rows`."""
    word = tensor_type_word(tensor_type)
    timestamp = time.time()
    signals: list[ProbeSignal | None] = [None] * len(entries)
    errors: dict[int, Exception] = {}
    for index, entry in enumerate(entries):
        request_id, point_name, token_pos, is_generated, *named_row = entry
        row = rows[named_row[0] if named_row and named_row[0] is not None else index]
        key = (request_id, point_name, layer, word)
        # A worker gets a copy in any case; an inline probe may keep or change its record, so it gets a row of its own.
        tensor = row if key in table.copying_routes else _own_copy(row)
        record = ActivationRecord(request_id, point_name, layer, token_pos, word, tensor, is_generated, timestamp)
        try:
            signals[index] = table.find_route(record)(record)
        except Exception as error:
            errors[index] = error
    if errors:
        first = next(iter(errors.values()))
        raise RowsError(
            f"{len(errors)} of {len(entries)} rows failed, the first with {type(first).__name__}: {first}; see "
            "`errors` and `signals` of this error",
            signals=signals,
            errors=errors,
        ) from first
    return signals


def _own_copy(row: Any) -> Any:
    """A copy of one row that shares no memory with the block it came from."""
    for name in ("clone", "copy"):
        copy = getattr(row, name, None)
        if copy is not None:
            return copy()
    return row
