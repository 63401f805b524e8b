"""Any value as one that JSON can hold, with nothing passing for what it is not.

What JSON has no word for becomes a summary, `{"__summary__": kind, …}`: bytes and tensors are not written out, NaN is
no number, a container that contains itself ends. numpy and torch are not imported; their objects are known by `shape`
and `dtype`.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

__all__ = ["as_plain", "to_jsonable"]

_DEPTH_MAX = 32
_NODES_MAX = 100_000
_PLAIN_TYPES: frozenset[type] = frozenset({str, int, bool, type(None)})


def as_plain(value: Any) -> Any:
    """Returns `value` itself where JSON holds it as it is, else `to_jsonable(value)`.

    The common verdict and metadata, a dict of words and finite numbers, costs one pass and no copy.
    """
    plain = _PLAIN_TYPES
    kind = type(value)
    # Only NaN and the infinities differ from themselves by something else than zero.
    if kind in plain or (kind is float and value - value == 0.0):
        return value
    if kind is not dict:
        return to_jsonable(value)
    for key, item in value.items():
        kind = type(item)
        if type(key) is str and (kind in plain or (kind is float and item - item == 0.0)):
            continue
        return to_jsonable(value)
    return value


def to_jsonable(value: Any) -> Any:
    """Returns `value` as None, bool, int, float, str, and new lists and dicts of them; never raises.

    Enums become their value, numpy scalars and tensors of no dimensions the number they hold, dataclasses and Structs
    dicts, sets lists, dates ISO 8601. NaN and infinities, bytes, tensors, cycles and what is too deep or too large
    become summaries. Anything else becomes its `str()`.

    >>> to_jsonable({"score": float("nan"), 1: b"abc"})
    {'score': {'__summary__': 'float', 'value': 'nan'}, '1': {'__summary__': 'bytes', 'length': 3}}
    """
    return _Simplifier().simplify(value)


class _Simplifier:
    """Simplifies one value; counts items and knows the containers it is inside of."""

    __slots__ = ("_nodes_left", "_open")

    def __init__(self) -> None:
        self._nodes_left = _NODES_MAX
        self._open: set[int] = set()

    def simplify(self, value: Any) -> Any:
        self._nodes_left -= 1
        try:
            return self._simplify(value)
        except Exception:
            # A property, `__str__` or iterator of somebody else's class raised; the rest of the record is worth having.
            return f"<unserializable {type(value).__name__}>"

    def _simplify(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN_TYPES:
            return _clean_text(value) if kind is str else value
        if isinstance(value, enum.Enum):
            return self.simplify(value.value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"__summary__": "float", "value": str(float(value))}
        if isinstance(value, str):
            return _clean_text(str.__str__(value))
        if isinstance(value, int):
            return int(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"__summary__": "bytes", "length": memoryview(value).nbytes}
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return self._simplify_array(value)
        if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
            return value.isoformat()
        return self._simplify_container(value)

    def _simplify_container(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._within(value, self._simplify_items, value.items())
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._within(value, self._simplify_list, value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return self._within(value, self._simplify_items, [(name, getattr(value, name, None)) for name in names])
        if isinstance(value, msgspec.Struct):
            names = list(value.__struct_fields__)
            return self._within(value, self._simplify_items, [(name, getattr(value, name)) for name in names])
        return _clean_text(str(value))

    def _within(self, value: Any, simplify: Any, parts: Any) -> Any:
        if id(value) in self._open:
            return {"__summary__": "cycle", "type": type(value).__name__}
        if len(self._open) >= _DEPTH_MAX:
            return {"__summary__": "too_deep", "type": type(value).__name__}
        self._open.add(id(value))
        try:
            return simplify(parts)
        finally:
            self._open.discard(id(value))

    def _simplify_items(self, items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
        simplified: dict[str, Any] = {}
        for key, item in items:
            if self._nodes_left <= 0:
                simplified["__truncated__"] = {"__summary__": "truncated", "items_max": _NODES_MAX}
                break
            simplified[self._simplify_key(key)] = self.simplify(item)
        return simplified

    def _simplify_list(self, items: Iterable[Any]) -> list[Any]:
        simplified: list[Any] = []
        for item in items:
            if self._nodes_left <= 0:
                simplified.append({"__summary__": "truncated", "items_max": _NODES_MAX})
                break
            simplified.append(self.simplify(item))
        return simplified

    def _simplify_key(self, key: Any) -> str:
        if isinstance(key, enum.Enum):
            key = key.value
        try:
            return _clean_text(str(key))
        except Exception:
            return f"<unserializable {type(key).__name__}>"

    def _simplify_array(self, value: Any) -> Any:
        shape = [int(size) for size in value.shape]
        if not shape and hasattr(value, "item") and not getattr(value.dtype, "names", None):
            item = value.item()
            # `item()` of a long double or of nanoseconds since 1970 is no Python number; its words are exact.
            return self.simplify(item) if not hasattr(item, "dtype") else _clean_text(str(value))
        summary = {
            "__summary__": "tensor",
            "type": type(value).__name__,
            "shape": shape,
            "dtype": str(value.dtype),
        }
        if hasattr(value, "device"):
            summary["device"] = str(value.device)
        return summary


def _clean_text(text: str) -> str:
    """JSON is UTF-8, which has no lone surrogates: they are written as the escapes Python shows for them."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
