"""Whoever dies, nothing is left: the engine, the nursery and workers are killed and watched through their pidfds."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from undercurrent.errors import WorkerError
from undercurrent.workers.nursery import Nursery, NurseryExited, SpawnedWorker, SpawnFailed, SpawnOrder

HERE = Path(__file__).parent


def soon() -> float:
    return time.monotonic() + 30


def start() -> Nursery:
    return Nursery.start(environment=os.environ, sys_path=[str(HERE), *sys.path], cwd="/", preload=(), deadline=soon())


def order(entry: str, **changes: Any) -> SpawnOrder:
    return SpawnOrder(worker_name=entry, entry=f"nursery_entries:{entry}", **changes)


def linger(nursery: Nursery, count: int = 1) -> list[SpawnedWorker]:
    """Returns workers that run already and will not leave by themselves."""
    read_end, write_end = os.pipe()
    workers = [nursery.spawn(order("linger"), [write_end], soon()) for _ in range(count)]
    for _ in workers:
        assert os.read(read_end, 4) == b"here"
    os.close(read_end)
    os.close(write_end)
    return workers


def is_dead(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 30)[0])


@contextmanager
def engine(*entries: str) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """Runs a process with a nursery and workers; yields it with the pidfds of the nursery and of the workers."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "nursery_engine.py"), *entries],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())
    nursery, *workers = [os.pidfd_open(pid) for pid in (pids["nursery"], *pids["workers"])]
    try:
        yield process, nursery, workers
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        for fd in (nursery, *workers):
            os.close(fd)


def test_killed_engine_leaves_no_process() -> None:
    with engine("linger", "leave_with_engine", "sleep_with_gil") as (process, nursery, workers):
        process.kill()
        assert all(is_dead(fd) for fd in (*workers, nursery))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_have_time_to_leave_a_dead_engine(number: signal.Signals) -> None:
    with engine("leave_with_engine", "leave_with_engine") as (process, nursery, workers):
        process.send_signal(number)
        assert all(is_dead(fd) for fd in (*workers, nursery))
        assert process.communicate()[0] == "left by itself" * 2


def test_engine_runs_its_main_once() -> None:
    with engine("leave_with_engine") as (process, nursery, _):
        process.kill()
        assert is_dead(nursery)
        assert process.communicate()[1].count("engine runs") == 1


def test_killed_nursery_takes_its_workers_along() -> None:
    nursery = start()
    workers = linger(nursery, 3)
    assert select.select([nursery.fileno()], [], [], 0)[0] == []
    os.kill(nursery.pid, signal.SIGKILL)
    assert all(worker.wait(soon()) for worker in workers)
    assert select.select([nursery.fileno()], [], [], 30)[0]
    replies = nursery.read_replies()
    assert [type(reply) for reply in replies] == [NurseryExited]
    assert not nursery.is_alive
    assert select.select([nursery.fileno()], [], [], 0)[0] == []
    with pytest.raises(WorkerError, match="gone"):
        nursery.spawn(order("linger"), [], soon())
    nursery.close(soon())


def test_request_that_a_dead_nursery_never_read_fails_by_name() -> None:
    nursery = start()
    os.kill(nursery.pid, signal.SIGSTOP)
    token = nursery.request_spawn(order("linger"))
    os.kill(nursery.pid, signal.SIGKILL)
    assert is_dead(nursery.pidfd)
    failed, exited = nursery.read_replies()
    assert isinstance(failed, SpawnFailed)
    assert (failed.token, failed.name) == (token, "linger")
    assert isinstance(exited, NurseryExited)
    nursery.close(soon())


def test_close_ends_workers_that_do_not_leave() -> None:
    nursery = start()
    workers = linger(nursery, 2)
    pid = nursery.pid
    nursery.close(time.monotonic() + 1.0)
    assert not any(worker.is_alive for worker in workers)
    assert not Path(f"/proc/{pid}").exists()
    nursery.close(time.monotonic())
    assert not nursery.is_alive


def test_close_ends_a_nursery_that_does_not_answer() -> None:
    nursery = start()
    workers = linger(nursery)
    os.kill(nursery.pid, signal.SIGSTOP)
    nursery.close(time.monotonic() + 0.2)
    assert all(worker.wait(soon()) for worker in workers)


def test_close_answers_a_thread_that_waits_for_a_worker() -> None:
    nursery = start()
    os.kill(nursery.pid, signal.SIGSTOP)
    errors: list[WorkerError] = []

    def ask() -> None:
        try:
            nursery.spawn(order("linger"), [], soon())
        except WorkerError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    nursery.close(time.monotonic() + 0.2)
    thread.join(30)
    assert len(errors) == 1


