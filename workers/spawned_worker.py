"""The engine's hold on one worker process: its pidfd, its stack, its last words."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

__all__ = ["STACK_SIGNAL", "SpawnedWorker", "read_start_time", "wait_readable"]

STACK_SIGNAL = signal.SIGUSR1
"""Makes faulthandler, in the worker, write the stack of every thread; it does not need the GIL."""

_STACK_BYTES_MAX = 1024 * 1024
_STATES = {
    "D": "uninterruptible sleep",
    "R": "running",
    "S": "sleeping",
    "T": "stopped",
    "t": "stopped by a tracer",
    "X": "dead",
    "Z": "dead",
}


class SpawnedWorker:
    """A worker that was forked. Owns `pidfd` and `stack_fd`; who got it closes it, after which both are -1.

    The pid alone may be reused after the worker's death; signals and waits go through the pidfd, which never is.
    """

    __slots__ = ("name", "pid", "pidfd", "stack_fd", "start_time", "token")

    def __init__(self, *, token: int, name: str, pid: int, start_time: int, pidfd: int, stack_fd: int) -> None:
        self.token = token
        self.name = name
        self.pid = pid
        self.start_time = start_time
        self.pidfd = pidfd
        self.stack_fd = stack_fd

    def __repr__(self) -> str:
        return f"SpawnedWorker(name={self.name!r}, pid={self.pid}, token={self.token})"

    def __del__(self) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """False from the moment the process is dead, reaped or not."""
        return self.pidfd >= 0 and not wait_readable(self.pidfd, 0.0)

    def wait(self, deadline: float) -> bool:
        """Waits for the worker's end until `deadline` (monotonic); True when it is dead."""
        return self.pidfd < 0 or wait_readable(self.pidfd, deadline)

    def send_signal(self, signal_number: int) -> bool:
        """Sends a signal; False when the worker is dead already."""
        if self.pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, signal_number)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> bool:
        """Sends SIGKILL; False when the worker is dead already."""
        return self.send_signal(signal.SIGKILL)

    def take_stack(self, deadline: float) -> str:
        """Returns the Python stack of every thread of the worker, most recent call first, as faulthandler writes it.

        Works while a probe holds the GIL. A system call that the probe sleeps in ends early with EINTR. When no stack
        came until `deadline` (monotonic), the text says in what state the kernel holds the process.
        """
        self.read_last_words()
        blocked_before = self._threads_that_block()
        if not self.send_signal(STACK_SIGNAL):
            return "no stack: the worker is dead"
        text = bytearray()
        while time.monotonic() < deadline and len(text) < _STACK_BYTES_MAX:
            # The kernel says nothing when a handler returns, so its signal mask is looked at every few milliseconds.
            wait_readable(self.stack_fd, min(deadline, time.monotonic() + 0.005))
            is_written = self._is_dump_complete(blocked_before) if text else False
            chunk = self._read_pipe()
            if chunk is None:
                break
            text += chunk
            if is_written and not chunk:
                break
        return text.decode(errors="replace") if text else self._describe_silence()

    def read_last_words(self) -> str:
        """Returns what the worker wrote about its own end since the last look: a traceback, or the stack of a crash."""
        text = bytearray()
        while len(text) < _STACK_BYTES_MAX and (chunk := self._read_pipe()):
            text += chunk
        return text.decode(errors="replace")

    def close(self) -> None:
        """Closes both descriptors; the process is left as it is. Idempotent."""
        # During interpreter exit an object made without __init__ may come here.
        for name in ("pidfd", "stack_fd"):
            fd = getattr(self, name, -1)
            setattr(self, name, -1)
            if fd >= 0:
                os.close(fd)

    def _read_pipe(self) -> bytes | None:
        """Returns what waits in the pipe, which may be nothing; None when every writer is gone."""
        if self.stack_fd < 0:
            return None
        try:
            return os.read(self.stack_fd, 65536) or None
        except BlockingIOError:
            return b""

    def _is_dump_complete(self, blocked_before: set[str]) -> bool:
        """Whether no thread is inside faulthandler's handler; the kernel blocks a signal while it is handled."""
        return not (self._threads_that_block() - blocked_before)

    def _threads_that_block(self) -> set[str]:
        bit = 1 << (STACK_SIGNAL - 1)
        threads = set()
        for status in Path(f"/proc/{self.pid}/task").glob("*/status"):
            try:
                text = status.read_text()
            except OSError:
                continue
            masks = dict(line.split(":\t", 1) for line in text.splitlines() if line.startswith(("SigBlk", "ShdPnd")))
            if any(int(mask, 16) & bit for mask in masks.values()):
                threads.add(status.parent.name)
        return threads

    def _describe_silence(self) -> str:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            place = Path(f"/proc/{self.pid}/wchan").read_text()
        except OSError:
            return "no stack: the worker is gone"
        return (
            f"no stack came before the deadline; the process is {_STATES.get(state, state)}, kernel function {place!r}"
        )


def wait_readable(fd: int, deadline: float) -> bool:
    """Waits until `fd` can be read or has ended, or `deadline` (monotonic) passes; one in the past only looks."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while True:
        remaining_s = deadline - time.monotonic()
        if poller.poll(max(0.0, remaining_s) * 1000):
            return True
        if remaining_s <= 0:
            return False


def read_start_time(pid: int) -> int:
    """Returns when the process started, in clock ticks since boot (proc_pid_stat(5), field 22)."""
    # The second field is the command's name in parentheses and may hold both blanks and parentheses.
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
