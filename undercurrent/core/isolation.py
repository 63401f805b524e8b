"""Fresh copies of values that could carry state from one request's probe to the next.

What cannot change is shared; containers and arrays that can are copied, however deeply they are nested. Objects of any
other class are shared: copying a model for each request would cost its size, and only its author knows what is state.
"""

from __future__ import annotations

import array
import copy
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

__all__ = ["can_carry_state", "fresh_copy"]

_SCALARS = (int, float, str, bool, type(None), bytes, complex)
_FLAT = (set, bytearray, array.array)
_CONTAINERS = (list, dict, deque)


def can_carry_state(value: object) -> bool:
    """Whether `value` itself is a container or array that `fresh_copy` copies."""
    return isinstance(value, (*_FLAT, *_CONTAINERS)) or _is_writable_array(value)


def fresh_copy(value: Any) -> Any:
    """`value` with every container and writable numpy array in it replaced by a copy; cycles keep their shape.

    >>> original = {"weights": [1, 2]}
    >>> fresh_copy(original)["weights"] is original["weights"]
    False
    """
    if isinstance(value, _SCALARS):
        return value
    return _copy(value, {})


def _copy(value: Any, done: dict[int, Any]) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, _FLAT) or _is_writable_array(value):
        done[id(value)] = fresh = copy.copy(value)
        return fresh
    if isinstance(value, dict):
        done[id(value)] = fresh = copy.copy(value)
        for key in fresh:
            fresh[key] = _copy(fresh[key], done)
        return fresh
    if isinstance(value, (list, deque)):
        done[id(value)] = fresh = copy.copy(value)
        for index, item in enumerate(value):
            fresh[index] = _copy(item, done)
        return fresh
    if type(value) is tuple:
        items = [_copy(item, done) for item in value]
        unchanged = all(item is original for item, original in zip(items, value, strict=True))
        return value if unchanged else tuple(items)
    if isinstance(value, Mapping) and type(value).__name__ == "FrozenArgs":
        return type(value)({key: _copy(item, done) for key, item in value.items()})  # type: ignore[call-arg]
    return value


def _is_writable_array(value: object) -> bool:
    # Whoever holds a numpy array has loaded numpy; this module must not be the one that does.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and bool(value.flags.writeable)
