"""A slot's bytes as the tensor they were: owned by the probe, or seen in place.

What a header says about its bytes is turned into a builder once per kind, dtype and shape, and kept: the records of a
binding mostly look alike.
"""

from __future__ import annotations

import array
import math
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from undercurrent.core.arrays import as_array
from undercurrent.errors import ProbingValueError
from undercurrent.ipc.layout import HEADER_FIELDS
from undercurrent.workers import kinds
from undercurrent.workers.arrays import unpack_array, unpack_scalar
from undercurrent.workers.buffers import build_view, unpack_typed_array, unpack_view
from undercurrent.workers.references import MalformedValueError
from undercurrent.workers.tensors import TORCH_DTYPES, build_tensor, load_torch, tensor_dtype, unpack_tensor
from undercurrent.workers.value_reader import decode_value

if TYPE_CHECKING:
    from undercurrent.ipc import Batch

__all__ = ["HEADER_DTYPE", "load_libraries", "load_libraries_of", "rebuild", "rebuild_form", "rebuild_form_view"]
__all__ += ["rebuild_view", "stack"]

HEADER_DTYPE = np.dtype(HEADER_FIELDS)
"""One record header of `Batch.headers`, as a numpy record."""

Header: TypeAlias = np.void | bytes
"""An element of `numpy.frombuffer(batch.headers, HEADER_DTYPE)`, or its bytes."""
_Payload: TypeAlias = bytearray | memoryview
_Builder = Callable[[Any], Any]

_PLANS_MAX = 256


def _offset(name: str) -> int:
    assert HEADER_DTYPE.fields is not None
    return int(HEADER_DTYPE.fields[name][1])


_KIND = _offset("kind")
_SHAPE_END = _offset("shape") + 16
# Length, kind, dtype and shape lie side by side: one slice of the header, its form, is the key of a builder.
_FORM = slice(_offset("length"), _SHAPE_END)
_FORM_FORMAT = struct.Struct("<I4B4I")
_KIND_OF_FORM = _KIND - _FORM.start
assert _FORM.stop - _FORM.start == _FORM_FORMAT.size

