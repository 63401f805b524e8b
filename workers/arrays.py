"""numpy arrays and scalars as bytes, of every dtype but Python objects.

The described form is `[dtype, shape, bytes]` in msgpack; structured, aligned, big-endian, datetime and text dtypes come
back as they were.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from undercurrent.errors import UnsupportedPayloadError
from undercurrent.workers.references import MalformedValueError

__all__ = ["NUMBER_SCALARS", "AnyArray", "pack_array", "pack_scalar", "unpack_array", "unpack_scalar"]

AnyArray = npt.NDArray[Any]

_NDIM_MAX = 64
# Elements of a dtype without bytes (`V0`, `S0`) cost no memory, so only this bounds what a shape may claim.
_EMPTY_ITEMS_MAX = 1 << 24
_CACHED_DTYPES_MAX = 256
# One-character dtypes whose scalars are their bytes and nothing else.
_NUMBER_CHARS = frozenset("?bBhHiIlLqQefdgFDG")

NUMBER_SCALARS: frozenset[type[np.generic]] = frozenset(np.dtype(char).type for char in _NUMBER_CHARS)
"""The types of numpy's numbers, bools among them."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Any, list[int], memoryview])
_descriptions: dict[np.dtype[Any], Any] = {}


def pack_array(array: AnyArray) -> bytes:
    """Returns `array` as bytes, in C order.

    Raises:
        UnsupportedPayloadError: the dtype holds Python objects, or cannot be written down.
    """
    description = _describe_dtype(array.dtype)
    flat = np.ascontiguousarray(array).reshape(-1)
    # Dtypes without a buffer format (datetime64, for one) are read as bytes.
    raw: Any = flat.view(np.uint8) if flat.dtype.itemsize and flat.size else b""
    return _encoder.encode((description, list(array.shape), memoryview(raw)))


def unpack_array(data: bytes | bytearray | memoryview) -> AnyArray:
    """Returns the array of `pack_array`: owned, writable, C-order.

    Raises:
        MalformedValueError: `data` is not what `pack_array` writes.
    """
    try:
        description, shape, raw = _decoder.decode(data)
        dtype = _read_dtype(description)
        is_sound = len(shape) <= _NDIM_MAX and min(shape, default=0) >= 0
        count = math.prod(shape)
        if not is_sound or count * dtype.itemsize != len(raw) or (not dtype.itemsize and count > _EMPTY_ITEMS_MAX):
            raise MalformedValueError(f"an array of dtype {dtype} and shape {shape} came with {len(raw)} bytes")
        if not len(raw):
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, bytearray(raw))
    except MalformedValueError:
        raise
    except Exception as error:
        raise MalformedValueError(f"bytes that should describe an array do not: {error}") from error


def pack_scalar(scalar: np.generic) -> bytes:
    """Returns a numpy scalar as bytes: its dtype character and its bytes, or "V" and the form of an array.

    Raises:
        UnsupportedPayloadError: the dtype holds Python objects, or cannot be written down.
    """
    char = scalar.dtype.char
    if char in _NUMBER_CHARS:
        return char.encode() + scalar.tobytes()
    # As items of an array, text and bytes would lose the NULs at their end.
    if isinstance(scalar, np.str_):
        return b"U" + scalar.encode("utf-8", "surrogatepass")
    if isinstance(scalar, np.bytes_):
        return b"S" + scalar
    return b"V" + pack_array(np.asarray(scalar))


def unpack_scalar(data: bytes | bytearray | memoryview) -> Any:
    """Returns the scalar of `pack_scalar`, of the same type.

    Raises:
        MalformedValueError: `data` is not what `pack_scalar` writes.
    """
    char, raw = chr(data[0]) if len(data) else "", bytes(data[1:])
    if char == "V":
        array = unpack_array(raw)
        if array.shape:
            raise MalformedValueError(f"a numpy scalar came with the shape {array.shape}")
        return array[()]
    if char == "U":
        return np.str_(raw.decode("utf-8", "surrogatepass"))
    if char == "S":
        return np.bytes_(raw)
    if char not in _NUMBER_CHARS or np.dtype(char).itemsize != len(raw):
        raise MalformedValueError(f"a numpy scalar of dtype {char!r} came with {len(raw)} bytes")
    return np.frombuffer(raw, char)[0]


def _describe_dtype(dtype: np.dtype[Any]) -> Any:
    description = _descriptions.get(dtype)
    if description is not None:
        return description
    if dtype.hasobject:
        raise UnsupportedPayloadError(f"an array of dtype {dtype} holds Python objects, which cannot cross as bytes")
    description = _write_dtype(dtype)
    if _read_dtype(description) != dtype:
        raise UnsupportedPayloadError(f"dtype {dtype!r} is not one of numpy's own and cannot be named in bytes")
    if len(_descriptions) >= _CACHED_DTYPES_MAX:
        _descriptions.clear()
    _descriptions[dtype] = description
    return description


def _write_dtype(dtype: np.dtype[Any]) -> Any:
    """A string; or `[item, shape]` for a subarray; or a map for a record: numpy's own argument forms, written out."""
    if dtype.subdtype is not None:
        item, shape = dtype.subdtype
        return [_write_dtype(item), list(shape)]
    if dtype.names is None:
        return dtype.str
    assert dtype.fields is not None
    fields: list[Any] = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_write_dtype(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
        "is_aligned": dtype.isalignedstruct,
    }


def _read_dtype(description: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any]
    if isinstance(description, str):
        dtype = np.dtype(description)
    elif isinstance(description, list):
        item, shape = description
        dtype = np.dtype((_read_dtype(item), tuple(shape)))
    else:
        is_aligned = bool(description["is_aligned"])
        formats = [_read_dtype(part) for part in description["formats"]]
        record: Any = {**description, "formats": formats}
        del record["is_aligned"]
        dtype = np.dtype(record, align=is_aligned)
    if dtype.hasobject:
        raise MalformedValueError(f"an array of Python objects was announced: {description!r}")
    return dtype
