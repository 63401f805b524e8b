"""A lane's socket as a stream of frames, non-blocking on both sides.

Both ends use it: the engine (several threads may send, the supervisor's thread reads) and the worker (one thread).
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from undercurrent.errors import WorkerError
from undercurrent.workers.messages import Frame, encode_frame

FRAME_BYTES_MAX = 256 * 1024 * 1024
"""A longer frame is nonsense: the largest honest one carries a verdict or a probe's weights."""
_READ_BYTES = 256 * 1024

FrameT = TypeVar("FrameT")


class ChannelClosedError(WorkerError):
    """The peer closed its end, or this end was closed."""


class ChannelCorruptError(WorkerError):
    """The peer sent bytes that are no frame."""


class Channel(Generic[FrameT]):
    """One end of a lane's socket pair. `close()` is idempotent; the channel owns the socket."""

    def __init__(self, sock: socket.socket, decoder: msgspec.msgpack.Decoder[FrameT]) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._decoder = decoder
        self._lock = threading.Lock()
        self._outbox: deque[memoryview] = deque()  # guarded by _lock
        self._received = bytearray()
        self.is_closed = False

    def fileno(self) -> int:
        """The socket's descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait here because the socket was full."""
        return bool(self._outbox)

    def send(self, *frames: Frame) -> bool:
        """Sends what the socket takes now and keeps the rest in order; True when nothing is left to send.

        Called on any thread; never waits. Raises:
            ChannelClosedError: the peer is gone.
        """
        data = encode_frame(frames[0]) if len(frames) == 1 else b"".join(map(encode_frame, frames))
        with self._lock:
            if self._outbox:
                self._outbox.append(memoryview(data))
                return self._send_outbox()
            sent = self._send_some(data)
            if sent == len(data):
                return True
            self._outbox.append(memoryview(data)[sent:])
            return False

    def send_outbox(self) -> bool:
        """Sends what waits; True when nothing is left."""
        with self._lock:
            return self._send_outbox()

    def send_all(self, deadline: float, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Waits until everything is sent, `should_stop()` says so, or `deadline` (monotonic) passed."""
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        while not self.send_outbox():
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or should_stop():
                return False
            poller.poll(min(remaining_s, 0.25) * 1000)
        return True

    def receive(self) -> list[FrameT]:
        """Returns the whole frames that have arrived; never waits.

        Raises:
            ChannelClosedError: the peer is gone and nothing whole is left to read.
            ChannelCorruptError: a frame that cannot be decoded or is too long.
        """
        is_ended = False
        while True:
            try:
                chunk = self._socket.recv(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                is_ended = True
                break
            if not chunk:
                is_ended = True
                break
            self._received += chunk
            if len(chunk) < _READ_BYTES:
                break
        frames = self._split()
        if is_ended and not frames:
            raise ChannelClosedError("the other end of the lane's socket is closed")
        return frames

    def close(self) -> None:
        """Closes this end; idempotent."""
        self.is_closed = True
        self._socket.close()

    def _split(self) -> list[FrameT]:
        frames: list[FrameT] = []
        data, start = self._received, 0
        while len(data) - start >= 4:
            length = int.from_bytes(data[start : start + 4], "little")
            if length > FRAME_BYTES_MAX:
                raise ChannelCorruptError(f"a frame of at most {FRAME_BYTES_MAX} bytes was expected, got {length}")
            if len(data) - start - 4 < length:
                break
            body = bytes(memoryview(data)[start + 4 : start + 4 + length])
            try:
                frames.append(self._decoder.decode(body))
            except msgspec.DecodeError as error:
                raise ChannelCorruptError(f"a frame was expected on the lane's socket: {error}") from error
            start += 4 + length
        if start:
            del data[:start]
        return frames

    def _send_outbox(self) -> bool:
        while self._outbox:
            head = self._outbox[0]
            sent = self._send_some(head)
            if sent < len(head):
                self._outbox[0] = head[sent:]
                return False
            self._outbox.popleft()
        return True

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise ChannelClosedError("the other end of the lane's socket is closed") from error
