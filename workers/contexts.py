"""A request's context on its way to its probes; every registration sends one."""

from __future__ import annotations

import msgspec

from undercurrent.core import RequestContext
from undercurrent.workers.frames import decode_value, encode_value
from undercurrent.workers.value_codes import are_plain

__all__ = ["decode_context", "encode_context"]

_encode = msgspec.msgpack.Encoder().encode


def encode_context(request_id: str, context: RequestContext) -> bytes:
    """Returns `context` as bytes: the prompt's metadata alone, where they are plain values and nothing else is said.

    Raises:
        ValuePathError: a value in it cannot cross.
    """
    metadata = context.prompt_metadata
    is_bare = context.extraction_point_config is None and context.request_id == request_id and type(metadata) is dict
    if is_bare and are_plain(metadata.items()):
        try:
            return _encode(metadata)
        except (OverflowError, UnicodeEncodeError):  # an integer of over 64 bits, half a surrogate pair
            pass
    return encode_value(context, pickle_allowed=True)


def decode_context(request_id: str, data: bytes, *, pickle_allowed: bool) -> RequestContext:
    """Returns what `encode_context` was given.

    Raises:
        MalformedValueError: the bytes are no context.
    """
    value = decode_value(data, pickle_allowed=pickle_allowed)
    context: RequestContext = RequestContext(request_id, value, None) if type(value) is dict else value
    return context