@pytest.mark.parametrize("arguments", [b"", b"session"])
def test_close_ends_what_probes_had_started(arguments: bytes) -> None:
    nursery = start()
    read_end, write_end = os.pipe()
    worker = nursery.spawn(order("start_helper", arguments=arguments), [write_end], soon())
    helper = os.pidfd_open(int(os.read(read_end, 10)))
    nursery.close(time.monotonic() + 1.0)
    assert not worker.is_alive
    assert is_dead(helper)
    for fd in (helper, read_end, write_end):
        os.close(fd)


def test_thread_that_started_the_nursery_may_end() -> None:
    made: list[Nursery] = []
    thread = threading.Thread(target=lambda: made.append(start()))
    thread.start()
    thread.join(30)
    nursery = made[0]
    worker = nursery.spawn(order("leave", arguments=b"3"), [], soon())
    assert worker.wait(soon())
    assert nursery.is_alive
    nursery.close(soon())


def test_forked_child_of_the_engine_cannot_use_the_nursery() -> None:
    nursery = start()
    worker = linger(nursery)[0]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            nursery.spawn(order("linger"), [], soon())
        except WorkerError:
            nursery.close(soon())
            status = 0
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert nursery.is_alive
    assert worker.is_alive
    nursery.close(time.monotonic() + 0.2)


def test_nonsense_on_the_socket_ends_the_nursery_and_its_workers() -> None:
    nursery = start()
    worker = linger(nursery)[0]
    nursery._line._socket.send(b"\xffnonsense")
    assert worker.wait(soon())
    assert is_dead(nursery.pidfd)
    assert isinstance(nursery.read_replies()[-1], NurseryExited)
    nursery.close(soon())


def test_stack_of_a_worker_that_loops_is_taken_from_every_thread() -> None:
    nursery = start()
    read_end, write_end = os.pipe()
    worker = nursery.spawn(order("loop_in_python"), [write_end], soon())
    assert os.read(read_end, 4) == b"here"
    for _ in range(3):
        stack = worker.take_stack(soon())
        assert "in loop_in_python" in stack
        assert "in _wait_for_ever" in stack
        assert stack.count("Current thread") == 1
    nursery.close(time.monotonic())
    assert worker.take_stack(soon()).startswith("no stack")
    os.close(read_end)
    os.close(write_end)


def test_stack_of_a_worker_that_sleeps_with_the_gil_is_taken() -> None:
    nursery = start()
    read_end, write_end = os.pipe()
    worker = nursery.spawn(order("sleep_with_gil", threads=2), [write_end], soon())
    assert os.read(read_end, 4) == b"here"
    assert "in sleep_with_gil" in worker.take_stack(soon())
    nursery.close(time.monotonic())
    os.close(read_end)
    os.close(write_end)


def test_stack_of_a_worker_that_answers_no_signal_says_what_it_does() -> None:
    nursery = start()
    read_end, write_end = os.pipe()
    worker = nursery.spawn(order("block_every_signal"), [write_end], soon())
    assert os.read(read_end, 4) == b"here"
    assert "the process is sleeping" in worker.take_stack(time.monotonic() + 0.2)
    worker.send_signal(signal.SIGSTOP)
    assert "no stack came" in worker.take_stack(time.monotonic() + 0.2)
    nursery.close(time.monotonic())
    os.close(read_end)
    os.close(write_end)


def test_engine_that_reaps_every_child_or_none_disturbs_nothing() -> None:
    for how in ("lambda *_: os.waitpid(-1, os.WNOHANG)", "signal.SIG_IGN"):
        program = (
            "import os, signal, sys, time\n"
            f"signal.signal(signal.SIGCHLD, {how})\n"
            "from undercurrent.workers.nursery import Nursery, SpawnOrder\n"
            "soon = time.monotonic() + 30\n"
            "nursery = Nursery.start(environment=os.environ, sys_path=sys.path, cwd='/', preload=(), deadline=soon)\n"
            "worker = nursery.spawn(SpawnOrder(worker_name='w', entry='os:abort'), [], soon)\n"
            "assert worker.wait(soon)\n"
            "while not (replies := nursery.read_replies()): pass\n"
            "nursery.close(soon)\n"
            "print(replies[0].exit_code)\n"
        )
        answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
        assert (answer.stdout, answer.returncode) == ("70\n", 0), answer.stderr
