"""The key of a coalition: a hash of everything that changes its text."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from undercurrent.runtime.errors import RuntimeTypeError, RuntimeValueError

__all__ = ["build_coalition_key"]

# Runs that are keyed at the same time in one process; a miss costs some 20 us.
_SHARED_PARTS_MAX = 64
_DEPTH_MAX = 16


class _Digest(Protocol):
    def copy(self) -> _Digest: ...
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def build_coalition_key(
    snapshot_id: str,
    player_ids: Sequence[str],
    mask_present: Sequence[bool],
    absence_policy: str,
    model_id: str,
    generation: object,
) -> str:
    """The SHA-256 of a generation request, 64 hexadecimal digits.

    Every field is hashed with its length, so that no two requests share a key because their fields run together.

    Args:
        generation: the settings that decide the text: `GenerationConfig`, another Struct, dataclass, pydantic model or
            mapping, or None. Each of its fields is part of the key; equal numbers are equal (`0` and `0.0`).

    Raises:
        RuntimeValueError: the mask is not of these players, or a number is NaN.
        RuntimeTypeError: a setting is of a type that has no one spelling.

    >>> build_coalition_key("s", ("a", "b"), (True, False), "delete", "m", {"seed": 1})[:16]
    '7f2e0e177ac4a530'
    """
    players = player_ids if isinstance(player_ids, tuple) else tuple(player_ids)
    if len(mask_present) != len(players):
        raise RuntimeValueError(f"a mask of {len(players)} players was expected, got one of {len(mask_present)}")
    if generation is None or _is_frozen(type(generation)):
        digest = _remembered_part(snapshot_id, players, absence_policy, model_id, generation).copy()
    else:
        digest = _shared_part(snapshot_id, players, absence_policy, model_id, generation)
    digest.update(_presence(mask_present))
    return digest.hexdigest()


def _presence(mask_present: Sequence[bool]) -> bytes:
    try:
        presence = bytes(mask_present)
    except TypeError:  # numpy's bool is no number to `bytes`
        return bytes([1 if is_present else 0 for is_present in mask_present])
    return bytes(map(bool, presence)) if presence.strip(b"\0\1") else presence


def _shared_part(
    snapshot_id: str, players: tuple[str, ...], absence_policy: str, model_id: str, generation: object
) -> _Digest:
    """Hashes what all coalitions of a run have in common."""
    pieces: list[bytes] = []
    _add(pieces, (snapshot_id, players, absence_policy, model_id), "key", 0)
    _add(pieces, generation, "generation", 0)
    return hashlib.sha256(b"undercurrent coalition 1\n" + b"".join(pieces))


_cached_part: Callable[..., _Digest] = lru_cache(_SHARED_PARTS_MAX)(_shared_part)


def _remembered_part(*parts: object) -> _Digest:
    try:
        return _cached_part(*parts)
    except TypeError:  # a setting that cannot be hashed, such as a list of stop strings
        return _shared_part(*parts)  # type: ignore[arg-type]


def _is_frozen(kind: type) -> bool:
    """Tells whether values of a type never change, so that what was hashed of one can be kept."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _add(pieces: list[bytes], value: object, path: str, depth: int) -> None:
    """Appends one kind byte, a length and the content of a value, and of what it holds."""
    if depth > _DEPTH_MAX:
        raise RuntimeValueError(f"settings nested at most {_DEPTH_MAX} deep were expected at `{path}`")
    if value is None:
        pieces.append(b"n")
    elif isinstance(value, str):
        _add_bytes(pieces, b"s", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes):
        _add_bytes(pieces, b"b", value)
    elif isinstance(value, int | float):
        _add_bytes(pieces, b"d", _spell_number(value, path))
    elif isinstance(value, list | tuple):
        pieces.append(b"l" + struct.pack("<Q", len(value)))
        for index, item in enumerate(value):
            _add(pieces, item, f"{path}[{index}]", depth + 1)
    else:
        fields = _fields_of(value, path)
        pieces.append(b"m" + struct.pack("<Q", len(fields)))
        for name in sorted(fields):
            _add_bytes(pieces, b"s", name.encode())
            _add(pieces, fields[name], f"{path}.{name}", depth + 1)


def _add_bytes(pieces: list[bytes], kind: bytes, content: bytes) -> None:
    pieces.append(kind + struct.pack("<Q", len(content)) + content)


def _spell_number(number: float, path: str) -> bytes:
    """One spelling for equal numbers, as the cache of shared parts takes them for one."""
    if isinstance(number, float) and math.isnan(number):
        raise RuntimeValueError(f"a number was expected at `{path}`, got NaN, which equals nothing")
    if isinstance(number, float) and not number.is_integer():
        return repr(float(number)).encode()
    return str(int(number)).encode()


def _fields_of(value: object, path: str) -> Mapping[str, object]:
    """The fields of a mapping, Struct, dataclass or pydantic model, by name."""
    names: Sequence[str]
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise RuntimeTypeError(f"names of settings must be strings at `{path}`, got {value!r}")
        return value
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    else:
        described = getattr(type(value), "__dataclass_fields__", None) or getattr(type(value), "model_fields", None)
        if described is None:
            raise RuntimeTypeError(
                f"a string, number, list, mapping, dataclass or Struct was expected at `{path}`, "
                f"got {type(value).__qualname__}"
            )
        names = tuple(described)
    return {name: getattr(value, name) for name in names}
