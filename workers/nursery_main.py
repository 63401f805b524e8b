"""The nursery process: imports once what every worker needs, then forks workers in about a millisecond each.

It has one thread, so a fork copies no lock held by another; it never imports torch, whose threads and CUDA context do
not survive a fork. It runs no user code and answers to nobody but the engine at the other end of its socket.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from undercurrent.errors import WorkerError
from undercurrent.workers.nursery_child import (
    Child,
    become_child_subreaper,
    flush_output,
    name_process,
    restore,
    write_log,
)
from undercurrent.workers.nursery_frames import (
    CloseNursery,
    Forked,
    ForkFailed,
    Frame,
    NurseryBoot,
    NurseryReady,
    SpawnRequest,
    WorkerBoot,
    WorkerExited,
    boot_decoder,
    close_fds,
    receive_frame,
    request_decoder,
    send_frame,
)
from undercurrent.workers.spawned_worker import read_start_time

__all__ = ["main"]

ORPHAN_GRACE_S = 5.0
"""How long workers whose engine is gone may go on; each sees the engine's end by itself and needs less."""
WORKERS_MAX = 1024

# Sent to every process of a systemd unit, or by a terminal; the engine decides what they mean. See `nursery_child`.
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU)


@dataclass(frozen=True, slots=True)
class _Worker:
    token: int
    name: str


@dataclass(slots=True)
class _Unsent:
    frame: Frame
    fds: list[int] = field(default_factory=list)


def main(sock: socket.socket) -> None:
    """Becomes the nursery, or a worker that starts afresh. Called by the bootstrap; never returns."""
    sys.argv[:] = ["undercurrent"]
    # Output goes to a log file or a pipe and would otherwise wait in a buffer that a killed worker takes with it.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    received = receive_frame(sock)
    if received is None:
        os._exit(0)
    body, fds = received
    boot = boot_decoder.decode(body)
    if isinstance(boot, WorkerBoot):
        gc.enable()
        restore(boot, sock).run()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored in the engine, it would be ignored here, and nothing reaped
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    name_process("uc-nursery")
    child = _Nursery(sock, fds[0], boot).run()
    if child is not None:
        child.live()
    os._exit(0)


