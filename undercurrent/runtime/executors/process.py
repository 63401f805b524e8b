"""The executor's hold on one of its processes: the pid, the line to it, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from undercurrent.runtime.errors import RuntimeTypeError
from undercurrent.runtime.executors.errors import ExecutorError, ExecutorStartError
from undercurrent.runtime.executors.factory import GeneratorFactory
from undercurrent.runtime.executors.frames import (
    Answered,
    Ask,
    Boot,
    Cancel,
    Failed,
    Finished,
    Frame,
    Ready,
    Stop,
    Tokenize,
    Tokens,
    encode_frame,
    read_frame,
)
from undercurrent.runtime.executors.host import BatchOrder, BatchReport, HostDescription, unpack

__all__ = ["HostProcess", "ProcessGoneError"]

# Run by `python -c` with the socket as its standard input, which it replaces. The parent's `sys.path` comes first. The
# parent's `__main__` is never run again, which is what makes multiprocessing's spawn fail in notebooks and on stdin.
_BOOTSTRAP = (
    "import os,socket,sys;"
    "_s=socket.socket(fileno=os.dup(0));"
    "os.dup2(os.open(os.devnull,os.O_RDONLY),0);"
    "_n=int.from_bytes(_s.recv(8,socket.MSG_WAITALL),'big');"
    "sys.path[:]=os.fsdecode(_s.recv(_n,socket.MSG_WAITALL)).split('\\0');"
    "from undercurrent.runtime.executors.process_main import main as _m;"
    "_m(_s)"
)
KILL_WAIT_S = 10.0
"""A killed process is gone when the kernel has freed its memory; one in uninterruptible sleep may take longer."""
# What a process sent before it died may still be on its way when the kernel tells of its death.
_LAST_WORDS_S = 0.2


class ProcessGoneError(ExecutorError):
    """The process died; the message says how."""


class HostProcess:
    """One process. Used by one task at a time, on the event loop that started it.

    It leads a process group of its own, so that a terminal's Ctrl-C reaches the parent alone, and dies with the thread
    that started it. Its standard output is the parent's standard error: nothing it prints mixes with the parent's.
    """

    def __init__(self, process: subprocess.Popen[bytes], pidfd: int) -> None:
        """Private; see `start`."""
        self.pid = process.pid
        self.is_idle = False
        """No batch is under way: the next may be asked."""
        self._process = process
        self._pidfd = pidfd
        self._dead = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._see_death)

    @classmethod
    async def start(cls, factory: GeneratorFactory) -> tuple[HostProcess, HostDescription]:
        """Starts a process and waits until it has its generator. A caller that is cancelled leaves none behind.

        Raises:
            ExecutorStartError: no process can be started, or it died before its generator was made.
            Exception: what the factory raised.
        """
        near, far = socket.socketpair()
        try:
            started = _start_interpreter(far)
        except BaseException:
            near.close()
            raise
        finally:
            far.close()
        process = cls(started, os.pidfd_open(started.pid))
        try:
            description = await process._boot(near, factory)
        except ProcessGoneError as error:
            raise ExecutorStartError(f"a process of {factory.target} did not start: {error}") from error
        except BaseException:
            await process.kill()
            raise
        return process, description

    @property
    def is_alive(self) -> bool:
        """False from the moment its death was seen."""
        return not self._dead.is_set()

    async def ask(self, order: BatchOrder, give: Callable[[int, object], None]) -> BatchReport:
        """Runs a batch: `give(index, answer)` for each job as its answer comes.

        Cancelled, or failed, while a batch is under way, it leaves `is_idle` False: `cancel` it, or `kill`.

        Raises:
            ProcessGoneError: it died.
            RuntimeTypeError: a job cannot be pickled, or not be read there.
        """
        try:
            packed = pickle.dumps(order)
        except Exception as error:
            raise RuntimeTypeError(f"a job cannot be sent to another process: {error}") from error
        self.is_idle = False
        await self._send(Ask(packed))
        unread: object = None
        while True:
            match await self._read():
                case Answered(-1, answer):
                    unread = unpack(answer)
                case Answered(index, answer):
                    give(index, unpack(answer))
                case Finished(report):
                    self.is_idle = True
                    if isinstance(unread, Exception):
                        raise unread
                    return report
                case frame:
                    raise ExecutorError(f"process {self.pid} sent {type(frame).__name__} during a batch")

    async def cancel(self) -> None:
        """Ends the batch under way, and waits until the generator has.

        Raises:
            ProcessGoneError: it died.
        """
        await self._send(Cancel())
        while not isinstance(await self._read(), Finished):
            pass  # answers that were on their way; nobody waits for them
        self.is_idle = True

    async def tokenize(self, texts: tuple[str, ...]) -> list[list[tuple[int, int]]]:
        """Where the tokens of each text begin and end.

        Raises:
            ProcessGoneError: it died.
            Exception: what the generator raised.
        """
        await self._send(Tokenize(texts))
        frame = await self._read()
        if isinstance(frame, Tokens):
            return frame.spans
        raise _failure(frame, self.pid)

    async def stop(self, timeout_s: float) -> None:
        """Lets the generator close, and kills the process if it is not gone by then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                with contextlib.suppress(ProcessGoneError):
                    await self._send(Stop())
                await self._dead.wait()
        await self.kill()

    async def kill(self) -> None:
        """Ends the process now; idempotent."""
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_WAIT_S):
                await self._dead.wait()
        self._close()

    async def _boot(self, sock: socket.socket, factory: GeneratorFactory) -> HostDescription:
        sock.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=sock)
        paths = os.fsencode("\0".join(sys.path))
        self._writer.write(len(paths).to_bytes(8, "big") + paths)
        await self._send(Boot(factory, os.getpid()))
        frame = await self._read()
        if isinstance(frame, Ready):
            self.is_idle = True
            return frame.description
        raise _failure(frame, self.pid)

    async def _send(self, frame: Frame) -> None:
        try:
            self._writer.write(encode_frame(frame))
            await self._writer.drain()
        except ConnectionError:
            raise await self._gone() from None

    async def _read(self) -> Frame:
        try:
            return await read_frame(self._reader)
        except (EOFError, ConnectionError):
            raise await self._gone() from None

    async def _gone(self) -> ProcessGoneError:
        """The error that says how it ended. A process that closed its line and lives on is killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._dead.wait()
        await self.kill()
        return ProcessGoneError(f"process {self.pid} {_ending(self._process.poll())}")

    def _see_death(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._process.poll()
        self._dead.set()
        # A child of the process may hold its end of the line open.
        self._loop.call_later(_LAST_WORDS_S, self._close_line)

    def _close_line(self) -> None:
        writer = getattr(self, "_writer", None)
        if writer is not None:
            writer.transport.abort()

    def _close(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._close_line()
        self._process.poll()
        self._dead.set()


def _start_interpreter(sock: socket.socket) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise ExecutorStartError("no interpreter to start processes with: `sys.executable` is empty")
    # -P: with `-c`, the working directory would come first on sys.path, and a file `socket.py` there would be imported.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    try:
        return subprocess.Popen(
            [sys.executable, *flags, "-P", "-c", _BOOTSTRAP], stdin=sock.fileno(), stdout=2, process_group=0
        )
    except OSError as error:
        raise ExecutorStartError(f"{sys.executable!r} could not be started: {error}") from error


def _failure(frame: Frame, pid: int) -> Exception:
    error = unpack(frame.error) if isinstance(frame, Failed) else None
    if isinstance(error, Exception):
        return error
    return ExecutorError(f"process {pid} sent {type(frame).__name__} out of turn")


def _ending(status: int | None) -> str:
    if status is None:
        return "closed its line and was killed"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
