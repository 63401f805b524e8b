"""`route_rows`: all rows of one layer and step in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from undercurrent.core import ProbeSignal
from undercurrent.errors import RouterError
from undercurrent.router.requests import RequestTable, tensor_type_word
from undercurrent.spec import ActivationRecord, TensorType

if TYPE_CHECKING:
    from undercurrent.workers.rows import RowOfBinding

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
    """Routes `rows[entry.row]` for each entry; see `Router.route_rows`.

    What goes to workers goes first and in one call per lane, so that they can begin; then inline probes, in order.
    """
    word = tensor_type_word(tensor_type)
    timestamp = time.time()
    for_workers: list[RowOfBinding] = []
    for_others: list[tuple[int, Any]] = []
    row_targets = table.row_targets
    for index, entry in enumerate(entries):
        target = row_targets.get((entry[0], entry[1], layer, word))
        if target is None:
            for_others.append((index, entry))
        else:
            for_workers.append((target, _row_of(entry, index), entry[2], entry[3]))
    if for_workers:
        # Imported here, as it needs shared memory; a target means that it is loaded already.
        from undercurrent.workers.rows import accept_rows

        accept_rows(rows, layer, timestamp, for_workers)
    signals: list[ProbeSignal | None] = [None] * len(entries)
    errors: dict[int, Exception] = {}
    for index, entry in for_others:
        try:
            # An inline probe may keep or change its record, so it gets a row of its own.
            tensor = _own_copy(rows[_row_of(entry, index)])
            record = ActivationRecord(entry[0], entry[1], layer, entry[2], word, tensor, entry[3], timestamp)
            signals[index] = table.find_route(record)(record)
        except Exception as error:
            errors[index] = error
    if errors:
        raise _rows_error(errors, signals)
    return signals


def _row_of(entry: RowLike, index: int) -> int:
    row = entry[4] if len(entry) > 4 else None
    return index if row is None else row


def _rows_error(errors: dict[int, Exception], signals: list[ProbeSignal | None]) -> RowsError:
    first = next(iter(errors.values()))
    error = RowsError(
        f"{len(errors)} of {len(signals)} rows failed, the first with {type(first).__name__}: {first}; see "
        "`errors` and `signals` of this error",
        signals=signals,
        errors=errors,
    )
    error.__cause__ = first
    return error


def _own_copy(row: Any) -> Any:
    """A copy of one row that shares no memory with the block it came from."""
    for name in ("clone", "copy"):
        copy = getattr(row, name, None)
        if copy is not None:
            return copy()
    return row
