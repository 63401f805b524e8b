"""Values as bytes: verdicts, metadata and contexts on their way to another process.

A value is brought down to what msgpack knows, and everything else to an extension of `value_codes`. Containers of plain
items are handed to the encoder as they are, so the common small verdict costs one look at the types of its items.
"""

from __future__ import annotations

import array
import dataclasses
import datetime
import enum
import struct
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import msgspec
import numpy as np

from undercurrent.errors import UnsupportedPayloadError, ValuePathError
from undercurrent.spec import FrozenArgs
from undercurrent.workers import value_codes as codes
from undercurrent.workers.arrays import NUMBER_SCALARS, pack_array, pack_scalar
from undercurrent.workers.buffers import pack_typed_array, pack_view
from undercurrent.workers.references import is_rebuilt_by_fields, reference_to
from undercurrent.workers.tensors import is_tensor_type, pack_tensor

__all__ = ["encode_numbers", "encode_value"]

_Ext = msgspec.msgpack.Ext
_encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_CACHED_CLASSES_MAX = 1024

_NUMBER_TYPES: frozenset[type] = frozenset({bool, int, float})
# Types that stay plain when some int or text of the value turned out not to fit.
_CAREFUL = frozenset({int, str})
_TEXT_ONLY = frozenset({str})


class _Refused(Exception):
    """This item cannot cross; the message says why. Where it lies is found afterwards."""


class _TooMuch(Exception):
    """The value as a whole exceeds a limit."""


class _Writer:
    """Brings one value down to msgpack. Used once; counts depth and items."""

    __slots__ = ("_depth", "_handlers", "_is_pickle_allowed", "_nodes_left", "_plain")

    def __init__(
        self, *, is_pickle_allowed: bool, is_careful: bool, plain: frozenset[type] = codes.PLAIN_TYPES
    ) -> None:
        self._is_pickle_allowed = is_pickle_allowed
        self._plain = plain - _CAREFUL if is_careful else plain
        self._handlers = _NUMBER_HANDLERS if plain is _NUMBER_TYPES else _HANDLERS
        self._depth = 0
        self._nodes_left = codes.NODES_MAX

    def lower(self, value: Any) -> Any:
        kind = type(value)
        if kind in self._plain:
            return value
        handler = self._handlers.get(kind)
        if handler is None:
            if self._handlers is _NUMBER_HANDLERS:
                raise _Refused(f"`{kind.__qualname__}` is no number")
            handler = _handler_for(kind)
        return handler(self, value)

    def lower_list(self, value: list[Any]) -> list[Any]:
        self._enter(len(value))
        if set(map(type, value)) <= self._plain:
            lowered = value
        else:
            lower = self.lower
            lowered = [lower(item) for item in value]
        self._depth -= 1
        return lowered

    def lower_items(self, code: int, value: Any) -> msgspec.msgpack.Ext:
        return _Ext(code, _encode(self.lower_list(list(value))))

    def lower_dict(self, value: dict[Any, Any]) -> Any:
        self._enter(len(value))
        plain = self._plain
        lowered: Any
        if not (set(map(type, value)) <= _TEXT_ONLY and (str in plain or not value)):
            lowered = _Ext(codes.DICT, _encode([self.lower(part) for item in value.items() for part in item]))
        elif set(map(type, value.values())) <= plain:
            lowered = value
        else:
            lower = self.lower
            lowered = {key: lower(item) for key, item in value.items()}
        self._depth -= 1
        return lowered

    def lower_fields(self, code: int, value: Any, reference: tuple[str, str], names: tuple[str, ...]) -> Any:
        self._enter(len(names))
        lower = self.lower
        try:
            fields = {name: lower(getattr(value, name)) for name in names}
        except AttributeError:
            # A slot may be empty: a field without a default and `init=False` has no value until it is set.
            fields = {name: lower(getattr(value, name)) for name in names if hasattr(value, name)}
        self._depth -= 1
        return _Ext(code, _encode((*reference, fields)))

    def pickle(self, value: Any, why: str) -> msgspec.msgpack.Ext:
        if not self._is_pickle_allowed:
            raise _Refused(why)
        try:
            return _Ext(codes.PICKLED, cloudpickle.dumps(value))
        except Exception as error:
            raise _Refused(f"{why}, and pickling it failed ({type(error).__name__}: {error})") from error

    def _enter(self, size: int) -> None:
        self._depth += 1
        self._nodes_left -= size
        if self._depth > codes.DEPTH_MAX:
            raise _TooMuch(f"is nested deeper than {codes.DEPTH_MAX} levels, or contains itself")
        if self._nodes_left < 0:
            raise _TooMuch(f"has more than {codes.NODES_MAX} items")


_Handler = Callable[[_Writer, Any], Any]


def encode_value(value: Any, *, pickle_allowed: bool) -> bytes:
    """Returns `value` as bytes that `decode_value` turns into an equal value of the same kind.

    What has no form of its own is pickled, if `pickle_allowed`.

    Raises:
        ValuePathError: a part cannot cross; the message names its path, as in `$.metadata['x'][3]`.
    """
    return _encode_within(value, codes.PLAIN_TYPES, is_pickle_allowed=pickle_allowed)


