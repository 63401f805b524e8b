"""Frames between an engine process, its nursery and the workers forked there.

The socket is a unix SOCK_SEQPACKET pair: the kernel keeps each frame whole, so a frame is one msgpack body and its
descriptors, and needs no length of its own. A fresh interpreter's first frame is `sys.path`, because the decoder of
the others cannot be imported before it is set.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from undercurrent.errors import WorkerError

__all__ = [
    "BOOTSTRAP",
    "FDS_PER_FRAME_MAX",
    "FRAME_BYTES_MAX",
    "CloseNursery",
    "ForkFailed",
    "Forked",
    "NurseryBoot",
    "NurseryReady",
    "SpawnOrder",
    "SpawnRequest",
    "WorkerBoot",
    "WorkerExited",
    "boot_decoder",
    "open_socket_pair",
    "receive_frame",
    "reply_decoder",
    "request_decoder",
    "send_frame",
    "send_import_path",
]

FRAME_BYTES_MAX = 128 * 1024
"""Stays below the default socket buffer (`net.core.wmem_default`, 208 KiB), which bounds a SOCK_SEQPACKET message."""
FDS_PER_FRAME_MAX = 16
"""The kernel's own limit is 253 (SCM_MAX_FD)."""
ARGUMENTS_BYTES_MAX = 64 * 1024

# Run by `python -c` with the number of the socket. It never touches the engine's `__main__`: importing or running that
# again is what makes multiprocessing's spawn fail in notebooks, on stdin and in scripts without a guard.
BOOTSTRAP = (
    # Imports make objects and no garbage: the collector is switched on by `nursery_main` when they are done.
    "import gc,os,socket,sys;gc.disable();"
    "_s=socket.socket(fileno=int(sys.argv[1]));"
    f"sys.path[:]=os.fsdecode(_s.recv({FRAME_BYTES_MAX})).split('\\0');"
    "from undercurrent.workers.nursery_main import main as _m;"
    "_m(_s)"
)

_ENTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class SpawnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker shall be. Raises ValueError for a value no worker can have."""

    worker_name: str
    """Shown by `ps -o comm`, which keeps the first 15 bytes."""
    entry: str
    """`module:function`, called in the worker as `function(order, fds)`; the worker ends when it returns."""
    nice: int = 19
    """Never below the nursery's own nice value, which is the engine's: 0 means "as the engine"."""
    cpus: tuple[int, ...] | None = None
    """The affinity mask; None keeps the one of the thread that started the nursery."""
    threads: int = 1
    """BLAS, OpenMP and torch threads. More than one costs a fresh interpreter: the libraries read the number once."""
    gpu: bool = False
    """Whether the engine's `CUDA_VISIBLE_DEVICES` is given back."""
    loads_torch: bool = False
    """Whether the entry imports torch first, at the engine's priority, and takes `nice` on afterwards."""
    oom_score_adj: int = 500
    """The kernel's out-of-memory score is raised to this and never lowered."""
    log_fd_index: int | None = None
    """Which of the passed descriptors becomes stdout and stderr; None keeps the nursery's."""
    sys_path: tuple[str, ...] = ()
    """Replaces `sys.path` when not empty, for entries the engine added after the nursery had started."""
    cwd: str | None = None
    arguments: bytes = b""
    """Opaque here; at most 64 KiB."""

    def __post_init__(self) -> None:
        if not self.worker_name or "\0" in self.worker_name:
            raise ValueError(f"`worker_name` must be a name without null characters, got {self.worker_name!r}")
        if not _ENTRY.fullmatch(self.entry):
            raise ValueError(f"`entry` must read 'module:function', got {self.entry!r}")
        if not -20 <= self.nice <= 19:
            raise ValueError(f"`nice` must be from -20 to 19, got {self.nice}")
        if self.threads < 1:
            raise ValueError(f"`threads` must be >= 1, got {self.threads}")
        if not -1000 <= self.oom_score_adj <= 1000:
            raise ValueError(f"`oom_score_adj` must be from -1000 to 1000, got {self.oom_score_adj}")
        if self.cpus is not None and (not self.cpus or min(self.cpus) < 0):
            raise ValueError(f"`cpus` must name at least one CPU, none negative, got {self.cpus}; None keeps the mask")
        if self.log_fd_index is not None and not 0 <= self.log_fd_index < FDS_PER_FRAME_MAX:
            raise ValueError(f"`log_fd_index` must be from 0 to {FDS_PER_FRAME_MAX - 1}, got {self.log_fd_index}")
        if len(self.arguments) > ARGUMENTS_BYTES_MAX:
            raise ValueError(
                f"`arguments` must be at most {ARGUMENTS_BYTES_MAX} bytes, got {len(self.arguments)}; "
                "send more over the worker's own socket"
            )


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A message on the nursery's socket."""


