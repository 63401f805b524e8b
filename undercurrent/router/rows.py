"""`route_rows`: all rows of one layer and step in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from undercurrent.core import ProbeSignal
from undercurrent.errors import RouterError
from undercurrent.router.requests import RequestTable, tensor_type_word
from undercurrent.spec import ActivationRecord, TensorType

if TYPE_CHECKING:
    from undercurrent.router.bounded import BoundedBinding
    from undercurrent.workers.guard_binding import Ask, GuardAnswer

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

    def __init__(self, message: str, *, signals: list[ProbeSignal | None], errors: dict[int, BaseException]) -> None:
        super().__init__(message)
        self.signals = signals
        """By entry, as `route_rows` returns them; None where the entry failed."""
        self.errors = errors
        """What was raised, by index of the entry."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), signals=self.signals, errors=self.errors), self.args


def route_rows(
    table: RequestTable, rows: Any, layer: int, tensor_type: TensorType | str, entries: Sequence[RowLike]
) -> list[ProbeSignal | None]:
    """Routes `rows[entry.row]` for each entry; see `Router.route_rows`.

    What goes to workers goes first and in one call, so that they can begin; then to guards, all of which are
    asked before any is waited for; then the rest, in order.
    """
    word = tensor_type_word(tensor_type)
    timestamp = time.time()
    one_by_one: Sequence[int] = range(len(entries))
    if table.row_targets:
        one_by_one = _load_publish_rows()(rows, layer, timestamp, table.row_targets, (layer, word), entries)
    signals: list[ProbeSignal | None] = [None] * len(entries)
    if one_by_one:
        records = _Records(table, rows, layer, word, timestamp)
        errors: dict[int, BaseException] = {}
        rest = _ask_guards(records, entries, one_by_one, signals, errors) if table.bounded_routes else one_by_one
        _route_one_by_one(records, entries, rest, signals, errors)
        if errors:
            raise _rows_error(signals, errors)
    return signals


@cache
def _load_publish_rows() -> Callable[..., Sequence[int]]:
    # Imported late, as it needs shared memory, and once: an import statement costs as much as a record.
    from undercurrent.workers.rows import publish_rows

    return publish_rows


class _Records(NamedTuple):
    """Makes the records of a call for those that take one at a time."""

    table: RequestTable
    rows: Any
    layer: int
    tensor_type: str
    timestamp: float

    def make(self, entry: RowLike, index: int) -> ActivationRecord:
        request_id, point_name, token_pos, is_generated, row = entry if len(entry) == 5 else (*entry, None)
        tensor = self.rows[index if row is None else row]
        if (request_id, point_name, self.layer, self.tensor_type) not in self.table.row_targets:
            # An inline probe may keep or change its record; a worker gets a copy in any case.
            tensor = _own_copy(tensor)
        return ActivationRecord(
            request_id, point_name, self.layer, token_pos, self.tensor_type, tensor, is_generated, self.timestamp
        )


class _Asked(NamedTuple):
    """A row that was sent to a guard and not answered yet."""

    entry_index: int
    binding: BoundedBinding
    record: ActivationRecord
    begun: Ask | GuardAnswer | None


def _ask_guards(
    records: _Records,
    entries: Sequence[RowLike],
    indices: Sequence[int],
    signals: list[ProbeSignal | None],
    errors: dict[int, BaseException],
) -> list[int]:
    """Fills `signals` at those of `indices` whose points are bounded, and returns the others.

    Their deadlines run side by side: a probe that hangs costs the step its bound once, and not once per row. Only the
    rows of one binding wait for one another. No user code runs here.
    """
    rest: list[int] = []
    asked: dict[BoundedBinding, _Asked] = {}
    try:
        for index in indices:
            entry = entries[index]
            binding = records.table.bounded_routes.get((entry[0], entry[1], records.layer, records.tensor_type))
            if binding is None:
                rest.append(index)
                continue
            earlier = asked.pop(binding, None)
            if earlier is not None:
                _take_answer(earlier, signals, is_alone=not _are_several(asked))
            try:
                record = records.make(entry, index)
            except Exception as error:
                errors[index] = error
                continue
            asked[binding] = _Asked(index, binding, record, binding.begin(record))
    finally:
        _take_answers(asked, signals)
    return rest


def _take_answers(asked: dict[BoundedBinding, _Asked], signals: list[ProbeSignal | None]) -> None:
    """Takes every answer, also when the caller is interrupted: nobody could ask those guards again otherwise."""
    interruption: BaseException | None = None
    is_alone = not _are_several(asked)
    while asked:
        try:
            _take_answer(asked.popitem()[1], signals, is_alone=is_alone)
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption


def _take_answer(asked: _Asked, signals: list[ProbeSignal | None], *, is_alone: bool) -> None:
    signals[asked.entry_index] = asked.binding.take(asked.begun, asked.record, is_alone=is_alone)


def _are_several(bindings: Iterable[BoundedBinding]) -> bool:
    """Whether several guards work side by side: each point has its own."""
    return len({binding.point.name for binding in bindings}) > 1


def _route_one_by_one(
    records: _Records,
    entries: Sequence[RowLike],
    indices: Sequence[int],
    signals: list[ProbeSignal | None],
    errors: dict[int, BaseException],
) -> None:
    """Fills `signals` at `indices`; one entry's error keeps no other from being routed."""
    for index in indices:
        try:
            record = records.make(entries[index], index)
            signals[index] = records.table.find_route(record)(record)
        except (Exception, SystemExit) as error:
            errors[index] = error


def _rows_error(signals: list[ProbeSignal | None], errors: dict[int, BaseException]) -> RowsError:
    first_index = min(errors)
    first = errors[first_index]
    error = RowsError(
        f"{len(errors)} of {len(signals)} rows failed, the first with {type(first).__name__}: {first}; see "
        "`errors` and `signals` of this error",
        signals=signals,
        errors=dict(sorted(errors.items())),
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
