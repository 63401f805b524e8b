"""What a freshly forked worker does to itself before it runs its entry.

`settle` changes what survives an exec: priority, limits, signals, descriptors, environment. `run` does the rest in the
interpreter that stays: the forked one, or a fresh one when the order asks for several threads.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, MutableMapping, Sequence
from typing import NoReturn

import msgspec

from undercurrent.workers.nursery_frames import SpawnOrder, WorkerBoot, open_socket_pair, send_frame, send_import_path
from undercurrent.workers.spawned_worker import STACK_SIGNAL

__all__ = [
    "Child",
    "become_child_subreaper",
    "flush_output",
    "name_process",
    "one_thread_environment",
    "restore",
    "write_log",
]

ENTRY_FAILED = 70
"""Exit status of a worker whose entry could not be loaded or raised (EX_SOFTWARE of sysexits.h)."""

# A terminal's Ctrl-C and hang-up, and systemd's stop signal to every process of a unit, are meant for the engine:
# workers end when the engine says so or is gone, after the record in hand. A broken pipe and a full file are errors to
# be read, as in every Python process. SIGTTOU would stop a worker, which is no foreground job, when it prints to a
# terminal that is set to `tostop`.
_IGNORED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGTTOU,
)

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

# prctl(2)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


class Child(msgspec.Struct, frozen=True):
    """A forked worker's own description, built in the child. `live()` never returns."""

    order: SpawnOrder
    fds: tuple[int, ...]
    stack_fd: int
    nursery_pid: int
    interpreter: tuple[str, ...] = ()
    """Not empty when the worker must go on in a fresh interpreter."""
    cuda_visible_devices: str | None = None

    def live(self) -> NoReturn:
        """Settles, then runs the entry here or in a fresh interpreter; ends the process."""
        try:
            self._settle()
            if self.interpreter:
                self._exec()
        except BaseException:
            self._end_with_traceback()
        self.run()

    def run(self) -> NoReturn:
        """Runs the entry and ends the process with its status."""
        status = 0
        try:
            die_with_parent(self.nursery_pid)
            name_process(self.order.worker_name)
            faulthandler.register(STACK_SIGNAL, file=self.stack_fd, all_threads=True, chain=False)
            faulthandler.enable(file=self.stack_fd, all_threads=True)
            _draw_fresh_random_numbers()
            if self.order.sys_path:
                sys.path[:] = self.order.sys_path
                importlib.invalidate_caches()
            module_name, _, function_name = self.order.entry.partition(":")
            getattr(importlib.import_module(module_name), function_name)(self.order, list(self.fds))
        except SystemExit as request:
            status = _status_of(request)
        except BaseException:
            self._end_with_traceback()
        _end(status)

    def _settle(self) -> None:
        die_with_parent(self.nursery_pid)
        # A group of its own lets the nursery end what a probe started together with the worker. The session stays the
        # engine's: with a new session the kernel's autogroups (sched(7)) would weigh all workers against the engine as
        # two equals, and nice 19 would count among workers only.
        os.setpgid(0, 0)
        _reset_signals()
        _limit_core_dumps()
        if not self.order.loads_torch:
            yield_to_engine(self.order.nice)
        _choose_cpus(self.order.cpus)
        _raise_oom_score(self.order.oom_score_adj)
        self._set_environment(os.environ)
        if self.order.cwd is not None:
            os.chdir(self.order.cwd)
        if self.order.log_fd_index is not None:
            log_fd = self.fds[self.order.log_fd_index]
            os.dup2(log_fd, 1)
            os.dup2(log_fd, 2)
        _close_all_but({0, 1, 2, self.stack_fd, *self.fds})

    def _set_environment(self, environment: MutableMapping[str, str]) -> None:
        if self.order.gpu:
            if self.cuda_visible_devices is None:
                environment.pop("CUDA_VISIBLE_DEVICES", None)
            else:
                environment["CUDA_VISIBLE_DEVICES"] = self.cuda_visible_devices
        environment.update(thread_environment(self.order.threads))

    def _exec(self) -> NoReturn:
        """Starts a fresh interpreter in this process, which finds its orders waiting in a socket."""
        near, far = open_socket_pair()
        send_import_path(near, self.order.sys_path or sys.path)
        send_frame(near, WorkerBoot(self.order, self.fds, self.stack_fd, self.nursery_pid))
        near.close()
        for fd in (far.fileno(), self.stack_fd, *self.fds):
            os.set_inheritable(fd, True)
        flush_output()
        os.execv(self.interpreter[0], [*self.interpreter, str(far.fileno())])

    def _end_with_traceback(self) -> NoReturn:
        text = traceback.format_exc()
        write_log(text)
        # The engine reads the pipe after the worker's death. The pipe does not wait for room: nobody reads it now.
        with contextlib.suppress(OSError):
            os.write(self.stack_fd, text.encode(errors="replace")[-32768:])
        _end(ENTRY_FAILED)


