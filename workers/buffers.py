"""`memoryview` and `array.array` as bytes that know their item format."""

from __future__ import annotations

import array
import math
from typing import Any

import msgspec
import numpy as np

from undercurrent.errors import UnsupportedPayloadError
from undercurrent.workers.references import MalformedValueError

__all__ = ["TYPED_ARRAY_CODES", "VIEW_FORMATS", "build_view", "pack_typed_array", "pack_view"]
__all__ += ["unpack_typed_array", "unpack_view"]

TYPED_ARRAY_CODES = "bBhHiIlLqQfd"
"""Type codes of `array.array` whose items are numbers."""
VIEW_FORMATS = "cbBhHiIlLqQnNfd?"
"""Item formats that `memoryview.cast` takes."""

_NDIM_MAX = 64
_encoder = msgspec.msgpack.Encoder()
_view_decoder = msgspec.msgpack.Decoder(tuple[str, list[int], memoryview])


def pack_view(view: memoryview) -> bytes:
    """Returns `[format, shape, bytes]` of a view, C-order.

    Raises:
        UnsupportedPayloadError: the items are of a format that no view of plain bytes can have.
    """
    if view.format.lstrip("@") not in VIEW_FORMATS:
        raise UnsupportedPayloadError(
            f"a memoryview of items {view.format!r} cannot be rebuilt from bytes; pass the array it is of"
        )
    return _encoder.encode((view.format.lstrip("@"), list(view.shape or ()), view.tobytes()))


def unpack_view(data: bytes | bytearray | memoryview) -> memoryview:
    """Returns the view of `pack_view`, over memory of its own, writable.

    Raises:
        MalformedValueError: `data` is not what `pack_view` writes.
    """
    try:
        item_format, shape, raw = _view_decoder.decode(data)
        if item_format not in VIEW_FORMATS or len(shape) > _NDIM_MAX or min(shape, default=0) < 0:
            raise MalformedValueError(f"a memoryview of items {item_format!r} and shape {shape} was announced")
        return build_view(item_format, tuple(shape), bytearray(raw))
    except MalformedValueError:
        raise
    except Exception as error:
        raise MalformedValueError(f"bytes that should describe a memoryview do not: {error}") from error


def build_view(item_format: str, shape: tuple[int, ...], owned: bytearray) -> memoryview:
    """Returns a view of `owned`, which nobody else may use afterwards."""
    plain: Any = memoryview(owned)
    view: memoryview
    if len(shape) == 1:
        view = plain.cast(item_format)
        if len(view) != shape[0]:
            raise MalformedValueError(f"a memoryview of {shape[0]} items {item_format!r} came with {len(owned)} bytes")
        return view
    if 0 in shape or not shape:
        # `cast` makes no views without dimensions or with an empty one; numpy's arrays export them.
        if item_format == "c" or math.prod(shape) * np.dtype(item_format).itemsize != len(owned):
            raise MalformedValueError(f"a memoryview of items {item_format!r} and shape {shape} cannot be rebuilt")
        exporter: Any = np.ndarray(shape, item_format, owned if owned else None)
        return memoryview(exporter)
    view = plain.cast(item_format, shape)
    return view


def pack_typed_array(value: array.array[Any]) -> bytes:
    """Returns the type code and the bytes of an `array.array`."""
    return value.typecode.encode() + value.tobytes()


def unpack_typed_array(data: bytes | bytearray | memoryview) -> array.array[Any]:
    """Returns the array of `pack_typed_array`.

    Raises:
        MalformedValueError: `data` is not what `pack_typed_array` writes.
    """
    try:
        value = array.array(chr(data[0]))
        value.frombytes(data[1:])
    except Exception as error:
        raise MalformedValueError(f"bytes that should describe an `array.array` do not: {error}") from error
    return value