class NurseryBoot(Frame, frozen=True, tag="boot"):
    """Engine to nursery, first; carries the engine's pidfd."""

    preload: tuple[str, ...]
    """Modules the nursery imports for its workers; one that cannot be imported is logged and left out."""
    cuda_visible_devices: str | None
    """What the engine's environment has, for workers with a GPU."""
    interpreter: tuple[str, ...]
    """The command and flags that start another interpreter like this one."""


class SpawnRequest(Frame, frozen=True, tag="spawn"):
    """Engine to nursery; carries the worker's descriptors."""

    token: int
    order: SpawnOrder


class CloseNursery(Frame, frozen=True, tag="close"):
    """Engine to nursery: take no more orders, kill what has not left in `grace_s` seconds, and end."""

    grace_s: float


class NurseryReady(Frame, frozen=True, tag="ready"):
    """Nursery to engine, first: the imports are done."""

    pid: int
    import_ms: float
    threads: int
    """More than one means that a preloaded module started a thread; every worker then gets a fresh interpreter."""
    not_imported: tuple[str, ...]


class Forked(Frame, frozen=True, tag="forked"):
    """Nursery to engine; carries the worker's pidfd and the read end of its stack pipe."""

    token: int
    name: str
    pid: int
    start_time: int
    """Clock ticks since boot (proc_pid_stat(5), field 22): with the pid it names the process for ever."""


class ForkFailed(Frame, frozen=True, tag="failed"):
    """Nursery to engine: no process came of the request."""

    token: int
    name: str
    reason: str


class WorkerExited(Frame, frozen=True, tag="exited"):
    """Nursery to engine: a worker ended; always after its `Forked`."""

    token: int
    name: str
    pid: int
    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None


class WorkerBoot(Frame, frozen=True, tag="worker"):
    """Forked child to the fresh interpreter it turns into, first."""

    order: SpawnOrder
    fds: tuple[int, ...]
    stack_fd: int
    nursery_pid: int


Boot: TypeAlias = NurseryBoot | WorkerBoot
Request: TypeAlias = SpawnRequest | CloseNursery
Reply: TypeAlias = NurseryReady | Forked | ForkFailed | WorkerExited

boot_decoder: msgspec.msgpack.Decoder[Boot] = msgspec.msgpack.Decoder(Boot)
request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_encoder = msgspec.msgpack.Encoder()


def open_socket_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected ends, neither inherited by a program started later."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_frame(sock: socket.socket, frame: Frame, fds: Sequence[int] = ()) -> None:
    """Sends one frame with copies of `fds`.

    Raises:
        BlockingIOError: the socket is non-blocking and full.
        OSError: the other end is gone.
        ValueError: the frame is longer than `FRAME_BYTES_MAX`, or has too many descriptors.
    """
    body = _encoder.encode(frame)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame must be at most {FRAME_BYTES_MAX} bytes, got {len(body)}")
    if len(fds) > FDS_PER_FRAME_MAX:
        raise ValueError(f"a frame carries at most {FDS_PER_FRAME_MAX} descriptors, got {len(fds)}")
    if fds:
        socket.send_fds(sock, [body], list(fds), socket.MSG_NOSIGNAL)
    else:
        sock.send(body, socket.MSG_NOSIGNAL)


def receive_frame(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """Returns the next body with its descriptors, which the caller owns; None when the other end is closed.

    Raises:
        BlockingIOError: the socket is non-blocking and empty.
        WorkerError: the kernel cut the frame or its descriptors; those that arrived are closed.
    """
    # MSG_CMSG_CLOEXEC: without it a descriptor would be inheritable from the moment it arrives, and a program that
    # another thread starts just then would keep it.
    try:
        body, fds, flags, _ = socket.recv_fds(sock, FRAME_BYTES_MAX + 1, FDS_PER_FRAME_MAX, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC) or len(body) > FRAME_BYTES_MAX:
        close_fds(fds)
        raise WorkerError(
            "a frame on the nursery's socket was cut by the kernel: too long, too many descriptors, "
            "or this process is at its limit of open files (`ulimit -n`)"
        )
    return (body, fds) if body else None


def close_fds(fds: Sequence[int]) -> None:
    """Closes each descriptor."""
    for fd in fds:
        os.close(fd)


def send_import_path(sock: socket.socket, sys_path: Sequence[str]) -> None:
    """Sends `sys_path` for the bootstrap of a fresh interpreter.

    Raises:
        ValueError: together the entries are longer than a frame.
    """
    body = os.fsencode("\0".join(entry for entry in sys_path if isinstance(entry, str)))
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"`sys.path` must be at most {FRAME_BYTES_MAX} bytes in all, got {len(body)}")
    # A lone null stands for the path [""], because an empty message would read as the end of the stream.
    sock.send(body or b"\0", socket.MSG_NOSIGNAL)
