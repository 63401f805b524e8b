"""Fresh copies of values that could carry state from one request's probe to the next.

What cannot change is shared; containers and arrays that can are copied, however deeply they are nested, also inside of
tuples and read-only mappings. Objects of any other class are shared: copying a model for each request would cost its
size, and only its author knows what is state.
"""

from __future__ import annotations

import array
import copy
import inspect
import sys
from collections import UserDict, UserList, deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["can_carry_state", "fresh_copy", "stateful_defaults"]

_SCALARS = (int, float, str, bool, type(None), bytes, complex)
_FLAT = (set, bytearray, array.array)
_CONTAINERS = (list, dict, deque)
_WRAPPERS = (UserDict, UserList)


def can_carry_state(value: object) -> bool:
    """Whether `fresh_copy` would copy `value`, or something in it."""
    return not isinstance(value, _SCALARS) and fresh_copy(value) is not value


def stateful_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of named parameters that every call would share: `def f(record, *, seen=[])`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {item.name: item.default for item in parameters if item.kind in named and can_carry_state(item.default)}


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
    fresh: Any
    if isinstance(value, _SCALARS):
        return value
    if id(value) in done:
        return done[id(value)]
    if _is_array(value):
        return _copy_array(value, done)
    if isinstance(value, _FLAT):
        done[id(value)] = fresh = copy.copy(value)
        return fresh
    if isinstance(value, _WRAPPERS):
        done[id(value)] = fresh = copy.copy(value)
        fresh.data = _copy(value.data, done)
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
    if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make")):
        make: Any = tuple if type(value) is tuple else type(value)._make  # type: ignore[attr-defined]
        items = [_copy(item, done) for item in value]
        if all(item is original for item, original in zip(items, value, strict=True)):
            return value
        return make(items)
    if isinstance(value, MappingProxyType) or (isinstance(value, Mapping) and type(value).__name__ == "FrozenArgs"):
        fields = {key: _copy(item, done) for key, item in value.items()}
        is_same = all(fields[key] is item for key, item in value.items())
        # A proxy's own mapping may be changed by whoever holds it, and by nobody who holds the proxy.
        return value if is_same else type(value)(fields)  # type: ignore[call-arg]
    return value


def _copy_array(value: Any, done: dict[int, Any]) -> Any:
    if not value.dtype.hasobject:
        # A read-only array is shared: that is how large weights are given to every request.
        if not value.flags.writeable:
            return value
        done[id(value)] = fresh = copy.copy(value)
        return fresh
    done[id(value)] = fresh = value.copy()
    for index, item in enumerate(value.flat):
        fresh.flat[index] = _copy(item, done)
    fresh.flags.writeable = value.flags.writeable
    return fresh


def _is_array(value: object) -> bool:
    # Whoever holds a numpy array has loaded numpy; this module must not be the one that does.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)
