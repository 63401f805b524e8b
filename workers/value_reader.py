"""Bytes as values: the other end of `value_writer`.

Nothing read is trusted: sizes and depth have limits, a class is only looked up where it may be, and what does not fit
is a `MalformedValueError`. Pickle is opened only for a caller that says so.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import pickle
import struct
import zoneinfo
from collections.abc import Callable
from typing import Any

import msgspec

from undercurrent.spec import FrozenArgs
from undercurrent.workers import value_codes as codes
from undercurrent.workers.arrays import unpack_array, unpack_scalar
from undercurrent.workers.buffers import unpack_typed_array, unpack_view
from undercurrent.workers.references import MalformedValueError, find_class, is_rebuilt_by_fields
from undercurrent.workers.tensors import unpack_tensor

__all__ = ["decode_value"]

_CACHED_CLASSES_MAX = 256

_decode: Callable[..., Any] = msgspec.msgpack.decode


def decode_value(data: bytes | bytearray | memoryview, *, pickle_allowed: bool) -> Any:
    """Returns the value that `encode_value` wrote; it shares no memory with `data`.

    With `pickle_allowed` a class may be imported and pickled parts are opened: both run code that `data` chooses.
    Without it a class must belong to a module that is imported here already, and pickled parts are refused.

    Raises:
        MalformedValueError: `data` is no value, or needs a class that cannot be had here.
    """
    if len(data) > codes.VALUE_BYTES_MAX:
        raise MalformedValueError(f"a value takes {len(data)} bytes, the limit is {codes.VALUE_BYTES_MAX}")
    try:
        return _Reader(is_pickle_allowed=pickle_allowed).read(data)
    except MalformedValueError:
        raise
    except Exception as error:
        # RecursionError and MemoryError too: plain lists nested without end are met inside the msgpack decoder.
        raise MalformedValueError(f"bytes that should hold a value do not: {type(error).__name__}: {error}") from error


class _Reader:
    """Reads one value. Used once; counts the depth of extensions."""

    __slots__ = ("_depth", "is_pickle_allowed")

    def __init__(self, *, is_pickle_allowed: bool) -> None:
        self.is_pickle_allowed = is_pickle_allowed
        self._depth = 0

    def read(self, data: bytes | bytearray | memoryview) -> Any:
        return _decode(data, ext_hook=self._read_extension)

    def find(self, module: Any, qualname: Any) -> Any:
        if not isinstance(module, str) or not isinstance(qualname, str):
            raise MalformedValueError(f"a class was named by {module!r} and {qualname!r}")
        return find_class(module, qualname, is_import_allowed=self.is_pickle_allowed)

    def _read_extension(self, code: int, data: memoryview) -> Any:
        handler = _HANDLERS.get(code)
        if handler is None:
            raise MalformedValueError(f"a value uses the unknown extension {code}")
        self._depth += 1
        if self._depth > codes.DEPTH_MAX + 1:
            raise MalformedValueError(f"a value is nested deeper than {codes.DEPTH_MAX} levels")
        value = handler(self, data)
        self._depth -= 1
        return value


_Handler = Callable[[_Reader, memoryview], Any]


def _read_dict(reader: _Reader, data: memoryview) -> dict[Any, Any]:
    flat = reader.read(data)
    if len(flat) % 2:
        raise MalformedValueError(f"a dict came with {len(flat)} keys and values")
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _read_datetime(reader: _Reader, data: memoryview) -> datetime.datetime:
    (year, month, day, hour, minute, second, microsecond), fold, zone = reader.read(data)
    return datetime.datetime(year, month, day, hour, minute, second, microsecond, _read_zone(zone), fold=fold)


def _read_time(reader: _Reader, data: memoryview) -> datetime.time:
    (hour, minute, second, microsecond), fold, zone = reader.read(data)
    return datetime.time(hour, minute, second, microsecond, _read_zone(zone), fold=fold)


def _read_zone(zone: Any) -> datetime.tzinfo | None:
    if zone is None:
        return None
    if isinstance(zone, str):
        return zoneinfo.ZoneInfo(zone)
    offset_us, name = zone
    offset = datetime.timedelta(microseconds=offset_us)
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)


def _read_timedelta(reader: _Reader, data: memoryview) -> datetime.timedelta:
    days, seconds, microseconds = reader.read(data)
    return datetime.timedelta(days, seconds, microseconds)


def _read_enum(reader: _Reader, data: memoryview) -> enum.Enum:
    module, qualname, member = reader.read(data)
    cls = reader.find(module, qualname)
    if not issubclass(cls, enum.Enum):
        raise MalformedValueError(f"`{module}.{qualname}` is no enum")
    found: enum.Enum | None
    if isinstance(member, list):
        found = cls.__members__.get(member[0])
    elif issubclass(cls, enum.Flag) and type(member) is int:
        found = cls(member)
    else:
        found = None
    if found is None:
        raise MalformedValueError(f"enum `{module}.{qualname}` has no member {member!r}")
    return found


def _read_dataclass(reader: _Reader, data: memoryview) -> Any:
    module, qualname, fields = reader.read(data)
    cls = reader.find(module, qualname)
    _check_names(cls, fields, _dataclass_fields(cls))
    value = object.__new__(cls)
    for name, item in fields.items():
        # Frozen dataclasses refuse the ordinary assignment.
        object.__setattr__(value, name, item)
    return value


@functools.lru_cache(maxsize=_CACHED_CLASSES_MAX)
def _dataclass_fields(cls: type) -> frozenset[str]:
    if not is_rebuilt_by_fields(cls):
        raise MalformedValueError(f"`{cls.__module__}.{cls.__qualname__}` is no dataclass that its fields rebuild")
    return frozenset(field.name for field in dataclasses.fields(cls))


def _read_own(reader: _Reader, data: memoryview) -> Any:
    place, items = reader.read(data)
    cls = codes.OWN_CLASSES[place]
    value = object.__new__(cls)
    for name, item in zip(_OWN_FIELDS[place], items, strict=True):
        object.__setattr__(value, name, item)
    return value


_OWN_FIELDS = tuple(tuple(field.name for field in dataclasses.fields(cls)) for cls in codes.OWN_CLASSES)


def _read_struct(reader: _Reader, data: memoryview) -> msgspec.Struct:
    module, qualname, fields = reader.read(data)
    cls = reader.find(module, qualname)
    if not issubclass(cls, msgspec.Struct):
        raise MalformedValueError(f"`{module}.{qualname}` is no msgspec Struct")
    _check_names(cls, fields, frozenset(cls.__struct_fields__))
    value: msgspec.Struct = cls(**fields)
    return value


def _check_names(cls: type, fields: Any, known: frozenset[str]) -> None:
    if not isinstance(fields, dict) or not fields.keys() <= known:
        unknown = sorted(map(str, set(fields) - known))
        raise MalformedValueError(f"class `{cls.__qualname__}` has no fields {', '.join(unknown)} in this process")


def _read_named_tuple(reader: _Reader, data: memoryview) -> Any:
    module, qualname, items = reader.read(data)
    cls = reader.find(module, qualname)
    if not issubclass(cls, tuple) or not hasattr(cls, "_fields") or len(cls._fields) != len(items):
        raise MalformedValueError(f"`{module}.{qualname}` is no named tuple of {len(items)} fields")
    return tuple.__new__(cls, items)


def _read_pickled(reader: _Reader, data: memoryview) -> Any:
    if not reader.is_pickle_allowed:
        raise MalformedValueError("a value holds a pickled part, and pickle is not opened here")
    return pickle.loads(data)


def _read_complex(reader: _Reader, data: memoryview) -> complex:
    return complex(*struct.unpack("<dd", data))


_HANDLERS: dict[int, _Handler] = {
    codes.BIG_INT: lambda _, data: int.from_bytes(data, "little", signed=True),
    codes.TUPLE: lambda reader, data: tuple(reader.read(data)),
    codes.SET: lambda reader, data: set(reader.read(data)),
    codes.FROZENSET: lambda reader, data: frozenset(reader.read(data)),
    codes.DICT: _read_dict,
    codes.COMPLEX: _read_complex,
    codes.TEXT: lambda _, data: bytes(data).decode("utf-8", "surrogatepass"),
    codes.DATETIME: _read_datetime,
    codes.DATE: lambda reader, data: datetime.date.fromordinal(reader.read(data)),
    codes.TIME: _read_time,
    codes.TIMEDELTA: _read_timedelta,
    codes.ENUM: _read_enum,
    codes.DATACLASS: _read_dataclass,
    codes.STRUCT: _read_struct,
    codes.NAMED_TUPLE: _read_named_tuple,
    codes.FROZEN_ARGS: lambda reader, data: FrozenArgs(reader.read(data)),
    codes.BYTEARRAY: lambda _, data: bytearray(data),
    codes.MEMORYVIEW: lambda _, data: unpack_view(data),
    codes.TYPED_ARRAY: lambda _, data: unpack_typed_array(data),
    codes.ARRAY: lambda _, data: unpack_array(data),
    codes.SCALAR: lambda _, data: unpack_scalar(data),
    codes.TENSOR: lambda _, data: unpack_tensor(data),
    codes.PICKLED: _read_pickled,
    codes.OWN: _read_own,
}
