"""The engine's end of the nursery's socket: numbers requests, and hands each reply to whoever waits for it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from undercurrent.errors import WorkerError
from undercurrent.workers.nursery_frames import (
    CloseNursery,
    Forked,
    ForkFailed,
    NurseryReady,
    SpawnOrder,
    SpawnRequest,
    WorkerExited,
    close_fds,
    receive_frame,
    reply_decoder,
    send_frame,
)
from undercurrent.workers.spawned_worker import SpawnedWorker

__all__ = ["READY_TOKEN", "Awaited", "NurseryExited", "NurseryLine", "NurseryReply", "SpawnFailed"]

READY_TOKEN = 0
"""Stands for the nursery's first reply, which answers no request."""

_REPLIES_PER_READ_MAX = 256


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """No worker came of a request."""

    token: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class NurseryExited:
    """The nursery is gone, and with it every worker it had forked. Its last reply; not sent after `close()`."""

    reason: str


NurseryReply: TypeAlias = NurseryReady | SpawnedWorker | SpawnFailed | WorkerExited | NurseryExited


@dataclass(slots=True)
class Awaited:
    """What a blocked caller waits for; `event_fd` is written when the reply is there, whichever thread read it."""

    event_fd: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    reply: NurseryReply | None = None


class NurseryLine:
    """One socket. Thread-safe. Owns it, and the descriptors of workers in replies nobody has read yet.

    `kill_peer` is called, with the lock held, when the nursery says something that cannot be understood.
    """

    def __init__(self, sock: socket.socket, kill_peer: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._kill_peer = kill_peer
        self._lock = threading.Lock()  # guards everything below, and the order of frames on the socket
        self._socket = sock
        self._token = READY_TOKEN
        self._requested: dict[int, str] = {}  # names of workers, by token, not answered yet
        self._awaited: dict[int, Awaited] = {}
        self._abandoned: set[int] = set()
        self._unread: deque[NurseryReply] = deque()
        self._is_over = False
        self._is_closing = False
        # The socket alone would not do for `fileno()`: a blocked caller may have read somebody else's reply from it.
        self._unread_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(sock, select.EPOLLIN)
        self._epoll.register(self._unread_fd, select.EPOLLIN)

    def fileno(self) -> int:
        """A descriptor for a selector: readable when `read` has something to return."""
        return self._epoll.fileno()

    def await_ready(self) -> Awaited:
        """Registers for the nursery's first reply, which may be here already."""
        with self._lock:
            awaited = Awaited()
            self._awaited[READY_TOKEN] = awaited
            ready = next((reply for reply in self._unread if isinstance(reply, NurseryReady)), None)
            if ready is not None:
                self._unread.remove(ready)
                self._deliver(READY_TOKEN, ready)
            elif self._is_over:
                self._deliver(READY_TOKEN, SpawnFailed(READY_TOKEN, "nursery", "the nursery is gone"))
            return awaited

    def request(self, order: SpawnOrder, fds: Sequence[int], awaited: Awaited | None = None) -> int:
        """Sends a request and returns its token; with `awaited`, the reply goes there and not to `read`.

        Raises:
            WorkerError: the nursery is gone or does not read its orders.
        """
        with self._lock:
            try:
                if self._is_over or self._is_closing:
                    raise BrokenPipeError("it is gone")
                send_frame(self._socket, SpawnRequest(self._token + 1, order), fds)
            except OSError as error:
                raise WorkerError(
                    f"worker {order.worker_name!r} could not be started: the nursery takes no orders: {error}"
                ) from error
            self._token += 1
            self._requested[self._token] = order.worker_name
            if awaited is not None:
                self._awaited[self._token] = awaited
            return self._token

    def wait(self, token: int, awaited: Awaited, deadline: float) -> NurseryReply | None:
        """Waits until some thread has read the reply; None after `deadline` (monotonic). Ends the registration."""
        try:
            while True:
                with self._lock:
                    if awaited.reply is None:
                        self._receive()
                    if awaited.reply is not None:
                        return awaited.reply
                    socket_fd = self._socket.fileno()
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return None
                # The socket, not `fileno()`, which stays readable while replies of others wait for their owner. Should
                # it be closed meanwhile, the event has been written before.
                poller = select.poll()
                poller.register(awaited.event_fd, select.POLLIN)
                poller.register(socket_fd, select.POLLIN)
                poller.poll(remaining_s * 1000)
        finally:
            with self._lock:
                if self._awaited.pop(token, None) is not None and token in self._requested:
                    self._abandoned.add(token)
            os.close(awaited.event_fd)

    def read(self) -> list[NurseryReply]:
        """Returns what came since the last call and nobody waits for, in order; never waits."""
        with self._lock:
            if self._is_closing:
                return []
            self._receive()
            replies = list(self._unread)
            self._unread.clear()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._unread_fd)
            return replies

    def begin_close(self, grace_s: float) -> bool:
        """Tells the nursery to end; False when that was done before."""
        with self._lock:
            if self._is_closing:
                return False
            self._is_closing = True
            with contextlib.suppress(OSError):  # it is gone already, or does not read: the caller has other means
                send_frame(self._socket, CloseNursery(grace_s))
            return True

    def finish_close(self) -> None:
        """Answers those who still wait, drops what is unread and closes the socket. The nursery must be dead."""
        with self._lock:
            while not self._is_over:
                self._receive()
                if not self._is_over and not _has_input(self._socket):
                    self._meet_end("it was closed")
            for reply in self._unread:
                if isinstance(reply, SpawnedWorker):
                    reply.close()
            self._unread.clear()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        """Closes what this process holds of the line, without a word to anybody. Idempotent."""
        self._epoll.close()
        self._socket.close()
        fd, self._unread_fd = self._unread_fd, -1
        if fd >= 0:
            os.close(fd)

    # ---- with the lock held ------------------------------------------------------------------------------------

    def _receive(self) -> None:
        for _ in range(_REPLIES_PER_READ_MAX):
            if self._is_over:
                return
            try:
                received = receive_frame(self._socket)
                if received is None:
                    self._meet_end("it ended")
                else:
                    self._take(*received)
            except BlockingIOError:
                return
            except (WorkerError, msgspec.DecodeError, ValueError) as error:
                self._kill_peer()
                self._meet_end(str(error))

    def _take(self, body: bytes, fds: list[int]) -> None:
        try:
            frame = reply_decoder.decode(body)
            if len(fds) != (2 if isinstance(frame, Forked) else 0):
                raise ValueError(f"{type(frame).__name__} came with {len(fds)} descriptors")
        except ValueError:
            close_fds(fds)
            raise
        match frame:
            case Forked():
                worker = SpawnedWorker(
                    token=frame.token,
                    name=frame.name,
                    pid=frame.pid,
                    start_time=frame.start_time,
                    pidfd=fds[0],
                    stack_fd=fds[1],
                )
                self._deliver(frame.token, worker)
            case ForkFailed():
                self._deliver(frame.token, SpawnFailed(frame.token, frame.name, frame.reason))
            case NurseryReady():
                self._deliver(READY_TOKEN, frame)
            case WorkerExited():
                self._deliver(None, frame)

    def _deliver(self, token: int | None, reply: NurseryReply) -> None:
        """Hands a reply to the thread that waits for it, or leaves it for `read`."""
        if token is not None:
            self._requested.pop(token, None)
            if token in self._abandoned:
                self._abandoned.discard(token)
                if isinstance(reply, SpawnedWorker):  # its caller has given up and knows nothing of it
                    reply.kill()
                    reply.close()
                return
            awaited = self._awaited.pop(token, None)
            if awaited is not None:
                awaited.reply = reply
                os.eventfd_write(awaited.event_fd, 1)
                return
        self._unread.append(reply)
        os.eventfd_write(self._unread_fd, 1)

    def _meet_end(self, reason: str) -> None:
        self._is_over = True
        self._epoll.unregister(self._socket)  # its end of stream would keep `fileno()` readable for ever
        reason = f"the nursery is gone: {reason}"
        unanswered = dict(self._requested)
        if READY_TOKEN in self._awaited:
            unanswered[READY_TOKEN] = "nursery"
        for token, name in unanswered.items():
            self._deliver(token, SpawnFailed(token, name, reason))
        if not self._is_closing:
            self._deliver(None, NurseryExited(reason))


def _has_input(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))