_DTYPES = {
    **{(0, bits): np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(1, bits): np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(2, bits): np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    **{(5, bits): np.dtype(f"c{bits // 8}") for bits in (64, 128)},
    (6, 8): np.dtype(bool),
}
_BFLOAT16 = (4, 16)
_FLAT_KINDS = {
    kinds.FLOAT_LIST: np.dtype("f8"),
    kinds.FLOAT_TUPLE: np.dtype("f8"),
    kinds.INT_LIST: np.dtype("i8"),
    kinds.INT_TUPLE: np.dtype("i8"),
}
_VIEW_FORMATS = {kind: item_format for item_format, kind in kinds.VIEW_KINDS.items()}
_TYPED_ARRAY_CODES = {kind: code for code, kind in kinds.TYPED_ARRAY_KINDS.items()}

_TORCH_KINDS = frozenset((kinds.TORCH, kinds.PACKED_TENSOR))

_plans: dict[bytes, tuple[int, _Builder]] = {}
_gathers: dict[bytes, tuple[tuple[int, ...], np.dtype[Any], bool] | None] = {}


def load_libraries(headers: bytes) -> None:
    """Imports what rebuilding the records of `Batch.headers` needs, before a probe's time is measured."""
    if "torch" not in sys.modules and not _TORCH_KINDS.isdisjoint(headers[_KIND :: HEADER_DTYPE.itemsize]):
        load_torch()


def load_libraries_of(batch: Batch) -> None:
    """The same for the records of a batch; quick for forms that were met before."""
    form = batch.form
    if form not in _plans and form not in _gathers:
        load_libraries(batch.headers)


def rebuild(header: Header, payload: _Payload) -> Any:
    """Returns the tensor as it was passed to `route()`: equal in type and value, writable where its type is.

    A bytearray is taken over: the caller must not use it afterwards. A memoryview is copied.

    Raises:
        MalformedValueError: header and payload are not what a producer of ours writes.
    """
    return rebuild_form((header if isinstance(header, bytes) else header.tobytes())[_FORM], payload)


def rebuild_form(form: bytes, payload: _Payload) -> Any:
    """`rebuild` of a record whose form is known: see `Batch.facts`."""
    kind = form[_KIND_OF_FORM]
    try:
        if kind >= kinds.OPAQUE_KIND_MIN:
            return _OPAQUE_BUILDERS[kind](payload)
        length, build = _plans.get(form) or _make_plan(form)
        if len(payload) != length:
            raise MalformedValueError(f"a record of {length} bytes came with {len(payload)}")
        return build(payload if type(payload) is bytearray else bytearray(payload))
    except MalformedValueError:
        raise
    except Exception as error:
        raise MalformedValueError(
            f"a record of kind {kind} cannot be rebuilt from its bytes: {type(error).__name__}: {error}"
        ) from error


def rebuild_view(header: Header, view: memoryview) -> Any:
    """Returns a numpy array over `view` itself, read-only as `view` is; for other kinds an owned copy, as `rebuild`.

    Raises:
        MalformedValueError: header and payload are not what a producer of ours writes.
    """
    return rebuild_form_view((header if isinstance(header, bytes) else header.tobytes())[_FORM], view)


def rebuild_form_view(form: bytes, view: memoryview) -> Any:
    """`rebuild_view` of a record whose form is known: see `Batch.facts`."""
    if form[_KIND_OF_FORM] != kinds.NUMPY:
        return rebuild_form(form, view)
    length, build = _plans.get(form) or _make_plan(form)
    if len(view) != length:
        raise MalformedValueError(f"a record of {length} bytes came with {len(view)}")
    return build(view)


def stack(batch: Batch) -> np.ndarray[Any, Any]:
    """Returns all tensors of a batch one behind the other, `(n, *shape)`, C-order and owned.

    One gather when they are alike; bfloat16 is widened to float32, which holds all its values.

    Raises:
        ProbingValueError: the tensors differ in shape, or are of no numbers.
    """
    form = batch.form
    gathered = None if form is None else _gather(form, batch)
    if gathered is not None:
        return gathered
    tensors = [rebuild_form(batch.facts(index)[0], batch.copy(index)) for index in range(len(batch))]
    try:
        return np.stack([as_array(tensor) for tensor in tensors])
    except (ValueError, TypeError) as error:
        raise ProbingValueError(
            f"`stack` needs tensors of one shape: {error}; go through the records instead"
        ) from None


def _gather(form: bytes, batch: Batch) -> np.ndarray[Any, Any] | None:
    """Copies all payloads in one call; None where the kind is not made of plain items."""
    plan = _gathers[form] if form in _gathers else _plan_gather(form)
    if plan is None:
        return None
    shape, dtype, is_widened = plan
    stacked: np.ndarray[Any, Any] = np.empty((len(batch), *shape), dtype)
    batch.gather(stacked)
    return np.left_shift(stacked, 16, dtype=np.uint32).view(np.float32) if is_widened else stacked


def _plan_gather(form: bytes) -> tuple[tuple[int, ...], np.dtype[Any], bool] | None:
    """Shape and dtype of one record's items, and whether they are the upper halves of float32."""
    length, kind, code_and_bits, shape = _split(form)
    flat = _FLAT_KINDS.get(kind)
    if flat is not None:
        shape = (length // flat.itemsize,)
    is_widened = kind == kinds.TORCH and code_and_bits == _BFLOAT16
    is_plain = kind in (kinds.NUMPY, kinds.TORCH, kinds.SCALAR)
    dtype = np.dtype(np.uint16) if is_widened else flat or (_DTYPES.get(code_and_bits) if is_plain else None)
    if dtype is not None and math.prod(shape) * dtype.itemsize != length:
        raise MalformedValueError(f"records of dtype {dtype} and shape {shape} came with {length} bytes each")
    if len(_gathers) >= _PLANS_MAX:
        _gathers.clear()
    plan = _gathers[form] = None if dtype is None else (shape, dtype, is_widened)
    return plan


def _make_plan(form: bytes) -> tuple[int, _Builder]:
    plan = int.from_bytes(form[:4], "little"), _builder(form)
    if len(_plans) >= _PLANS_MAX:
        _plans.clear()
    _plans[form] = plan
    return plan


def _builder(form: bytes) -> _Builder:
    length, kind, code_and_bits, shape = _split(form)
    if kind == kinds.BYTES:
        return bytes
    if kind == kinds.BYTEARRAY:
        return bytearray
    if kind in _TYPED_ARRAY_CODES:
        return partial(_build_typed_array, _TYPED_ARRAY_CODES[kind])
    if kind in _VIEW_FORMATS:
        return partial(build_view, _VIEW_FORMATS[kind], shape)
    dtype: Any
    if kind == kinds.TORCH:
        dtype = _torch_dtype(code_and_bits)
    elif kind in (kinds.NUMPY, kinds.SCALAR):
        dtype = _numpy_dtype(code_and_bits)
    else:
        raise MalformedValueError(f"a record is of the unknown kind {kind}")
    if math.prod(shape) * dtype.itemsize != length:
        raise MalformedValueError(f"a record of dtype {dtype} and shape {shape} takes no {length} bytes")
    if kind == kinds.TORCH:
        return partial(build_tensor, dtype, shape)
    if kind == kinds.SCALAR:
        return lambda payload: np.ndarray(shape, dtype, payload)[()]
    if not length:
        return lambda _: np.empty(shape, dtype)
    return lambda payload: np.ndarray(shape, dtype, payload)


def _split(form: bytes) -> tuple[int, int, tuple[int, int], tuple[int, ...]]:
    length, kind, code, bits, ndim, *dims = _FORM_FORMAT.unpack(form)
    if ndim > len(dims):
        raise MalformedValueError(f"a record of {ndim} dimensions was announced, a header has room for {len(dims)}")
    return length, kind, (code, bits), tuple(dims[:ndim])


def _numpy_dtype(code_and_bits: tuple[int, int]) -> np.dtype[Any]:
    dtype = _DTYPES.get(code_and_bits)
    if dtype is None:
        raise MalformedValueError(f"numpy has no dtype for type code {code_and_bits[0]} of {code_and_bits[1]} bits")
    return dtype


def _torch_dtype(code_and_bits: tuple[int, int]) -> Any:
    name = TORCH_DTYPES.get(code_and_bits)
    if name is None:
        raise MalformedValueError(f"torch has no dtype for type code {code_and_bits[0]} of {code_and_bits[1]} bits")
    return tensor_dtype(name)


def _build_typed_array(typecode: str, payload: _Payload) -> array.array[Any]:
    value = array.array(typecode)
    value.frombytes(payload)
    return value


def _build_list(typecode: str, payload: _Payload) -> list[Any]:
    return _build_typed_array(typecode, payload).tolist()


def _build_tuple(typecode: str, payload: _Payload) -> tuple[Any, ...]:
    return tuple(_build_list(typecode, payload))


_OPAQUE_BUILDERS: dict[int, _Builder] = {
    kinds.NUMBERS: partial(decode_value, pickle_allowed=False),
    kinds.FLOAT_LIST: partial(_build_list, "d"),
    kinds.FLOAT_TUPLE: partial(_build_tuple, "d"),
    kinds.INT_LIST: partial(_build_list, "q"),
    kinds.INT_TUPLE: partial(_build_tuple, "q"),
    kinds.PACKED_ARRAY: unpack_array,
    kinds.PACKED_RECORD_ARRAY: lambda payload: unpack_array(payload).view(np.recarray),
    kinds.PACKED_SCALAR: unpack_scalar,
    kinds.PACKED_TENSOR: unpack_tensor,
    kinds.PACKED_VIEW: unpack_view,
    kinds.PACKED_TYPED_ARRAY: unpack_typed_array,
}
