"""Which rows of a forward pass become records: positions to rows, for all requests of a batch at once.

Nothing here knows a model. A *column* is a place in the padded batch; a *position* counts the tokens of one request,
padding left out, so that `position = column - padding`. Every point of every request is reduced to an arithmetic
progression of positions, kept in arrays over all (request, point) pairs: a decode step of any batch size costs a few
array operations, and a prompt costs the same whatever its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from undercurrent.engines.base import EngineLimitationError, IndexArray
from undercurrent.spec import ExtractionPoint, TensorType, UntilKind

__all__ = ["BatchCapture", "CapturedRows", "SequenceShape", "TensorKey"]

TensorKey = tuple[int, TensorType]
"""(layer, tensor type): one tensor of one forward pass."""

# Far above any position, and far enough below the int64 limit to be added to.
_NEVER_ENDS = 1 << 62
_NO_TOKEN = -1

TokenIdOf = Callable[[str], int | None]
"""Gives the id of the one token a text is, or None where it is none or several."""


@dataclass(frozen=True, slots=True)
class SequenceShape:
    """One row of a batch: whose it is and where its tokens lie."""

    request_id: str
    prompt_len: int
    """Tokens of the prompt, padding not counted."""
    padding: int = 0
    """Padding columns before the prompt."""
    points: tuple[ExtractionPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class CapturedRows:
    """The rows to copy from one tensor of one forward pass; entry i of every array belongs to row i of the copy."""

    sequences: IndexArray
    """Row of the batch."""
    columns: IndexArray
    """Column of the padded batch, counted from the beginning of the sequence, not of the forward pass."""
    positions: IndexArray
    pairs: IndexArray
    """Which (request, point) pair of the `BatchCapture` each row is for."""

    def __len__(self) -> int:
        return len(self.pairs)

    def keep(self, is_kept: np.ndarray) -> CapturedRows:
        """The rows for which `is_kept` is true."""
        return CapturedRows(
            self.sequences[is_kept], self.columns[is_kept], self.positions[is_kept], self.pairs[is_kept]
        )


_NO_ROWS = CapturedRows(*(np.empty(0, np.int64) for _ in range(4)))


@dataclass(slots=True)
class _PairTable:
    """Arrays over all (request, point) pairs, in order of request and point."""

    sequence: IndexArray
    padding: IndexArray
    start: IndexArray
    """First selected position."""
    stop: IndexArray
    """Position behind the last that may be selected; falls when a sequence ends or a stop token is seen."""
    stride: IndexArray
    stop_token: IndexArray
    stop_token_from: IndexArray
    """First position whose token counts as a stop token: the first generated one."""
    points: list[ExtractionPoint] = field(default_factory=list)


class BatchCapture:
    """Selects rows for the requests of one batch while it is generated; owned by one generate call.

    Call `select` for each forward pass, `observe` for the tokens that were appended, `end_sequence` when a row of the
    batch ends.
    """

    def __init__(self, sequences: Sequence[SequenceShape], *, token_id_of: TokenIdOf | None = None) -> None:
        """`token_id_of` turns the text of an `until: {stop_token: text}` into a token id.

        Raises:
            EngineLimitationError: a stop token is a text that is not one token of this model.
        """
        self.sequences = tuple(sequences)
        self._pairs = _tabulate(self.sequences, token_id_of)
        pairs_by_key = _pairs_by_key(self._pairs.points)
        self.keys: tuple[TensorKey, ...] = tuple(pairs_by_key)
        """The tensors that are read, in the order in which a model computes them."""
        self.names: tuple[tuple[str, str], ...] = tuple(
            (sequence.request_id, point.name) for sequence in self.sequences for point in sequence.points
        )
        """Request id and point name of each pair."""
        self._readers = {key: np.isin(np.arange(len(self.names)), pairs) for key, pairs in pairs_by_key.items()}
        self.shared_keys = frozenset(key for key, pairs in pairs_by_key.items() if self._has_twins(pairs))
        """The tensors of which several points of one request may read one row."""
        self.prompt_lens = np.array([sequence.prompt_len for sequence in self.sequences], np.int64)
        self.has_stop_tokens = bool(np.any(self._pairs.stop_token != _NO_TOKEN))
        self._last_column: int | None = None
        self._samples = [index for index, point in enumerate(self._pairs.points) if point.sample is not None]
        for index in self._samples:
            self._skip_unsampled_request(index)

    def is_exhausted(self, column: int) -> bool:
        """Whether no pair can select anything at `column` or behind it."""
        if self._last_column is None:
            self._last_column = int((self._pairs.stop - 1 + self._pairs.padding).max(initial=-1))
        return self._last_column < column

    def select(self, first_column: int, column_count: int) -> CapturedRows:
        """The rows of a forward pass over `column_count` columns from `first_column` on, for all tensors.

        Order is by pair, then by position. Use `rows_of` to get those of one tensor.
        """
        rows = self._select_one(first_column) if column_count == 1 else self._select_block(first_column, column_count)
        return self._thin(rows) if self._samples and len(rows) else rows

    def rows_of(self, selected: CapturedRows, key: TensorKey) -> CapturedRows:
        """The rows of `selected` that are read from tensor `key`."""
        if len(self.keys) == 1:
            return selected
        return selected.keep(self._readers[key][selected.pairs])

    def observe(self, first_column: int, tokens: np.ndarray) -> None:
        """Takes note of the tokens `(sequences, n)` that stand in the columns from `first_column` on.

        Only stop tokens depend on it; a call for every accepted token keeps `until: {stop_token: …}` true.
        """
        if not self.has_stop_tokens or tokens.shape[1] == 0:
            return
        pairs = self._pairs
        columns = first_column + np.arange(tokens.shape[1])
        positions = columns[None, :] - pairs.padding[:, None]
        is_stop = (tokens[pairs.sequence] == pairs.stop_token[:, None]) & (positions >= pairs.stop_token_from[:, None])
        behind_stop = np.where(is_stop, positions + 1, _NEVER_ENDS).min(axis=1)
        np.minimum(pairs.stop, behind_stop, out=pairs.stop)
        self._last_column = None

    def end_sequence(self, sequence: int, *, column: int) -> None:
        """Selects nothing more of a row of the batch at `column` or behind it."""
        mine = self._pairs.sequence == sequence
        stop = column - self.sequences[sequence].padding
        self._pairs.stop[mine] = np.minimum(self._pairs.stop[mine], stop)
        self._last_column = None

    def accept(self, rows: CapturedRows, *, column_count: int) -> np.ndarray:
        """Which of `rows` stand: those before column `column_count` that no stop token has cut off since."""
        return (rows.columns < column_count) & (rows.positions < self._pairs.stop[rows.pairs])

    def _select_one(self, column: int) -> CapturedRows:
        pairs = self._pairs
        positions = column - pairs.padding
        behind = positions - pairs.start
        chosen = np.flatnonzero((behind >= 0) & (positions < pairs.stop) & (behind % pairs.stride == 0))
        if not len(chosen):
            return _NO_ROWS
        return CapturedRows(
            pairs.sequence[chosen], np.full(len(chosen), column, np.int64), positions[chosen], chosen.astype(np.int64)
        )

    def _select_block(self, first_column: int, column_count: int) -> CapturedRows:
        pairs = self._pairs
        first = np.maximum(first_column - pairs.padding, 0)
        # The first position of the progression that is not before the block, then how many lie inside it.
        begin = pairs.start + np.maximum(-(-(first - pairs.start) // pairs.stride), 0) * pairs.stride
        end = np.minimum(pairs.stop, first_column + column_count - pairs.padding)
        counts = np.maximum(-(-(end - begin) // pairs.stride), 0)
        total = int(counts.sum())
        if total == 0:
            return _NO_ROWS
        chosen = np.repeat(np.arange(len(counts)), counts)
        # 0, 1, 2, … within each pair.
        steps = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        positions = begin[chosen] + steps * pairs.stride[chosen]
        return CapturedRows(
            pairs.sequence[chosen], positions + pairs.padding[chosen], positions, chosen.astype(np.int64)
        )

    def _has_twins(self, pairs: IndexArray) -> bool:
        owners = self._pairs.sequence[pairs]
        return len(np.unique(owners)) < len(owners)

    def _skip_unsampled_request(self, pair: int) -> None:
        sample = self._pairs.points[pair].sample
        if sample is not None and not sample.keeps_request(self.names[pair][0]):
            self._pairs.stop[pair] = 0

    def _thin(self, rows: CapturedRows) -> CapturedRows:
        is_kept = np.ones(len(rows), bool)
        for pair in self._samples:
            sample = self._pairs.points[pair].sample
            assert sample is not None
            request_id, _ = self.names[pair]
            for index in np.flatnonzero(rows.pairs == pair):
                is_kept[index] = sample.keeps_record(request_id, int(rows.positions[index]))
        return rows.keep(is_kept)


def _tabulate(sequences: Sequence[SequenceShape], token_id_of: TokenIdOf | None) -> _PairTable:
    rows = []
    points = []
    for index, sequence in enumerate(sequences):
        for point in sequence.points:
            start, stop, stride = progression(point, sequence.prompt_len)
            token = _stop_token(point, token_id_of)
            rows.append((index, sequence.padding, start, stop, stride, token, sequence.prompt_len))
            points.append(point)
    columns = np.array(rows, np.int64).reshape(len(rows), 7).T.copy()
    return _PairTable(
        sequence=columns[0],
        padding=columns[1],
        start=columns[2],
        stop=columns[3],
        stride=columns[4],
        stop_token=columns[5],
        stop_token_from=columns[6],
        points=points,
    )


def progression(point: ExtractionPoint, prompt_len: int) -> tuple[int, int, int]:
    """The positions `point` reads as (first, behind the last, stride); empty where it can match nothing.

    Raises:
        EngineLimitationError: the position needs the length of the generation.
    """
    selector = point.position
    if selector.needs_generation_length:
        raise EngineLimitationError(
            f"point {point.name!r}: position {selector.to_raw()!r} counts from the end of a generation whose length is"
            " not known while it runs"
        )
    if not selector.is_continuous:
        position = selector.resolve_absolute(prompt_len)
        if position is None or position < 0:
            return 0, 0, 1
        return position, position + 1, 1
    stride = point.stride or 1
    start = prompt_len + (selector.slice_start or 0)
    stop = _NEVER_ENDS if selector.slice_stop is None else prompt_len + selector.slice_stop
    rule = point.until_rule
    if rule.kind is UntilKind.FIXED_COUNT and isinstance(rule.value, int):
        stop = min(stop, start + rule.value * stride)
    return start, stop, stride


def _stop_token(point: ExtractionPoint, token_id_of: TokenIdOf | None) -> int:
    rule = point.until_rule
    if rule.kind is not UntilKind.STOP_TOKEN or rule.value is None or not point.position.is_continuous:
        return _NO_TOKEN
    if isinstance(rule.value, int):
        return rule.value
    token_id = token_id_of(rule.value) if token_id_of is not None else None
    if token_id is None:
        raise EngineLimitationError(
            f"point {point.name!r}: `until.stop_token` {rule.value!r} is not one token of this model; give a token id"
        )
    return token_id


def _pairs_by_key(points: Sequence[ExtractionPoint]) -> dict[TensorKey, IndexArray]:
    by_key: dict[TensorKey, list[int]] = {}
    for index, point in enumerate(points):
        for layer in dict.fromkeys(point.layers):
            by_key.setdefault((layer, TensorType(point.tensor_type)), []).append(index)
    order = {TensorType.ATTN_OUT: 0, TensorType.MLP_OUT: 1, TensorType.RESIDUAL_STREAM: 2, TensorType.FINAL_NORM: 3}
    keys = sorted(by_key, key=lambda key: (key[0], order.get(key[1], len(order))))
    return {key: np.array(by_key[key], np.int64) for key in keys}
