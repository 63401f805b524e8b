"""A record's tensor on its way into a slot: what kind it is, and what the ring reads it from."""

from __future__ import annotations

import array
from typing import Any

import numpy as np

from undercurrent.errors import UnsupportedPayloadError, ValuePathError
from undercurrent.ipc import register_arrays
from undercurrent.workers import kinds
from undercurrent.workers.arrays import NUMBER_SCALARS, pack_array, pack_scalar
from undercurrent.workers.buffers import pack_typed_array, pack_view
from undercurrent.workers.tensors import TORCH_DTYPES, is_tensor_type, pack_tensor, tensor_dtype
from undercurrent.workers.value_writer import encode_numbers

__all__ = ["describe", "encode_opaque"]

_TORCH = kinds.TORCH
_NUMBERS = (int, float, bool, complex)

# Types whose objects the ring reads itself. numpy's and torch's are added when the first of them comes.
_direct_kinds: dict[type, int] = {
    bytes: kinds.BYTES,
    bytearray: kinds.BYTEARRAY,
    # A header's dtype does not tell `longlong` from the `int64` of the same size, which is another type.
    **dict.fromkeys(NUMBER_SCALARS - {np.longlong, np.ulonglong}, kinds.SCALAR),
}
_direct_dtypes: set[Any] = set()
# One array of each dtype that an array shares with all others of it: no `longlong`, which is `int64` to the ring.
_SAMPLE_CODES = "?bhilBHILefdFD"
_direct_kind_of = _direct_kinds.get


def describe(tensor: Any) -> tuple[int, Any]:
    """Returns `(kind, source)` for a ring: from `OPAQUE_KIND_MIN` on, `source` is bytes for `publish_opaque`.

    Below it the source is the tensor, for `publish`. Where the ring answers UNSUPPORTED (memory that is not contiguous,
    a dtype or more dimensions than a header can tell), `encode_opaque(tensor)` says the same in bytes.

    Called on the engine's thread, once per record.

    Raises:
        UnsupportedPayloadError: a record cannot hold this.
    """
    kind = _direct_kind_of(type(tensor))
    if kind is None:
        return _describe_other(tensor)
    # DLPack calls dtypes of less than a byte what they are padded to, so the ring cannot tell them.
    if kind == _TORCH and tensor.dtype not in _direct_dtypes:
        return kinds.PACKED_TENSOR, pack_tensor(tensor)
    return kind, tensor


def encode_opaque(tensor: Any) -> tuple[int, bytes]:
    """Returns `(kind, bytes)` of any tensor that `describe` accepts.

    Raises:
        UnsupportedPayloadError: a record cannot hold this.
    """
    cls = type(tensor)
    if cls is list or cls is tuple:
        return _encode_sequence(tensor)
    if isinstance(tensor, np.ndarray):
        return _encode_array(tensor)
    if isinstance(tensor, np.generic):
        return kinds.PACKED_SCALAR, pack_scalar(tensor)
    if is_tensor_type(cls):
        return kinds.PACKED_TENSOR, pack_tensor(tensor)
    if cls is memoryview:
        return kinds.PACKED_VIEW, pack_view(tensor)
    if cls is array.array:
        return kinds.PACKED_TYPED_ARRAY, pack_typed_array(tensor)
    if cls is bytearray or cls is bytes:
        # The ring reads these itself; should it refuse one, no other form would fit either.
        raise UnsupportedPayloadError(f"`{cls.__name__}` of {len(tensor)} bytes was refused by the ring")
    if cls in _NUMBERS:
        return kinds.NUMBERS, _encode_numbers(tensor)
    raise UnsupportedPayloadError(
        f"a record's tensor must be a numpy array or scalar, a torch tensor, bytes-like, or numbers in lists and "
        f"tuples, got `{cls.__module__}.{cls.__qualname__}`; convert it before `route()`"
    )


def _describe_other(tensor: Any) -> tuple[int, Any]:
    cls = type(tensor)
    if cls is np.ndarray:
        _admit_numpy()
        return describe(tensor)
    if is_tensor_type(cls):
        _admit_torch(cls)
        return describe(tensor)
    if cls is memoryview:
        kind = kinds.VIEW_KINDS.get(tensor.format.lstrip("@"))
        return encode_opaque(tensor) if kind is None else (kind, tensor)
    if cls is array.array and tensor.typecode in kinds.TYPED_ARRAY_KINDS:
        return kinds.TYPED_ARRAY_KINDS[tensor.typecode], tensor
    if cls is np.memmap:
        # A map of a file is a way to hold an array; a copy of its items is an array.
        return kinds.NUMPY, np.asarray(tensor)
    return encode_opaque(tensor)


def _admit_numpy() -> None:
    # Whatever the answer: an array that the ring cannot read in place, it reads through the buffer protocol.
    register_arrays([np.zeros(2, code) for code in _SAMPLE_CODES])
    _direct_kinds[np.ndarray] = kinds.NUMPY


def _admit_torch(cls: type) -> None:
    # Dtypes first: another thread may call `describe` between the two statements.
    if not _direct_dtypes:
        _direct_dtypes.update(map(tensor_dtype, TORCH_DTYPES.values()))
    _direct_kinds[cls] = _TORCH


def _encode_array(tensor: np.ndarray[Any, Any]) -> tuple[int, bytes]:
    cls = type(tensor)
    if cls is np.ndarray or cls is np.memmap:
        return kinds.PACKED_ARRAY, pack_array(tensor)
    if cls is np.recarray:
        return kinds.PACKED_RECORD_ARRAY, pack_array(np.asarray(tensor))
    raise UnsupportedPayloadError(
        f"`{cls.__module__}.{cls.__qualname__}` is more than the array it is made of; pass `numpy.asarray(tensor)`"
        + (" or `tensor.filled(…)`" if isinstance(tensor, np.ma.MaskedArray) else "")
    )


def _encode_sequence(tensor: list[Any] | tuple[Any, ...]) -> tuple[int, bytes]:
    is_list = type(tensor) is list
    types = set(map(type, tensor))
    if types == {float}:
        return kinds.FLOAT_LIST if is_list else kinds.FLOAT_TUPLE, array.array("d", tensor).tobytes()
    if types == {int}:
        try:
            return kinds.INT_LIST if is_list else kinds.INT_TUPLE, array.array("q", tensor).tobytes()
        except OverflowError:
            pass  # beyond 64 bits; the general form has integers of any size
    return kinds.NUMBERS, _encode_numbers(tensor)


def _encode_numbers(tensor: Any) -> bytes:
    try:
        return encode_numbers(tensor)
    except ValuePathError as error:
        raise UnsupportedPayloadError(
            f"a record's list or tuple must hold numbers only: {error}; pass an array, or its `tolist()`"
        ) from error
