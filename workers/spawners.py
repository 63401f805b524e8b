"""Two ways to get a worker for a lane: a process forked by the nursery, and a thread of this process.

Both run `Worker.run` over the same lane. Methods are called on the supervisor's thread unless they say otherwise.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from undercurrent.core import ProbeFactory
from undercurrent.ipc import ConsumerLane
from undercurrent.spec import ExtractionPoint
from undercurrent.workers.guard_worker import GuardWorker
from undercurrent.workers.lane import Lane
from undercurrent.workers.nursery import (
    Nursery,
    NurseryExited,
    NurseryReady,
    SpawnedWorker,
    SpawnFailed,
    SpawnOrder,
    WorkerExited,
)
from undercurrent.workers.worker import Worker, run_in_thread

_logger = logging.getLogger("undercurrent.workers")

KILL_S = 5.0


class Spawner(Protocol):
    """Gives lanes their workers."""

    def start(self, lane: Lane) -> None:
        """Asks for a worker; `on_spawned` or `on_failed` follows."""

    def fileno(self) -> int | None:
        """What to wait on for `read`, None when nothing can come."""

    def read(self) -> None:
        """Handles what has arrived; calls back."""

    def close(self, deadline: float) -> None:
        """Ends what was started; called on any thread after the supervisor's has ended."""


class ProcessSpawner:
    """Owns the nursery; starts it with the first worker and again should it die."""

    def __init__(
        self,
        on_spawned: Callable[[Lane, SpawnedWorker], None],
        on_failed: Callable[[Lane, str], None],
        engine_cpus: Collection[int] | None,
    ) -> None:
        self._on_spawned = on_spawned
        self._on_failed = on_failed
        self._engine_cpus = engine_cpus
        self._nursery: Nursery | None = None
        self._waiting: dict[int, Lane] = {}
        self.is_ready = threading.Event()

    def start(self, lane: Lane) -> None:
        """See `Spawner`."""
        try:
            nursery = self._living_nursery()
            engine_pidfd = os.pidfd_open(os.getpid())
            try:
                fds = [lane.worker_socket.fileno(), lane.memory.control_fd, lane.memory.payload_fd, engine_pidfd]
                token = nursery.request_spawn(self._order(lane), fds)
            finally:
                os.close(engine_pidfd)
        except Exception as error:
            _logger.exception("no worker could be started for lane %s", lane.name)
            self._on_failed(lane, str(error))
            return
        self._waiting[token] = lane

    def prepare(self) -> None:
        """Starts the nursery without a worker."""
        self._living_nursery()

    def fileno(self) -> int | None:
        """See `Spawner`."""
        return self._nursery.fileno() if self._nursery is not None else None

    def read(self) -> None:
        """See `Spawner`."""
        if self._nursery is None:
            return
        for reply in self._nursery.read_replies():
            match reply:
                case SpawnedWorker():
                    self._take_worker(reply)
                case SpawnFailed():
                    lane = self._waiting.pop(reply.token, None)
                    if lane is not None:
                        self._on_failed(lane, reply.reason)
                case WorkerExited(signal=int()):
                    _logger.warning("worker %s (pid %d) was ended by signal %d", reply.name, reply.pid, reply.signal)
                case WorkerExited(exit_code=code) if code:
                    _logger.warning("worker %s (pid %d) ended with code %d", reply.name, reply.pid, code)
                case NurseryReady():
                    self._note_ready(reply)
                case NurseryExited():
                    self._lose_nursery(reply.reason)
                    return

    def _take_worker(self, worker: SpawnedWorker) -> None:
        lane = self._waiting.pop(worker.token, None)
        if lane is None:
            worker.kill()
        else:
            self._on_spawned(lane, worker)

    def _note_ready(self, ready: NurseryReady) -> None:
        self.is_ready.set()
        if ready.not_imported:
            _logger.warning(
                "the nursery could not import %s; workers will try by themselves", ", ".join(ready.not_imported)
            )

    def close(self, deadline: float) -> None:
        """See `Spawner`."""
        if self._nursery is not None:
            self._nursery.close(deadline)
            self._nursery = None

    def _living_nursery(self) -> Nursery:
        if self._nursery is None:
            self._nursery = Nursery.launch(
                environment=dict(os.environ), sys_path=list(sys.path), cwd=_working_directory()
            )
        return self._nursery

    def _lose_nursery(self, reason: str) -> None:
        assert self._nursery is not None
        _logger.error(
            "the nursery (pid %d) is gone (%s); its workers end with it and are started again",
            self._nursery.pid,
            reason,
        )
        self._nursery.close(time.monotonic())
        self._nursery = None
        waiting, self._waiting = list(self._waiting.values()), {}
        for lane in waiting:
            self._on_failed(lane, "the nursery died")

    def _order(self, lane: Lane) -> SpawnOrder:
        return SpawnOrder(
            worker_name=lane.name,
            entry="undercurrent.workers.guard_worker:run" if lane.is_guard else "undercurrent.workers.process:run",
            # Somebody waits for a guard: it has the engine's priority and may use the engine's CPU meanwhile.
            nice=0 if lane.is_guard else 19,
            cpus=None if lane.is_guard else self._worker_cpus(),
            threads=lane.threads,
            gpu=lane.needs_gpu,
            loads_torch=lane.loads_torch and not lane.death_count,
            sys_path=tuple(sys.path),
        )

    def _worker_cpus(self) -> tuple[int, ...] | None:
        """All CPUs but the engine's, where that leaves one."""
        allowed = os.sched_getaffinity(0)
        rest = allowed - set(self._engine_cpus or ())
        return tuple(sorted(rest)) if rest and rest != allowed else None