def one_thread_environment(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Returns the engine's `environment` as the nursery and most workers have it: no thread pools, no GPU."""
    return {**environment, **thread_environment(1), "CUDA_VISIBLE_DEVICES": ""}


def thread_environment(threads: int) -> dict[str, str]:
    """Returns the variables from which BLAS, OpenMP and torch take their number of threads, when they are loaded."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def name_process(name: str) -> None:
    """Sets what `ps -o comm` shows."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def become_child_subreaper() -> None:
    """Makes orphans among this process's descendants its children, so that it can reap them (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel send SIGKILL when the forking thread ends; the nursery has only one thread, so: when it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before the call above
        os._exit(ENTRY_FAILED)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in _IGNORED_SIGNALS else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _limit_core_dumps() -> None:
    # A limit of 1 byte, not 0: the kernel ignores the limit when cores go to a program (core(5), "Piping core dumps"),
    # except for the value 1, which it takes for a dump of the dumper itself and skips. A file would need more.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if hard == resource.RLIM_INFINITY or hard >= 1 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def yield_to_engine(nice: int) -> None:
    """Takes a lower priority on; one that is lower already stays."""
    current = os.getpriority(os.PRIO_PROCESS, 0)
    if nice <= current:
        return
    # Under a real-time policy, inherited when the engine's thread has one, nice means nothing.
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, nice)


def _choose_cpus(cpus: Sequence[int] | None) -> None:
    if cpus is None:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        # The allowed CPUs may have changed since the engine looked (cpuset(7)). A worker on other CPUs still works.
        write_log(f"worker runs on the CPUs it inherited: {list(cpus)} were refused ({error})\n")


def _raise_oom_score(score: int) -> None:
    with open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < score:
            file.seek(0)
            file.write(str(score))


def _close_all_but(kept: Iterable[int]) -> None:
    """Closes every other descriptor, in ranges, each one system call (close_range(2))."""
    low = 0
    for fd in sorted(kept):
        if low < fd:  # CPython takes the empty range (0, 0) for all descriptors
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 0x7FFFFFFF)


def _draw_fresh_random_numbers() -> None:
    # `random` is seeded anew by the interpreter after a fork; numpy's global generator is not, and all workers would
    # draw the same numbers.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _status_of(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    write_log(f"{request.code}\n")
    return 1


def write_log(text: str) -> None:
    """Writes to stderr where it still leads somewhere: the engine's terminal or pipe may be gone before its workers."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)


def flush_output() -> None:
    """Flushes stdout and stderr, where they still lead somewhere."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _end(status: int) -> NoReturn:
    """Runs what libraries registered for the end, then ends without waiting for threads a probe may have left."""
    try:
        atexit._run_exitfuncs()
    finally:
        flush_output()
        os._exit(status)


def restore(boot: WorkerBoot, sock: socket.socket) -> Child:
    """Returns the child that went through an exec, from the frame it left itself."""
    sock.close()
    for fd in (boot.stack_fd, *boot.fds):
        os.set_inheritable(fd, False)
    return Child(boot.order, boot.fds, boot.stack_fd, boot.nursery_pid)
