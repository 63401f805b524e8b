"""What a `LocalExecutor` and its processes say to each other, over a private socket pair between two of one owner.

A frame is 8 bytes of length, big-endian, and a pickle. Jobs and answers are pickled again inside it, so that one that
cannot be read fails alone.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import TypeAlias

import msgspec

from undercurrent.runtime.executors.errors import ExecutorError
from undercurrent.runtime.executors.factory import GeneratorFactory
from undercurrent.runtime.executors.host import BatchReport, HostDescription

__all__ = ["Answered", "Ask", "Boot", "Cancel", "Failed", "Finished", "Frame", "Ready", "Stop", "Tokenize", "Tokens"]

FRAME_BYTES_MAX = 1 << 30
_LENGTH_BYTES = 8


class Boot(msgspec.Struct, frozen=True):
    """First, to the process: what it shall be, and whose."""

    factory: GeneratorFactory
    parent_pid: int


class Ready(msgspec.Struct, frozen=True):
    """The generator is there."""

    description: HostDescription


class Failed(msgspec.Struct, frozen=True):
    """No generator could be made, or no tokens told; `error` is packed."""

    error: bytes


class Ask(msgspec.Struct, frozen=True):
    """A `BatchOrder`, pickled."""

    order: bytes


class Answered(msgspec.Struct, frozen=True):
    """The answer to one job, packed."""

    index: int
    answer: bytes


class Finished(msgspec.Struct, frozen=True):
    """The batch is over, answered or cancelled; the next may come."""

    report: BatchReport


class Cancel(msgspec.Struct, frozen=True):
    """Ends the batch at hand; `Finished` comes in any case, once."""


class Tokenize(msgspec.Struct, frozen=True):
    """Asks for the tokens of texts."""

    texts: tuple[str, ...]


class Tokens(msgspec.Struct, frozen=True):
    """Where the tokens of each text begin and end."""

    spans: list[list[tuple[int, int]]]


class Stop(msgspec.Struct, frozen=True):
    """Close the generator and end."""


Frame: TypeAlias = Boot | Ready | Failed | Ask | Answered | Finished | Cancel | Tokenize | Tokens | Stop


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame.

    Raises:
        ExecutorError: it is larger than 1 GiB.
    """
    body = pickle.dumps(frame)
    if len(body) > FRAME_BYTES_MAX:
        raise ExecutorError(f"a frame of at most {FRAME_BYTES_MAX} bytes was expected, got {len(body)}")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """The next frame.

    Raises:
        EOFError, ConnectionError: the other side is gone.
        ExecutorError: these are no frames.
    """
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > FRAME_BYTES_MAX:
        raise ExecutorError(f"a frame of at most {FRAME_BYTES_MAX} bytes was expected, got one of {length}")
    frame: Frame = pickle.loads(await reader.readexactly(length))
    return frame
