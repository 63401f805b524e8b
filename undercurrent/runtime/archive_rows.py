"""What a row of an archive holds, and how it is written to and read from the database."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import SupportsFloat, TypeAlias

import msgspec

from undercurrent.runtime.domain.generation import ProbeValue
from undercurrent.runtime.errors import ArchiveCorruptError, RuntimeTypeError, RuntimeValueError
from undercurrent.runtime.masking import PackedMask

__all__ = ["CoalitionRecord", "CoalitionRecordDraft", "Row", "decode_row", "encode_columns", "encode_values"]

Row: TypeAlias = tuple[int, str, str, bytes, int, str, str, float, int, str, str | None]
"""The columns of `coalition_records` in their order."""
Columns: TypeAlias = tuple[str, str, bytes, int, str, str, float, int, str, str | None]
"""A row without its `record_id`."""

_TYPES: dict[str, type] = {
    "snapshot_id": str,
    "coalition_key": str,
    "mask.words": bytes,
    "mask.n_bits": int,
    "absence_policy": str,
    "model_id": str,
    "elapsed_ms": float,
    "generation_text": str,
}


class CoalitionRecordDraft(msgspec.Struct, frozen=True):
    """A row to append."""

    snapshot_id: str
    coalition_key: str
    mask: PackedMask
    absence_policy: str
    model_id: str
    generation_text: str
    elapsed_ms: float
    """How long the generation took; 0 for a text that was there already."""
    cache_hit: bool
    """The text was there already."""
    logprobs: tuple[float, ...] | None = None
    """Natural log-probability of each generated token."""
    values: Mapping[str, ProbeValue] | None = None
    """What probes and value functions said, by name."""


class CoalitionRecord(msgspec.Struct, frozen=True):
    """A row that was read."""

    record_id: int
    """1 for the first row of an archive, growing by 1."""
    snapshot_id: str
    coalition_key: str
    mask: PackedMask
    absence_policy: str
    model_id: str
    generation_text: str
    elapsed_ms: float
    cache_hit: bool
    logprobs: tuple[float, ...] | None = None
    values: Mapping[str, ProbeValue] | None = None


_NUMBERS = msgspec.json.Decoder(tuple[float, ...])
_VALUES = msgspec.json.Decoder(dict[str, ProbeValue])


def encode_columns(draft: CoalitionRecordDraft) -> Columns:
    """The columns of a draft, without its `record_id`.

    Raises:
        RuntimeTypeError: a field is of another type than it says.
        RuntimeValueError: a log-probability is NaN, or a text holds half a surrogate pair.
    """
    mask, text = draft.mask, draft.generation_text
    snapshot_id, key, words, n_bits = draft.snapshot_id, draft.coalition_key, mask.words, mask.n_bits
    policy, model_id, elapsed_ms = draft.absence_policy, draft.model_id, draft.elapsed_ms
    is_usual = (
        type(text) is str
        and type(key) is str
        and type(snapshot_id) is str
        and type(policy) is str
        and type(model_id) is str
        and type(words) is bytes
        and type(n_bits) is int
        and type(elapsed_ms) is float
    )
    if not is_usual:
        elapsed_ms = _require_types((snapshot_id, key, words, n_bits, policy, model_id, elapsed_ms, text))
    if not text.isascii():
        encode_text(text)
    logprobs = None if draft.logprobs is None else _encode_logprobs(draft.logprobs)
    return snapshot_id, key, words, n_bits, policy, model_id, elapsed_ms, 1 if draft.cache_hit else 0, text, logprobs


def encode_text(text: str) -> bytes:
    """A generated text as UTF-8.

    Raises:
        RuntimeValueError: it holds half a surrogate pair.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RuntimeValueError(
            f"a generated text must be Unicode, got half a surrogate pair at index {error.start}; decode the model's "
            "bytes with errors='replace'"
        ) from error


def encode_values(values: Mapping[str, ProbeValue]) -> str:
    """The values of a row as JSON.

    Raises:
        RuntimeValueError: one of the numbers is not finite.
    """
    for name, measured in values.items():
        if not all(map(math.isfinite, (measured.value, *measured.tokens))):
            raise RuntimeValueError(f"a finite number was expected as value {name!r}, got {measured!r}")
    return msgspec.json.encode(values).decode()


def decode_row(row: Row, values: str | None = None) -> CoalitionRecord:
    """The record of a row.

    Raises:
        ArchiveCorruptError: log-probabilities or values are not what `encode_columns` writes.
    """
    number, snapshot_id, key, words, n_bits, policy, model_id, elapsed_ms, hit, text, logprobs = row
    try:
        return CoalitionRecord(
            number,
            snapshot_id,
            key,
            PackedMask(words, n_bits),
            policy,
            model_id,
            text,
            elapsed_ms,
            hit != 0,
            None if logprobs is None else _decode_logprobs(logprobs),
            None if values is None else _VALUES.decode(values),
        )
    except ValueError as error:
        raise ArchiveCorruptError(f"row {number} holds numbers that are no JSON: {error}") from error


def _require_types(columns: tuple[object, ...]) -> float:
    """Refuses columns the database would refuse later, for a whole group; returns `elapsed_ms` as a float.

    Raises:
        RuntimeTypeError: names the field.
    """
    elapsed_ms = 0.0
    for (name, kind), column in zip(_TYPES.items(), columns, strict=True):
        if name == "elapsed_ms" and isinstance(column, SupportsFloat):
            elapsed_ms = float(column)
        elif not isinstance(column, kind):
            raise RuntimeTypeError(f"`{name}` must be {kind.__name__}, got {type(column).__qualname__}")
    return elapsed_ms


def _encode_logprobs(logprobs: tuple[float, ...]) -> str:
    numbers = [float(number) for number in logprobs]
    if any(map(math.isnan, numbers)):
        raise RuntimeValueError(f"log-probabilities must be numbers, got NaN at index {_first_nan(numbers)}")
    # A token of probability 0 has -Infinity, which schema 4 spells as Python's json does.
    return json.dumps(numbers, separators=(",", ":"))


def _decode_logprobs(text: str) -> tuple[float, ...]:
    try:
        return _NUMBERS.decode(text)
    except msgspec.DecodeError:
        return tuple(map(float, json.loads(text)))


def _first_nan(numbers: list[float]) -> int:
    return next(index for index, number in enumerate(numbers) if math.isnan(number))
