"""Entries that the nursery's tests run in workers. `fds[0]` is where a worker tells the test what it sees."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from undercurrent.workers.nursery import SpawnOrder


def echo(order: SpawnOrder, fds: list[int]) -> None:
    """Writes its arguments."""
    os.write(fds[0], order.arguments)


def describe(order: SpawnOrder, fds: list[int]) -> None:
    """Writes what the worker is, as JSON."""
    sys.path.append("")
    facts = {
        "environment": dict(os.environ),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "cwd": os.getcwd(),
        "sys_path": sys.path[:-1],
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "passed": fds,
        "comm": Path("/proc/self/comm").read_text().strip(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "parent": os.getppid(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "core_limit": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "ignored": [s for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN],
        "handled": [s for s in signal.valid_signals() if callable(signal.getsignal(s)) and s != signal.SIGUSR1],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "threads": threading.active_count(),
        "has_torch": "torch" in sys.modules,
        "has_numpy": "numpy" in sys.modules,
        "main_names": [name for name in vars(sys.modules["__main__"]) if name.startswith("ENGINE")],
    }
    os.write(fds[0], json.dumps(facts).encode())


def draw(order: SpawnOrder, fds: list[int]) -> None:
    """Writes a number from each global generator."""
    import random

    import numpy.random

    os.write(fds[0], json.dumps([random.random(), float(numpy.random.random())]).encode())


def count_blas_threads(order: SpawnOrder, fds: list[int]) -> None:
    """Multiplies matrices, then writes how many threads the process has."""
    import numpy as np

    square = np.ones((600, 600))
    for _ in range(3):
        square @ square
    os.write(fds[0], str(len(os.listdir("/proc/self/task"))).encode())


def print_words(order: SpawnOrder, fds: list[int]) -> None:
    """Prints to both streams and ends the process without flushing."""
    print("said to stdout")
    print("said to stderr", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)


def linger(order: SpawnOrder, fds: list[int]) -> None:
    """Says that it runs, then takes no notice of anything."""
    os.write(fds[0], b"here")
    while True:
        time.sleep(1.0)


def leave_with_engine(order: SpawnOrder, fds: list[int]) -> None:
    """Says to `fds[2]` that it leaves, when the engine, whose pidfd is `fds[1]`, is gone."""
    os.write(fds[0], b"here")
    select.select([fds[1]], [], [])
    os.write(fds[2], b"left by itself")


def loop_in_python(order: SpawnOrder, fds: list[int]) -> None:
    """Holds the interpreter with pure Python code."""
    threading.Thread(target=_wait_for_ever, daemon=True).start()
    os.write(fds[0], b"here")
    count = 0
    while True:
        count += 1


def sleep_with_gil(order: SpawnOrder, fds: list[int]) -> None:
    """Sleeps in C without giving the GIL away."""
    usleep = ctypes.PyDLL(None).usleep
    os.write(fds[0], b"here")
    while True:
        usleep(200_000)


def block_every_signal(order: SpawnOrder, fds: list[int]) -> None:
    """Never answers a signal that can be blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    linger(order, fds)


def raise_error(order: SpawnOrder, fds: list[int]) -> None:
    """Raises."""
    raise LookupError("the weights are not there")


def leave(order: SpawnOrder, fds: list[int]) -> None:
    """Ends by SystemExit with the status it was given."""
    sys.exit(int(order.arguments))


def crash(order: SpawnOrder, fds: list[int]) -> None:
    """Reads address zero."""
    faulthandler._sigsegv()  # type: ignore[attr-defined]


def start_helper(order: SpawnOrder, fds: list[int]) -> None:
    """Starts a program of its own, in its own session where asked, tells its pid and lingers."""
    helper = subprocess.Popen(["sleep", "600"], start_new_session=order.arguments == b"session")
    os.write(fds[0], str(helper.pid).encode())
    while True:
        time.sleep(1.0)


def _wait_for_ever() -> None:
    threading.Event().wait()