def encode_numbers(value: Any) -> bytes:
    """Does the same for numbers in lists and tuples, nested and ragged; nothing else is accepted.

    Raises:
        ValuePathError: something in `value` is no number.
    """
    return _encode_within(value, _NUMBER_TYPES, is_pickle_allowed=False)


def _encode_within(value: Any, plain: frozenset[type], *, is_pickle_allowed: bool) -> bytes:
    try:
        try:
            writer = _Writer(is_pickle_allowed=is_pickle_allowed, is_careful=False, plain=plain)
            data = _encode(writer.lower(value))
        except (OverflowError, UnicodeEncodeError):
            # An int beyond 64 bits or text that is no UTF-8, deep in a container that was not looked into.
            writer = _Writer(is_pickle_allowed=is_pickle_allowed, is_careful=True, plain=plain)
            data = _encode(writer.lower(value))
    except _Refused as refused:
        path, reason = _locate(value, plain, str(refused), is_pickle_allowed=is_pickle_allowed)
        raise ValuePathError(f"the value at {path} cannot cross to another process: {reason}") from refused
    except _TooMuch as too_much:
        raise ValuePathError(f"the value at $ cannot cross to another process: it {too_much}") from too_much
    except (OverflowError, RecursionError, MemoryError) as error:
        raise ValuePathError(
            f"the value at $ cannot cross to another process: {type(error).__name__}: {error}"
        ) from error
    if len(data) > codes.VALUE_BYTES_MAX:
        raise ValuePathError(
            f"the value at $ cannot cross to another process: it takes {len(data)} bytes, the limit is "
            f"{codes.VALUE_BYTES_MAX}"
        )
    return data


