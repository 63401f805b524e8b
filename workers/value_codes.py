"""The msgpack extension codes of values, one per kind that msgpack itself has no word for.

None, bool, int of 64 bits, float, str, bytes, list and dict with text keys are plain msgpack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from undercurrent.core import ProbeResult, ProbeSignal, RequestContext

PLAIN_TYPES: Final[frozenset[type]] = frozenset({type(None), bool, int, float, str, bytes})
"""What msgpack writes as it is, but for integers and text that do not fit."""
BIG_INT: Final = 1
TUPLE: Final = 2
SET: Final = 3
FROZENSET: Final = 4
DICT: Final = 5
"""A dict with a key that is no text: keys and values in turn."""
COMPLEX: Final = 6
TEXT: Final = 7
"""Text that UTF-8 cannot hold, with lone surrogates."""
DATETIME: Final = 8
DATE: Final = 9
TIME: Final = 10
TIMEDELTA: Final = 11
ENUM: Final = 12
DATACLASS: Final = 13
STRUCT: Final = 14
NAMED_TUPLE: Final = 15
FROZEN_ARGS: Final = 16
BYTEARRAY: Final = 17
MEMORYVIEW: Final = 18
TYPED_ARRAY: Final = 19
"""An `array.array`."""
ARRAY: Final = 20
SCALAR: Final = 21
TENSOR: Final = 22
PICKLED: Final = 23
OWN: Final = 24
"""One of `OWN_CLASSES`, by its place there and its fields in order: every request sends some."""
OWN_CLASSES: Final = (RequestContext, ProbeSignal, ProbeResult)

DEPTH_MAX: Final = 64
"""How deep containers may lie in one another."""
NODES_MAX: Final = 4_000_000
"""How many items one value may have in all; a list that holds another one twice counts it twice."""
VALUE_BYTES_MAX: Final = 64 * 1024 * 1024
"""How long the bytes of one value may be."""


def are_plain(items: Iterable[tuple[object, object]]) -> bool:
    """Whether the items of a dict have text for names and plain values; some may still not fit."""
    return all(type(name) is str and type(value) in PLAIN_TYPES for name, value in items)
