"""The engine's handle of the nursery: starts it, asks it for workers, hears of their ends.

The nursery is a process of its own, made by exec and not by fork, so that it inherits no thread, lock, CUDA context or
`__main__` of the engine. See `nursery_main` for what it does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from undercurrent.errors import WorkerError
from undercurrent.workers.nursery_child import one_thread_environment
from undercurrent.workers.nursery_frames import (
    BOOTSTRAP,
    NurseryBoot,
    NurseryReady,
    SpawnOrder,
    WorkerExited,
    open_socket_pair,
    send_frame,
    send_import_path,
)
from undercurrent.workers.nursery_line import (
    READY_TOKEN,
    Awaited,
    NurseryExited,
    NurseryLine,
    NurseryReply,
    SpawnFailed,
)
from undercurrent.workers.spawned_worker import SpawnedWorker, wait_readable

__all__ = [
    "PRELOAD",
    "Nursery",
    "NurseryExited",
    "NurseryReady",
    "NurseryReply",
    "SpawnFailed",
    "SpawnOrder",
    "SpawnedWorker",
    "WorkerExited",
]

PRELOAD = (
    "numpy",
    "msgspec",
    "cloudpickle",
    "undercurrent.core",
    "undercurrent.ipc",
    "undercurrent.sinks",
    "undercurrent.workers.frames",
    "undercurrent.workers.process",
)
"""What every worker needs. Never torch: its threads do not survive a fork."""

_KILL_WAIT_S = 5.0


class Nursery:
    """One nursery process. Thread-safe. Owns the process, the line to it, and the workers in unread replies.

    The process stays in the engine's session, so that nice values weigh workers against the engine (sched(7)),
    but leads a process group, so that Ctrl-C at a terminal reaches the engine alone. It ends when the engine closes it,
    dies, or execs. A process forked from the engine cannot use the object: calls there raise WorkerError, and `close()`
    closes the copies of the descriptors and does no more.
    """

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, pidfd: int) -> None:
        """Private; see `launch` and `start`."""
        self.pid = process.pid
        self.pidfd = pidfd
        self._process = process
        self._owner_pid = os.getpid()
        self._line = NurseryLine(sock, self._kill)

    @classmethod
    def launch(
        cls,
        *,
        environment: Mapping[str, str],
        sys_path: Sequence[str],
        cwd: str,
        log_fd: int | None = None,
        preload: Sequence[str] = PRELOAD,
    ) -> Nursery:
        """Starts the process and returns at once; orders may follow at once too. `NurseryReady` is its first reply.

        `log_fd` becomes stdout and stderr of the nursery and its workers; None means the engine's stderr.

        Raises:
            WorkerError: the interpreter cannot be started.
        """
        interpreter = _interpreter_command()
        near, far = open_socket_pair()
        try:
            process = subprocess.Popen(
                [*interpreter, str(far.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=_log_target(log_fd),
                stderr=_log_target(log_fd),
                cwd=cwd,
                env=one_thread_environment(dict(environment)),
                close_fds=True,
                pass_fds=(far.fileno(),),
                process_group=0,
            )
        except (OSError, ValueError) as error:
            near.close()
            raise WorkerError(f"the nursery could not be started as {interpreter[0]!r} in {cwd!r}: {error}") from error
        finally:
            far.close()
        try:
            return cls._boot(process, near, environment, sys_path, interpreter, tuple(preload))
        except BaseException as error:
            near.close()
            process.kill()
            process.wait(_KILL_WAIT_S)
            if isinstance(error, (OSError, ValueError)):
                raise WorkerError(f"the nursery could not be told what to be: {error}") from error
            raise

    @classmethod
    def _boot(
        cls,
        process: subprocess.Popen[bytes],
        sock: socket.socket,
        environment: Mapping[str, str],
        sys_path: Sequence[str],
        interpreter: tuple[str, ...],
        preload: tuple[str, ...],
    ) -> Nursery:
        send_import_path(sock, sys_path)
        engine_pidfd = os.pidfd_open(os.getpid())
        try:
            boot = NurseryBoot(preload, environment.get("CUDA_VISIBLE_DEVICES"), interpreter)
            send_frame(sock, boot, [engine_pidfd])
        finally:
            os.close(engine_pidfd)
        return cls(process, sock, os.pidfd_open(process.pid))

    @classmethod
    def start(
        cls,
        *,
        environment: Mapping[str, str],
        sys_path: Sequence[str],
        cwd: str,
        log_fd: int | None = None,
        preload: Sequence[str] = PRELOAD,
        deadline: float,
    ) -> Nursery:
        """Starts the process and waits until it has imported what workers need, or `deadline` (monotonic).

        Raises:
            WorkerError: the interpreter cannot be started, ended early, or was not ready in time.
        """
        nursery = cls.launch(environment=environment, sys_path=sys_path, cwd=cwd, log_fd=log_fd, preload=preload)
        try:
            nursery.wait_ready(deadline)
        except BaseException:
            nursery.close(time.monotonic())
            raise
        return nursery

    @property
    def is_alive(self) -> bool:
        """Whether the process runs; False after `close()`."""
        return self.pidfd >= 0 and not wait_readable(self.pidfd, 0.0)

    def fileno(self) -> int:
        """A descriptor for a selector: readable when `read_replies` has something to return."""
        return self._line.fileno()

    def wait_ready(self, deadline: float) -> NurseryReady:
        """Waits for the nursery's first reply; replies to others stay for `read_replies`. Call it once, after `launch`.

        Raises:
            WorkerError: it ended early, or was not ready in time.
        """
        self._check_process()
        reply = self._line.wait(READY_TOKEN, self._line.await_ready(), deadline)
        if isinstance(reply, NurseryReady):
            return reply
        reason = reply.reason if isinstance(reply, SpawnFailed) else "it was not ready before the deadline"
        raise WorkerError(f"the nursery (pid {self.pid}) did not start: {reason}; its log has more")

    def request_spawn(self, order: SpawnOrder, fds: Sequence[int] = ()) -> int:
        """Asks for a worker that gets copies of `fds`, in their order, and returns the token of the reply. Never waits.

        Raises:
            WorkerError: the nursery is gone or closed, or does not read its orders.
        """
        self._check_process()
        return self._line.request(order, fds)

    def spawn(self, order: SpawnOrder, fds: Sequence[int], deadline: float) -> SpawnedWorker:
        """Asks for a worker and waits for it until `deadline` (monotonic). A worker that comes later is killed.

        Raises:
            WorkerError: no worker could be made, or not in time.
        """
        self._check_process()
        awaited = Awaited()
        try:
            token = self._line.request(order, fds, awaited)
        except BaseException:
            os.close(awaited.event_fd)
            raise
        reply = self._line.wait(token, awaited, deadline)
        if isinstance(reply, SpawnedWorker):
            return reply
        reason = reply.reason if isinstance(reply, SpawnFailed) else "the nursery did not answer before the deadline"
        raise WorkerError(f"worker {order.worker_name!r} could not be started: {reason}")

    def read_replies(self) -> list[NurseryReply]:
        """Returns what the nursery said since the last call, in order; never waits. The caller owns the workers."""
        self._check_process()
        return self._line.read()

    def close(self, deadline: float) -> None:
        """Ends the nursery and all workers by `deadline` (monotonic); workers have half of the time to leave.

        What is unread is dropped; a worker in an unread reply dies with the others. Idempotent.
        """
        if os.getpid() != self._owner_pid:
            self._line.close_descriptors()  # copies; the lock may have been held by a thread that does not exist here
            self._close_pidfd()
            return
        if not self._line.begin_close(max(0.0, deadline - time.monotonic()) / 2):
            return
        if not wait_readable(self.pidfd, deadline):
            self._kill()
            wait_readable(self.pidfd, time.monotonic() + _KILL_WAIT_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_WAIT_S)
        self._line.finish_close()
        self._close_pidfd()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _check_process(self) -> None:
        if os.getpid() != self._owner_pid:
            raise WorkerError(
                f"this nursery belongs to process {self._owner_pid}, and this is its forked child {os.getpid()}; "
                "a child makes a router of its own"
            )

    def _close_pidfd(self) -> None:
        fd, self.pidfd = self.pidfd, -1
        if fd >= 0:
            os.close(fd)


def _interpreter_command() -> tuple[str, ...]:
    """Returns the command and flags that start an interpreter like this one on the bootstrap.

    Raises:
        WorkerError: the interpreter's own path is not known, as in some programs that embed Python.
    """
    executable = sys.executable
    spawn = sys.modules.get("multiprocessing.spawn")
    if spawn is not None:  # whoever embeds Python names the interpreter by `multiprocessing.set_executable`
        executable = os.fsdecode(spawn.get_executable() or executable)
    if not executable:
        raise WorkerError(
            "no interpreter to start workers with: `sys.executable` is empty; call multiprocessing.set_executable"
        )
    # -P: with `-c`, the working directory would come first on sys.path, and a file `socket.py` there would be imported.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return (executable, *flags, "-P", "-c", BOOTSTRAP)


def _log_target(log_fd: int | None) -> int:
    if log_fd is not None:
        return log_fd
    try:
        os.fstat(2)
    except OSError:  # a daemon without stderr
        return subprocess.DEVNULL
    return 2
