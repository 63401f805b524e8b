"""Where a guard runs, and how soon: next to whoever waits for it.

While its caller sleeps, the caller's CPU is free and its caches hold the record. On that CPU a wake-up is a switch from
one process to the other; on any other it is an interrupt, which in a virtual machine takes longer than the rest. And a
machine whose CPUs are all busy makes a process that was woken wait for a tick of the clock, 1 to 10 ms, unless it asked
for shorter turns than the others' (sched(7); Linux 6.12).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import struct

__all__ = ["CallersPlace", "take_short_turns"]

_logger = logging.getLogger("undercurrent.workers")

TURN_NS = 100_000
"""The shortest that the kernel grants; a probe that computes for longer gets as much of a CPU in more turns."""
LONG_CALL_NS = 500_000
"""From here on a probe needs CPU time more than a prompt start, and the kernel chooses where it gets it."""

_LINKS_OF_ONE_THREAD = 3
# sched_setattr(2): size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_SYSTEM_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}  # sched_setattr, sched_getattr


def take_short_turns() -> bool:
    """Asks the kernel for turns of `TURN_NS` for this thread; False where it knows none (before 6.12, or by policy).

    The thread's share of a CPU stays what its nice value says.
    """
    calls = _SYSTEM_CALLS.get(os.uname().machine)
    if calls is None or os.sched_getscheduler(0) != os.SCHED_OTHER:  # a real-time policy, inherited, needs no turns
        return False
    set_call, get_call = calls
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.create_string_buffer(_ATTRIBUTES.size)

    def read() -> tuple[int, ...]:
        if libc.syscall(get_call, 0, attributes, _ATTRIBUTES.size, 0) != 0:
            raise OSError(ctypes.get_errno(), "sched_getattr")
        return _ATTRIBUTES.unpack(attributes.raw)

    try:
        size, policy, flags, nice, priority, _, deadline, period = read()
        attributes.raw = _ATTRIBUTES.pack(size, policy, flags, nice, priority, TURN_NS, deadline, period)
        if libc.syscall(set_call, 0, attributes, 0) != 0:
            raise OSError(ctypes.get_errno(), "sched_setattr")
        return read()[5] == TURN_NS
    except OSError as error:
        _logger.debug("no short turns for a guard: %s", error)
        return False


class CallersPlace:
    """Keeps this thread on the CPU of whoever waits for it, for as long as it only answers. Owned by the thread.

    For a process with one thread: what else a probe starts would inherit the one CPU.
    """

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0)
        self._candidate = -1
        self.cpu = -1
        """Where this thread is kept; -1: the kernel chooses."""

    def note_caller(self, cpu: int, call_ns: int) -> None:
        """The last caller waited on `cpu` (-1: it did not say) while the probe took `call_ns`.

        The second one in a row on the same CPU is followed there.
        """
        if cpu < 0 or call_ns > LONG_CALL_NS:
            self.leave()
        elif cpu == self.cpu:
            return
        elif cpu != self._candidate:
            self._candidate = cpu
        elif cpu in self._allowed and len(self._allowed) > 1:
            self._settle(cpu)

    def leave(self) -> None:
        """The kernel chooses again."""
        if self.cpu >= 0:
            self._settle(-1)

    def free_others(self) -> None:
        """Gives threads that a probe started on this one's CPU all CPUs, and follows nobody any more."""
        # proc_pid_task(5): a link for each thread, beside the two of any folder.
        if self.cpu < 0 or os.stat("/proc/self/task").st_nlink <= _LINKS_OF_ONE_THREAD:
            return
        here = {self.cpu}
        self.leave()
        for thread_id in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(OSError):  # it ended, or the allowed CPUs are others by now
                if os.sched_getaffinity(thread_id) == here:
                    os.sched_setaffinity(thread_id, self._allowed)
        self._allowed = set()

    def _settle(self, cpu: int) -> None:
        try:
            os.sched_setaffinity(0, self._allowed if cpu < 0 else (cpu,))
        except OSError:  # the allowed CPUs have changed since (cpuset(7)), and the kernel has chosen among the new ones
            self._allowed, cpu = set(), -1
        self.cpu = cpu
