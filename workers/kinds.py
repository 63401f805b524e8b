"""Payload kinds: the byte in a slot's header that says which Python type to rebuild from the bytes.

Below `OPAQUE_KIND_MIN` the ring reads shape and dtype from the object itself and the slot holds plain items; from it on
the slot holds bytes that were written here.
"""

from __future__ import annotations

from typing import Final

from undercurrent.workers.buffers import TYPED_ARRAY_CODES, VIEW_FORMATS

NUMPY: Final = 1
TORCH: Final = 2
BYTES: Final = 3
BYTEARRAY: Final = 4
SCALAR: Final = 5

_VIEW_MIN: Final = 16
_TYPED_ARRAY_MIN: Final = 32

VIEW_KINDS: dict[str, int] = {item_format: _VIEW_MIN + index for index, item_format in enumerate(VIEW_FORMATS)}
"""One kind per item format of a `memoryview`, because a ring's dtype does not tell `l` from `q`."""
TYPED_ARRAY_KINDS: dict[str, int] = {code: _TYPED_ARRAY_MIN + index for index, code in enumerate(TYPED_ARRAY_CODES)}
"""One kind per type code of an `array.array`, for the same reason."""

OPAQUE_KIND_MIN: Final = 64
NUMBERS: Final = 64
FLOAT_LIST: Final = 65
FLOAT_TUPLE: Final = 66
INT_LIST: Final = 67
INT_TUPLE: Final = 68
PACKED_ARRAY: Final = 69
PACKED_RECORD_ARRAY: Final = 70
PACKED_SCALAR: Final = 71
PACKED_TENSOR: Final = 72
PACKED_VIEW: Final = 73
PACKED_TYPED_ARRAY: Final = 74
