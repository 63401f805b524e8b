"""The nursery with real processes: what a worker is, and that it gets what it was given."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from undercurrent.errors import WorkerError
from undercurrent.workers.nursery import (
    Nursery,
    NurseryReply,
    SpawnedWorker,
    SpawnFailed,
    SpawnOrder,
    WorkerExited,
)

HERE = str(Path(__file__).parent)


def soon() -> float:
    return time.monotonic() + 30


def start(**changes: Any) -> Nursery:
    settings: dict[str, Any] = {
        "environment": {**os.environ, "CUDA_VISIBLE_DEVICES": "3,1", "OMP_NUM_THREADS": "64"},
        "sys_path": [HERE, *sys.path],
        "cwd": os.getcwd(),
        "preload": ("numpy", "msgspec"),
    }
    return Nursery.launch(**(settings | changes))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = start()
    nursery.wait_ready(soon())
    yield nursery
    nursery.close(soon())


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def order(entry: str, **changes: Any) -> SpawnOrder:
    return SpawnOrder(worker_name=changes.pop("worker_name", entry), entry=f"nursery_entries:{entry}", **changes)


def read_until(nursery: Nursery, is_wanted: Callable[[NurseryReply], bool]) -> NurseryReply:
    deadline = soon()
    while time.monotonic() < deadline:
        for reply in nursery.read_replies():
            if is_wanted(reply):
                return reply
        select.select([nursery.fileno()], [], [], 1.0)
    raise AssertionError("the reply did not come")


def exit_of(nursery: Nursery, worker: SpawnedWorker) -> WorkerExited:
    reply = read_until(nursery, lambda r: isinstance(r, WorkerExited) and r.token == worker.token)
    assert isinstance(reply, WorkerExited)
    assert (reply.pid, reply.name) == (worker.pid, worker.name)
    return reply


def describe(nursery: Nursery, pipe: tuple[int, int], **changes: Any) -> dict[str, Any]:
    worker = nursery.spawn(order("describe", **changes), [pipe[1]], soon())
    assert worker.wait(soon())
    worker.close()
    facts: dict[str, Any] = json.loads(os.read(pipe[0], 65536))
    return facts


def test_worker_gets_its_arguments_and_descriptors(nursery: Nursery, pipe: tuple[int, int]) -> None:
    worker = nursery.spawn(order("echo", arguments=b"\x00\xff bytes"), [pipe[1]], soon())
    assert worker.wait(soon())
    assert os.read(pipe[0], 100) == b"\x00\xff bytes"
    assert exit_of(nursery, worker) == WorkerExited(worker.token, "echo", worker.pid, 0, None)


def test_spawn_latency_is_printed(nursery: Nursery, capsys: pytest.CaptureFixture[str]) -> None:
    latencies_ms = []
    for _ in range(20):
        started = time.perf_counter()
        worker = nursery.spawn(order("leave", arguments=b"0"), [], soon())
        latencies_ms.append((time.perf_counter() - started) * 1e3)
        assert worker.wait(soon())
        worker.close()
    with capsys.disabled():
        print(f"\nspawn of a worker: median {sorted(latencies_ms)[10]:.2f} ms, worst {max(latencies_ms):.2f} ms")
    assert len(latencies_ms) == 20


def test_worker_yields_to_the_engine_and_is_the_first_to_go(nursery: Nursery, pipe: tuple[int, int]) -> None:
    cpu = min(os.sched_getaffinity(0))
    facts = describe(nursery, pipe, cpus=(cpu,), worker_name="a name longer than fifteen")
    assert facts["nice"] == 19
    assert facts["cpus"] == [cpu]
    assert facts["oom_score_adj"] == 500
    assert facts["core_limit"] <= 1
    assert facts["comm"] == "a name longer t"


def test_guard_keeps_the_engines_priority_and_cpus(nursery: Nursery, pipe: tuple[int, int]) -> None:
    facts = describe(nursery, pipe, nice=0, oom_score_adj=-1000)
    assert facts["nice"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert facts["cpus"] == sorted(os.sched_getaffinity(0))
    assert facts["oom_score_adj"] == int(Path("/proc/self/oom_score_adj").read_text())


def test_refused_cpus_leave_the_worker_where_it_was(nursery: Nursery, pipe: tuple[int, int]) -> None:
    assert describe(nursery, pipe, cpus=(1000,))["cpus"] == sorted(os.sched_getaffinity(0))


def test_environment_is_the_engines_with_one_thread_and_no_gpu(nursery: Nursery, pipe: tuple[int, int]) -> None:
    environment = describe(nursery, pipe)["environment"]
    assert environment["PATH"] == os.environ["PATH"]
    assert (
        environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "1"
    )
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_gpu_gives_the_engines_devices_back(nursery: Nursery, pipe: tuple[int, int]) -> None:
    assert describe(nursery, pipe, gpu=True)["environment"]["CUDA_VISIBLE_DEVICES"] == "3,1"


def test_several_threads_cost_a_fresh_interpreter_and_are_there(nursery: Nursery, pipe: tuple[int, int]) -> None:
    for threads in (1, 2):
        worker = nursery.spawn(order("count_blas_threads", threads=threads), [pipe[1]], soon())
        assert worker.wait(soon())
        assert int(os.read(pipe[0], 10)) == min(threads, os.cpu_count() or 1)
        worker.close()


def test_worker_of_several_threads_is_settled_like_the_others(nursery: Nursery, pipe: tuple[int, int]) -> None:
    plain, fresh = describe(nursery, pipe), describe(nursery, pipe, threads=2)
    assert fresh["environment"]["OMP_NUM_THREADS"] == "2"
    for fact in ("nice", "oom_score_adj", "core_limit", "cwd", "sys_path", "stdin", "session", "ignored", "comm"):
        assert fresh[fact] == plain[fact], fact
    assert fresh["parent"] == nursery.pid
    assert set(fresh["descriptors"]) - set(fresh["passed"]) == set(plain["descriptors"]) - set(plain["passed"])


def test_path_and_folder_are_the_engines_unless_the_order_says_otherwise(
    nursery: Nursery, pipe: tuple[int, int], tmp_path: Path
) -> None:
    facts = describe(nursery, pipe)
    assert facts["sys_path"] == [HERE, *sys.path]
    assert facts["cwd"] == os.getcwd()
    facts = describe(nursery, pipe, sys_path=(HERE, "/nowhere", *sys.path), cwd=str(tmp_path))
    assert facts["sys_path"] == [HERE, "/nowhere", *sys.path]
    assert facts["cwd"] == str(tmp_path)


def test_worker_inherits_nothing_else(nursery: Nursery, pipe: tuple[int, int]) -> None:
    facts = describe(nursery, pipe)
    # Standard streams, the stack pipe, what was passed, and the folder that lists them.
    assert len(facts["descriptors"]) == 3 + 1 + len(facts["passed"]) + 1
    assert facts["stdin"] == "/dev/null"
    assert facts["parent"] == nursery.pid
    assert facts["session"] == os.getsid(0)
    assert facts["group"] not in (os.getpgid(0), os.getpgid(nursery.pid))
    assert (facts["handled"], facts["blocked"], facts["threads"]) == ([], [], 1)
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= set(facts["ignored"])
    assert facts["has_numpy"]
    assert not facts["has_torch"]
    assert facts["main_names"] == []


def test_workers_draw_different_random_numbers(nursery: Nursery, pipe: tuple[int, int]) -> None:
    drawn = []
    for _ in range(2):
        worker = nursery.spawn(order("draw"), [pipe[1]], soon())
        assert worker.wait(soon())
        drawn.append(json.loads(os.read(pipe[0], 200)))
        worker.close()
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_output_goes_to_the_log_even_when_the_worker_is_killed(nursery: Nursery, pipe: tuple[int, int]) -> None:
    worker = nursery.spawn(order("print_words", log_fd_index=0), [pipe[1]], soon())
    assert worker.wait(soon())
    assert os.read(pipe[0], 200) == b"said to stdout\nsaid to stderr\n"


@pytest.mark.parametrize(("arguments", "code"), [(b"0", 0), (b"7", 7), (b"255", 255)])
def test_status_of_a_worker_is_reported(nursery: Nursery, arguments: bytes, code: int) -> None:
    worker = nursery.spawn(order("leave", arguments=arguments), [], soon())
    assert exit_of(nursery, worker) == WorkerExited(worker.token, "leave", worker.pid, code, None)


def test_signal_that_ended_a_worker_is_reported(nursery: Nursery, pipe: tuple[int, int]) -> None:
    worker = nursery.spawn(order("linger"), [pipe[1]], soon())
    assert os.read(pipe[0], 4) == b"here"
    assert worker.is_alive
    assert worker.kill()
    assert exit_of(nursery, worker) == WorkerExited(worker.token, "linger", worker.pid, None, signal.SIGKILL)
    assert not worker.is_alive
    assert not worker.kill()


def test_terminal_and_service_manager_signals_do_not_end_a_worker(nursery: Nursery, pipe: tuple[int, int]) -> None:
    worker = nursery.spawn(order("linger"), [pipe[1]], soon())
    assert os.read(pipe[0], 4) == b"here"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        assert worker.send_signal(number)
        os.kill(nursery.pid, number)
    assert "nursery_entries.py" in worker.take_stack(soon())
    assert nursery.is_alive
    worker.kill()
    assert exit_of(nursery, worker).signal == signal.SIGKILL


def test_raised_error_is_the_workers_last_word(nursery: Nursery) -> None:
    worker = nursery.spawn(order("raise_error"), [], soon())
    assert exit_of(nursery, worker).exit_code == 70
    assert worker.read_last_words().endswith("LookupError: the weights are not there\n")


def test_missing_entry_is_an_error_with_a_name(nursery: Nursery) -> None:
    worker = nursery.spawn(order("no_such_function"), [], soon())
    assert exit_of(nursery, worker).exit_code == 70
    assert "no_such_function" in worker.read_last_words()


def test_stack_of_a_crash_is_the_workers_last_word(nursery: Nursery) -> None:
    worker = nursery.spawn(order("crash"), [], soon())
    assert exit_of(nursery, worker).signal == signal.SIGSEGV
    words = worker.read_last_words()
    assert "Segmentation fault" in words
    assert "in crash" in words


def test_what_a_worker_started_dies_with_it(nursery: Nursery, pipe: tuple[int, int]) -> None:
    worker = nursery.spawn(order("start_helper"), [pipe[1]], soon())
    helper = os.pidfd_open(int(os.read(pipe[0], 10)))
    worker.kill()
    assert select.select([helper], [], [], 30)[0]
    os.close(helper)


def test_many_threads_may_ask_at_once(nursery: Nursery) -> None:
    workers: list[SpawnedWorker] = []

    def ask() -> None:
        workers.extend(nursery.spawn(order("leave", arguments=b"0"), [], soon()) for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({worker.token for worker in workers}) == 30
    seen: set[int] = set()
    deadline = soon()
    while not {worker.token for worker in workers} <= seen and time.monotonic() < deadline:
        seen |= {reply.token for reply in nursery.read_replies() if isinstance(reply, WorkerExited)}
    assert {worker.token for worker in workers} <= seen


def test_request_returns_at_once_and_the_worker_comes_as_a_reply(nursery: Nursery) -> None:
    token = nursery.request_spawn(order("leave", arguments=b"0"))
    worker = read_until(nursery, lambda reply: isinstance(reply, SpawnedWorker) and reply.token == token)
    assert isinstance(worker, SpawnedWorker)
    assert exit_of(nursery, worker).exit_code == 0


def test_worker_that_comes_after_its_deadline_is_killed(nursery: Nursery) -> None:
    os.kill(nursery.pid, signal.SIGSTOP)
    try:
        with pytest.raises(WorkerError, match="deadline"):
            nursery.spawn(order("linger", worker_name="late"), [1], time.monotonic() + 0.05)
    finally:
        os.kill(nursery.pid, signal.SIGCONT)
    reply = read_until(nursery, lambda r: isinstance(r, WorkerExited) and r.name == "late")
    assert isinstance(reply, WorkerExited)
    assert reply.signal == signal.SIGKILL


def test_bad_log_index_is_refused_by_the_nursery(nursery: Nursery) -> None:
    token = nursery.request_spawn(order("echo", log_fd_index=2))
    reply = read_until(nursery, lambda r: isinstance(r, SpawnFailed) and r.token == token)
    assert isinstance(reply, SpawnFailed)
    assert "2" in reply.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"worker_name": ""},
        {"entry": "no_colon"},
        {"entry": "a b:c"},
        {"nice": 20},
        {"threads": 0},
        {"cpus": ()},
        {"oom_score_adj": 1001},
        {"log_fd_index": -1},
        {"arguments": bytes(65537)},
    ],
)
def test_impossible_order_is_refused_where_it_is_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        SpawnOrder(**({"worker_name": "w", "entry": "a:b"} | changes))


def test_too_many_descriptors_are_refused(nursery: Nursery) -> None:
    with pytest.raises(ValueError, match="16"):
        nursery.request_spawn(order("echo"), [1] * 17)


def test_every_passed_descriptor_is_closed_in_the_nursery(nursery: Nursery, pipe: tuple[int, int]) -> None:
    folder = Path(f"/proc/{nursery.pid}/fd")
    before = len(list(folder.iterdir()))
    for _ in range(3):
        assert describe(nursery, pipe)
    assert len(list(folder.iterdir())) == before


def test_nursery_does_not_hold_this_process_to_its_descriptors(nursery: Nursery) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    other = start()
    os.close(write_end)
    assert other.wait_ready(soon()).threads == 1
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    other.close(soon())


def test_preloaded_module_with_a_thread_makes_every_worker_start_afresh(pipe: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "threaded_module.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    nursery = start(preload=("threaded_module", "no_such_module"), sys_path=[str(tmp_path), HERE, *sys.path])
    ready = nursery.wait_ready(soon())
    assert (ready.threads, ready.not_imported) == (2, ("no_such_module",))
    facts = describe(nursery, pipe)
    assert (facts["threads"], facts["nice"]) == (1, 19)
    nursery.close(soon())


def test_log_that_nobody_reads_any_more_stops_neither_nursery_nor_worker(pipe: tuple[int, int]) -> None:
    read_end, write_end = os.pipe()
    nursery = start(log_fd=write_end, preload=("no_such_module",))
    os.close(read_end)
    os.close(write_end)
    assert nursery.wait_ready(soon()).not_imported == ("no_such_module",)
    worker = nursery.spawn(order("raise_error"), [], soon())
    assert exit_of(nursery, worker).exit_code == 70
    assert "LookupError" in worker.read_last_words()
    assert describe(nursery, pipe, cpus=(1000,))["nice"] == 19
    nursery.close(soon())


def test_path_longer_than_a_frame_is_refused() -> None:
    with pytest.raises(WorkerError, match=r"sys\.path"):
        start(sys_path=["/" + "x" * 200_000])


def test_start_without_a_folder_says_so() -> None:
    with pytest.raises(WorkerError, match="/nowhere"):
        start(cwd="/nowhere")


def test_start_without_the_package_says_so() -> None:
    nursery = start(sys_path=["/nowhere"])
    with pytest.raises(WorkerError, match="did not start"):
        nursery.wait_ready(soon())
    nursery.close(soon())


def test_file_in_the_working_folder_does_not_shadow_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "socket.py").write_text("raise SystemExit('shadowed')\n")
    nursery = start(cwd=str(tmp_path))
    assert nursery.wait_ready(soon()).pid == nursery.pid
    nursery.close(soon())