def _locate(value: Any, plain: frozenset[type], reason: str, *, is_pickle_allowed: bool) -> tuple[str, str]:
    """Finds the innermost part that is refused, and why: parts are tried on their own, one level at a time."""
    path = "$"
    for _ in range(codes.DEPTH_MAX):
        for step, part in _parts(value):
            try:
                _Writer(is_pickle_allowed=is_pickle_allowed, is_careful=True, plain=plain).lower(part)
            except _Refused as refused:
                path, value, reason = path + step, part, str(refused)
                break
        else:
            break
    return path, reason


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts a value is made of, each with its step of the path."""
    if isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", None)
        names = [f".{name}" for name in fields] if fields else [f"[{index}]" for index in range(len(value))]
        yield from zip(names, value, strict=True)
    elif isinstance(value, (dict, FrozenArgs)):
        for key, item in value.items():
            yield f"[{key!r}]", item
            yield f" (key {key!r})", key
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{{{item!r}}}", item) for item in value)
    elif dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        for name in _field_names(type(value)):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _field_names(cls: type) -> tuple[str, ...]:
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    fields: tuple[Any, ...] = dataclasses.fields(cls)  # type: ignore[arg-type]
    return tuple(field.name for field in fields)


def _handler_for(kind: type) -> _Handler:
    """Chooses how instances of `kind` cross, once per class.

    The choice is kept, in a table of bounded size: programs that make classes without end must not fill memory.
    """
    handler = _choose_handler(kind)
    if len(_HANDLERS) >= _CACHED_CLASSES_MAX:
        for known in list(_HANDLERS)[_FIXED_HANDLERS:]:
            _HANDLERS.pop(known, None)
    _HANDLERS[kind] = handler
    return handler


def _choose_handler(kind: type) -> _Handler:
    if issubclass(kind, np.generic):
        return _lower_scalar
    if is_tensor_type(kind):
        return _lower_tensor
    if not _has_form(kind):
        return _pickler(kind, "has no form of its own")
    reference = reference_to(kind)
    if reference is None:
        return _pickler(kind, "cannot be found by name in another process; define it at the top level of a module")
    if issubclass(kind, enum.Enum):
        return _enum_handler(reference)
    if issubclass(kind, tuple):
        return lambda writer, value: _Ext(codes.NAMED_TUPLE, _encode((*reference, writer.lower_list(list(value)))))
    return _fields_handler(codes.STRUCT if issubclass(kind, msgspec.Struct) else codes.DATACLASS, reference, kind)


def _has_form(kind: type) -> bool:
    if issubclass(kind, tuple):
        # A named tuple with a `__new__` or attributes of its own is more than its fields.
        return kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and hasattr(kind, "_make")
    return issubclass(kind, (enum.Enum, msgspec.Struct)) or is_rebuilt_by_fields(kind)


def _pickler(kind: type, why: str) -> _Handler:
    sentence = f"class `{kind.__module__}.{kind.__qualname__}` {why}"
    return lambda writer, value: writer.pickle(value, sentence)


def _enum_handler(reference: tuple[str, str]) -> _Handler:
    def lower(writer: _Writer, member: enum.Enum) -> msgspec.msgpack.Ext:
        # A combination of flags has no name of its own in every Python version; its value is a number.
        if isinstance(member, enum.Flag):
            return _Ext(codes.ENUM, _encode((*reference, writer.lower(member.value))))
        return _Ext(codes.ENUM, _encode((*reference, [member.name])))

    return lower


def _fields_handler(code: int, reference: tuple[str, str], kind: type) -> _Handler:
    names = _field_names(kind)

    return lambda writer, value: writer.lower_fields(code, value, reference, names)


def _own_handler(place: int, kind: type) -> _Handler:
    names = _field_names(kind)
    by_name = _fields_handler(codes.DATACLASS, (kind.__module__, kind.__qualname__), kind)

    def lower(writer: _Writer, value: Any) -> Any:
        try:
            items = [getattr(value, name) for name in names]
        except AttributeError:  # a deleted field
            return by_name(writer, value)
        return _Ext(codes.OWN, _encode([place, writer.lower_list(items)]))

    return lower


def _lower_int(writer: _Writer, value: int) -> Any:
    if _INT_MIN <= value <= _INT_MAX:
        return value
    return _Ext(codes.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _lower_text(writer: _Writer, value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return _Ext(codes.TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _lower_datetime(writer: _Writer, value: datetime.datetime) -> msgspec.msgpack.Ext:
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return _Ext(codes.DATETIME, _encode((parts, value.fold, _lower_zone(value.tzinfo))))


def _lower_time(writer: _Writer, value: datetime.time) -> msgspec.msgpack.Ext:
    parts = (value.hour, value.minute, value.second, value.microsecond)
    return _Ext(codes.TIME, _encode((parts, value.fold, _lower_zone(value.tzinfo))))


def _lower_zone(zone: datetime.tzinfo | None) -> Any:
    """None, the key of a zone of the tz database, or `[microseconds from UTC, name or None]`."""
    if zone is None:
        return None
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return zone.key
    if type(zone) is not datetime.timezone:
        raise _Refused(f"time zone {zone!r} is neither a `datetime.timezone` nor a `zoneinfo.ZoneInfo` with a key")
    offset = zone.utcoffset(None)
    name = zone.tzname(None)
    is_named = name != datetime.timezone(offset).tzname(None)
    return [offset // datetime.timedelta(microseconds=1), name if is_named else None]


def _lower_array(writer: _Writer, value: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext:
    if value.dtype.hasobject:
        return writer.pickle(value, f"an array of dtype {value.dtype} holds Python objects")
    try:
        return _Ext(codes.ARRAY, pack_array(value))
    except UnsupportedPayloadError as error:
        return writer.pickle(value, str(error))


def _lower_scalar(writer: _Writer, value: np.generic) -> msgspec.msgpack.Ext:
    try:
        return _Ext(codes.SCALAR, pack_scalar(value))
    except UnsupportedPayloadError as error:
        return writer.pickle(value, str(error))


def _lower_tensor(writer: _Writer, value: Any) -> msgspec.msgpack.Ext:
    try:
        return _Ext(codes.TENSOR, pack_tensor(value))
    except UnsupportedPayloadError as error:
        return writer.pickle(value, str(error))


def _packed(code: int, pack: Callable[[Any], bytes]) -> _Handler:
    return lambda writer, value: _Ext(code, pack(value))


def _items(code: int) -> _Handler:
    return lambda writer, value: writer.lower_items(code, value)


_NUMBER_HANDLERS: dict[type, _Handler] = {
    int: _lower_int,
    list: _Writer.lower_list,
    tuple: _items(codes.TUPLE),
    complex: _packed(codes.COMPLEX, lambda value: struct.pack("<dd", value.real, value.imag)),
    **dict.fromkeys(NUMBER_SCALARS, _lower_scalar),
}
_HANDLERS: dict[type, _Handler] = {
    **_NUMBER_HANDLERS,
    str: _lower_text,
    dict: _Writer.lower_dict,
    set: _items(codes.SET),
    frozenset: _items(codes.FROZENSET),
    datetime.datetime: _lower_datetime,
    datetime.date: _packed(codes.DATE, lambda value: _encode(value.toordinal())),
    datetime.time: _lower_time,
    datetime.timedelta: _packed(
        codes.TIMEDELTA, lambda value: _encode((value.days, value.seconds, value.microseconds))
    ),
    FrozenArgs: lambda writer, value: _Ext(codes.FROZEN_ARGS, _encode(writer.lower(dict(value)))),
    bytearray: _packed(codes.BYTEARRAY, bytes),
    memoryview: _packed(codes.MEMORYVIEW, pack_view),
    array.array: _packed(codes.TYPED_ARRAY, pack_typed_array),
    np.ndarray: _lower_array,
    **{kind: _own_handler(place, kind) for place, kind in enumerate(codes.OWN_CLASSES)},
}
_FIXED_HANDLERS = len(_HANDLERS)
