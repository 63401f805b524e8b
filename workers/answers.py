"""What a guard says about one record, as the bytes of an answer cell: a kind, and how to read the rest.

Signals of plain values take one msgpack call each way; all others cross as values do. Nothing that is read is trusted.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from undercurrent.core import ProbeAction, ProbeSignal
from undercurrent.errors import ValuePathError
from undercurrent.workers.frames import MalformedValueError, decode_value, encode_value
from undercurrent.workers.value_codes import PLAIN_TYPES, are_plain

__all__ = ["ELSEWHERE", "ERROR", "decode_answer", "decode_error", "encode_answer", "encode_error"]

NOTHING: Final = 0
"""The probe returned None."""
PLAIN: Final = 1
"""A signal whose fields are plain values: action, confidence, timestamp, metadata."""
VALUE: Final = 2
"""Anything else, as `encode_value` writes it."""
ELSEWHERE: Final = 3
"""The answer is longer than a cell and comes as a frame on the lane's socket."""
ERROR: Final = 4
"""The probe raised: the name of the type, and the message."""

_ERROR_CHARS_MAX = 160
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode_answer(signal: object) -> tuple[int, bytes]:
    """Returns kind and bytes of what a probe returned.

    Raises:
        ValuePathError: a value in it cannot cross.
    """
    if signal is None:
        return NOTHING, b""
    if type(signal) is ProbeSignal and _is_plain(signal):
        try:
            return PLAIN, _encode(
                (signal.action.value, signal.confidence, signal.timestamp, list(signal.metadata.items()))
            )
        except (OverflowError, UnicodeEncodeError):  # an integer of more than 64 bits, half a surrogate pair
            pass
    return VALUE, encode_value(signal, pickle_allowed=True)


def decode_answer(kind: int, data: bytes) -> Any:
    """Returns what the probe returned.

    Raises:
        MalformedValueError: the bytes are not what `encode_answer` writes.
    """
    if kind == NOTHING:
        return None
    try:
        if kind == VALUE:
            return decode_value(data, pickle_allowed=True)
        if kind == PLAIN:
            word, confidence, timestamp, items = _decode(data)
            return ProbeSignal(ProbeAction(word), dict(items), confidence, timestamp)
    except MalformedValueError:
        raise
    except Exception as error:  # whatever nonsense makes of constructors
        raise MalformedValueError(
            f"an answer of kind {kind} cannot be read: {type(error).__name__}: {error}"
        ) from error
    raise MalformedValueError(f"an answer is of the unknown kind {kind}")


def encode_error(error: BaseException) -> bytes:
    """Returns the bytes of an answer of kind `ERROR`; a long message is cut, so that it fits every cell."""
    message = ("its signal cannot cross to the engine: " if isinstance(error, ValuePathError) else "") + str(error)
    name = type(error).__name__[:_ERROR_CHARS_MAX]
    return _encode((name, message[:_ERROR_CHARS_MAX].encode("utf-8", "replace").decode()))


def decode_error(data: bytes) -> tuple[str, str]:
    """Returns type name and message of an answer of kind `ERROR`; of nonsense, a description."""
    try:
        name, message = _decode(data)
        return str(name), str(message)
    except Exception as error:
        return "MalformedValueError", f"the error of a guard cannot be read: {error}"


def _is_plain(signal: ProbeSignal) -> bool:
    if type(signal.confidence) not in PLAIN_TYPES or type(signal.timestamp) is not float:
        return False
    return type(signal.metadata) is dict and are_plain(signal.metadata.items())
