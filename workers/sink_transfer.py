"""How a sink handle gets into the workers: by reference where its class and redaction are found there, else by value.

What cannot travel is no error: such a sink is called in the process that attached it, as any other object is.
"""

from __future__ import annotations

import io
import logging
import pickle
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import cloudpickle
import msgspec

from undercurrent.workers.transfer import is_found_by_worker

_logger = logging.getLogger("undercurrent.workers")


def pack_handle(sink: object) -> bytes | None:
    """Returns a sink that travels as bytes, or None for one that is to be called where it was attached.

    A class says so itself: a class derived from a handle may keep what its base's pickle does not carry.
    """
    if not vars(type(sink)).get("travels", False):
        return None
    buffer = io.BytesIO()
    try:
        _HandlePickler(buffer).dump(sink)
    except Exception as error:
        _logger.info("sink %s is called in this process, since it cannot travel: %s", type(sink).__name__, error)
        return None
    return buffer.getvalue()


def join_handles(packed: Sequence[bytes]) -> bytes:
    """Returns what several handles travel as."""
    return msgspec.msgpack.encode(list(packed)) if packed else b""


def unpack_handles(data: bytes) -> list[Any]:
    """Returns the handles of `join_handles` in the worker; one that cannot be made here is logged and left out."""
    sinks = []
    for packed in msgspec.msgpack.decode(data, type=list[bytes]) if data else []:
        try:
            sinks.append(pickle.loads(packed))
        except Exception:
            _logger.exception("a sink could not be made in this worker; its records are not written here")
    return sinks


class _HandlePickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    """Refuses references that lead to nothing, or to something else, in the worker."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        is_reference = reduced is NotImplemented and isinstance(obj, (type, FunctionType))
        if is_reference and obj.__module__ not in sys.stdlib_module_names and not is_found_by_worker(obj):
            raise pickle.PicklingError(f"`{obj.__module__}.{obj.__qualname__}` is not found in a worker")
        return reduced