class _Nursery:
    """The nursery's loop and everything it owns. One thread."""

    def __init__(self, sock: socket.socket, engine_pidfd: int, boot: NurseryBoot) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._boot = boot
        self._pid = os.getpid()
        self._needs_fresh_interpreter = False
        self._workers: dict[int, _Worker] = {}
        self._unsent: deque[_Unsent] = deque()
        self._is_engine_gone = False
        self._leave_at: float | None = None
        self._child_ended_fd, wakeup_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _look_at_children)
        become_child_subreaper()
        self._engine_pidfd = engine_pidfd
        self._poller = select.poll()  # no descriptor of its own, unlike epoll: a forked child has nothing to forget
        self._poller.register(sock, select.POLLIN)
        self._poller.register(engine_pidfd, select.POLLIN)
        self._poller.register(self._child_ended_fd, select.POLLIN)

    def run(self) -> Child | None:
        """Serves until there is nobody to serve. Returns in each forked child too, with what the child shall be."""
        self._preload()
        while not self._is_over():
            for fd, _ in self._poller.poll(self._timeout_ms()):
                if fd == self._engine_pidfd:
                    self._meet_engine_end()
                elif fd == self._child_ended_fd:
                    self._reap()
                else:
                    child = self._serve_socket()
                    if child is not None:
                        return child
        self._kill_all()
        if self._is_engine_gone:
            _remove_pages()
        return None

    # ---- the engine --------------------------------------------------------------------------------------------

    def _preload(self) -> None:
        started = time.monotonic()
        not_imported = []
        for name in self._boot.preload:
            try:
                importlib.import_module(name)
            except Exception as error:
                # A worker that needs the module fails with the full traceback; one that does not is none the worse.
                not_imported.append(name)
                write_log(f"nursery could not import {name!r}: {type(error).__name__}: {error}\n")
        threads = len(os.listdir("/proc/self/task"))
        self._needs_fresh_interpreter = threads > 1
        gc.collect()
        gc.freeze()  # the collector would otherwise write to every inherited object and copy its page, in each worker
        gc.enable()
        import_ms = (time.monotonic() - started) * 1e3
        self._send(NurseryReady(self._pid, import_ms, threads, tuple(not_imported)))

    def _serve_socket(self) -> Child | None:
        self._send_unsent()
        while not self._is_engine_gone:
            try:
                received = receive_frame(self._socket)
            except BlockingIOError:
                return None
            except WorkerError as error:
                # The order is lost and its token unknown, so the engine cannot be answered; it starts another nursery.
                write_log(f"nursery ends: {error}\n")
                self._meet_engine_end()
                return None
            if received is None:
                self._meet_engine_end()
                return None
            body, fds = received
            try:
                request = request_decoder.decode(body)
            except msgspec.DecodeError as error:
                close_fds(fds)
                write_log(f"nursery ends: the engine sent no valid request ({error})\n")
                self._meet_engine_end()
                return None
            if isinstance(request, CloseNursery):
                self._leave_by(time.monotonic() + request.grace_s)
            else:
                child = self._spawn(request, fds)
                if child is not None:
                    return child
        return None

    def _send(self, frame: Frame, fds: list[int] | None = None) -> None:
        """Sends when the socket takes it; takes over `fds`."""
        self._unsent.append(_Unsent(frame, fds or []))
        self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent:
            head = self._unsent[0]
            if not self._is_engine_gone:
                try:
                    send_frame(self._socket, head.frame, head.fds)
                except BlockingIOError:
                    self._poller.modify(self._socket, select.POLLIN | select.POLLOUT)
                    return
                except OSError as error:
                    # Descriptors in flight count against a limit of their own (unix(7), ETOOMANYREFS); they free up.
                    if error.errno == errno.ETOOMANYREFS:
                        self._poller.modify(self._socket, select.POLLIN | select.POLLOUT)
                        return
                    self._meet_engine_end()
            close_fds(head.fds)
            self._unsent.popleft()
        if not self._is_engine_gone:
            self._poller.modify(self._socket, select.POLLIN)

    def _meet_engine_end(self) -> None:
        if self._is_engine_gone:
            return
        self._is_engine_gone = True
        self._poller.unregister(self._socket)
        self._poller.unregister(self._engine_pidfd)
        self._leave_by(time.monotonic() + ORPHAN_GRACE_S)

    def _leave_by(self, moment: float) -> None:
        self._leave_at = moment if self._leave_at is None else min(self._leave_at, moment)

    def _is_over(self) -> bool:
        return self._leave_at is not None and (not self._workers or time.monotonic() >= self._leave_at)

    def _timeout_ms(self) -> float | None:
        return None if self._leave_at is None else max(0.0, self._leave_at - time.monotonic()) * 1000

    # ---- workers -----------------------------------------------------------------------------------------------

    def _spawn(self, request: SpawnRequest, fds: list[int]) -> Child | None:
        """Forks; returns the child's description in the child and None in the nursery."""
        name = request.order.worker_name
        log_index = request.order.log_fd_index
        reason: str | None
        if self._leave_at is not None:
            reason = "the nursery is closing"
        elif len(self._workers) >= WORKERS_MAX:
            reason = f"at most {WORKERS_MAX} workers may live at once"
        elif log_index is not None and log_index >= len(fds):
            reason = f"`log_fd_index` is {log_index}, but {len(fds)} descriptors were passed"
        else:
            reason = None
            try:
                child = self._fork(request, fds)
                if child is not None:
                    return child
            except OSError as error:
                reason = f"no process could be made: {error}"
        close_fds(fds)
        if reason is not None:
            self._send(ForkFailed(request.token, name, reason))
        return None

    def _fork(self, request: SpawnRequest, fds: list[int]) -> Child | None:
        order = request.order
        # Non-blocking for the writer: a crash handler must not wait for a reader that may never come.
        read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            flush_output()  # what is buffered here would else be written by the child too
            pid = os.fork()
        except OSError:
            close_fds([read_fd, write_fd])
            raise
        if pid == 0:
            self._socket.detach()  # the number is closed with all the others, and must not be closed again later
            needs_fresh = self._needs_fresh_interpreter or order.threads > 1
            interpreter = self._boot.interpreter if needs_fresh else ()
            return Child(order, tuple(fds), write_fd, self._pid, interpreter, self._boot.cuda_visible_devices)
        os.close(write_fd)
        with contextlib.suppress(OSError):  # the child may have done so, or be gone
            os.setpgid(pid, pid)
        try:
            # Until it is reaped, the pid belongs to this child, dead or alive.
            pidfd, start_time = os.pidfd_open(pid), read_start_time(pid)
        except OSError:  # no more open files: without a pidfd the engine could neither watch nor end the worker
            os.close(read_fd)
            _kill_group(pid)
            raise
        self._workers[pid] = _Worker(request.token, order.worker_name)
        self._send(Forked(request.token, order.worker_name, pid, start_time), [pidfd, read_fd])
        return None

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._child_ended_fd, 4096)
        while True:
            try:
                # WNOWAIT leaves the zombie: as long as it is there its number names its process group and no other.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            worker = self._workers.pop(ended.si_pid, None)
            if worker is not None:
                _kill_group(ended.si_pid)
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED)
            if worker is not None:  # else something a probe had started, orphaned and inherited by the nursery
                has_returned = ended.si_code == os.CLD_EXITED
                code, number = (ended.si_status, None) if has_returned else (None, ended.si_status)
                self._send(WorkerExited(worker.token, worker.name, ended.si_pid, code, number))

    def _kill_all(self) -> None:
        """Ends every worker, and what probes had started in groups or sessions of its own and then left behind."""
        for pid in self._workers:
            _kill_group(pid)
        while self._workers:
            # SIGKILL was sent to each; only a process inside an uninterruptible system call can make this wait.
            select.select([self._child_ended_fd], [], [], 1.0)
            self._reap()
        # Killing an orphan hands its own children over, hence the rounds; a tree deeper than this is somebody's attack.
        for _ in range(16):
            adopted = _children_of(self._pid)
            if not adopted:
                return
            for pid in adopted:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            select.select([self._child_ended_fd], [], [], 1.0)
            self._reap()


def _kill_group(pid: int) -> None:
    """Kills a worker, dead or alive, that has not been reaped, with all that is left of its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _children_of(pid: int) -> list[int]:
    """Returns the pids of the children of a process with one thread; none where the kernel does not list them."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # CONFIG_PROC_CHILDREN
        return []


def _look_at_children(signal_number: int, frame: object) -> None:
    """Does nothing: with a handler in place the wakeup descriptor becomes readable, and the loop reaps."""


def _remove_pages() -> None:
    """An engine that was killed could not remove its control page, which would stay until the next router starts."""
    from undercurrent.ipc.page import ControlPage

    try:
        ControlPage.remove_stale()
    except OSError as error:
        write_log(f"nursery could not remove stale control pages: {error}\n")