class ThreadWorker:
    """A worker thread, seen as `SpawnedWorker` is: it cannot be killed, and says so."""

    def __init__(self, name: str, thread: threading.Thread) -> None:
        self.name = name
        self.pid = os.getpid()
        self.thread = thread


class ThreadSpawner:
    """Starts `Worker.run` in a daemonic thread: probes can be stepped through, and isolate nothing."""

    def __init__(
        self,
        on_spawned: Callable[[Lane, ThreadWorker], None],
        on_exit: Callable[[Lane], None],
        definitions: dict[int, tuple[ProbeFactory, ExtractionPoint]],
    ) -> None:
        self._on_spawned = on_spawned
        self._on_exit = on_exit
        self._definitions = definitions
        self._threads: list[threading.Thread] = []

    def start(self, lane: Lane) -> None:
        """See `Spawner`."""
        consumer = ConsumerLane(lane.memory.control_fd, lane.memory.payload_fd)
        worker_type = GuardWorker if lane.is_guard else Worker
        worker = worker_type(consumer, lane.worker_socket, engine_pidfd=None, definitions=self._definitions)
        # Daemonic for the same reason as the supervisor's thread: exit without `shutdown()` must not wait.
        thread = threading.Thread(
            target=run_in_thread,
            args=(worker, lambda: self._on_exit(lane)),
            name=f"undercurrent-{lane.name}",
            daemon=True,
        )
        self._threads.append(thread)
        thread.start()
        self._on_spawned(lane, ThreadWorker(lane.name, thread))

    def fileno(self) -> None:
        """See `Spawner`."""

    def read(self) -> None:
        """See `Spawner`."""

    def close(self, deadline: float) -> None:
        """Waits for the threads, which were told to stop."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the directory was removed under the engine
        return "/"


def await_exits(processes: Iterable[Any], deadline: float) -> None:
    """Waits for workers that were told to stop, and kills those that still run at `deadline` (monotonic)."""
    poller = select.poll()
    waiting: dict[int, Any] = {}
    for process in processes:
        pidfd = getattr(process, "pidfd", -1)
        if pidfd >= 0:
            poller.register(pidfd, select.POLLIN)
            waiting[pidfd] = process
    while waiting and (remaining_s := deadline - time.monotonic()) > 0:
        for fd, _ in poller.poll(remaining_s * 1000):
            poller.unregister(fd)
            waiting.pop(fd, None)
    for process in waiting.values():
        process.kill()
    for process in waiting.values():
        process.wait(time.monotonic() + KILL_S)


def current_cpu() -> frozenset[int] | None:
    """The CPU this thread runs on, which workers then leave alone; None where there is no other."""
    if len(os.sched_getaffinity(0)) < 2:
        return None
    try:
        cpu = ctypes.CDLL(None).sched_getcpu()
    except (OSError, AttributeError):
        return None
    return frozenset((cpu,)) if cpu >= 0 else None


__all__ = [
    "ProcessSpawner",
    "Spawner",
    "ThreadSpawner",
    "ThreadWorker",
    "await_exits",
    "current_cpu",
]
