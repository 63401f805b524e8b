"""Processes that keep a generator: equal answers whatever happens to them, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from executor_runs import hashes, is_gone, run, until
from runtime_jobs import MANIFEST, make_job, make_jobs, text_of, texts_by_key

from undercurrent.runtime import (
    CoalitionDedupRegistry,
    Executor,
    GenerationRecord,
    GenerationTypeError,
    HotResultStore,
    InferenceScheduler,
    RetryPolicy,
    RunArchive,
)
from undercurrent.runtime.errors import RuntimeStateError
from undercurrent.runtime.executors import (
    ExecutorLostError,
    ExecutorTimeoutError,
    LocalExecutor,
    RemoteGenerationError,
)
from undercurrent.runtime.executors.process import HostProcess

GENERATORS = "executor_generators"


def test_a_batch_is_answered_in_order_by_a_process_that_keeps_its_generator() -> None:
    async def main() -> None:
        async with hashes(processes=1) as executor:
            assert isinstance(executor, Executor)
            assert (executor.capacity, executor.model_id) == (1, "hash")
            (pid,) = executor.pids
            assert pid != os.getpid()
            for _ in range(2):
                answers = await executor.generate_batch(make_jobs(3))
                assert [answer.text for answer in answers] == [text_of(f"prompt {number}") for number in range(3)]
            assert answers[0].logprobs == (-1 / 3,)
            assert executor.pids == (pid,)
            assert (executor.kv_cache_hits, executor.kv_cache_reused_tokens) == (6, 60)
            assert await executor.tokenize(["a b", ""]) == [[(0, 1), (2, 3)], []]
        assert is_gone(pid)

    run(main)


@pytest.mark.parametrize(("is_split", "together"), [(True, 1.0), (False, 3.0)])
def test_jobs_go_alone_unless_a_batch_may_go_whole(is_split: bool, together: float) -> None:
    async def main() -> None:
        async with hashes(processes=1, splits_batches=is_split) as executor:
            answers = await executor.generate_batch(make_jobs(3))
            assert {answer.values["beside"].value for answer in answers} == {together}

    run(main)


def test_a_run_over_an_executor_is_a_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with hashes(processes=2) as executor:
            with RunArchive.open(tmp_path, MANIFEST) as archive:
                scheduler = InferenceScheduler(
                    executor.capacity, None, HotResultStore(None), CoalitionDedupRegistry(), archive
                )
                metrics = await scheduler.run_batches(make_jobs(100), executor, batch_size=4)
                await archive.amark_complete()
        assert metrics.executed == 100

    run(main)
    with RunArchive.load(tmp_path) as archive:
        texts = texts_by_key(list(archive.history_lazy()))
    assert texts == {make_job(number).coalition_key: text_of(f"prompt {number}") for number in range(100)}


def test_what_a_job_raises_stands_in_its_place_with_where_it_was_raised() -> None:
    async def main() -> None:
        async with hashes(processes=1) as executor:
            jobs = [
                make_job(index, snapshot=text)
                for index, text in enumerate(("raise x", "refuse y", "raise-odd z", "exit", "fine"))
            ]
            missing, refused, odd, ended, fine = await executor.generate_batch(jobs)
            assert isinstance(missing, LookupError)
            assert missing.args == ("no x",)
            assert "in process" in missing.__notes__[0]
            assert "executor_generators.py" in missing.__notes__[0]
            assert isinstance(refused, ValueError)
            assert isinstance(odd, RemoteGenerationError)
            assert "OddError: z" in str(odd)
            assert isinstance(ended, RemoteGenerationError)
            assert "SystemExit: 3" in str(ended)
            assert fine.text == text_of("fine")
            assert executor.restarts == 0

    run(main)


def test_a_process_that_dies_is_replaced_and_its_open_jobs_are_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with hashes(tmp_path, processes=1) as executor:
            (pid,) = executor.pids
            jobs = [make_job(0), make_job(1, snapshot="die-once a"), make_job(2)]
            answers = await executor.generate_batch(jobs)
            assert [answer.text for answer in answers] == [text_of(job.snapshot) for job in jobs]
            assert executor.restarts == 1
            assert executor.pids != (pid,)
            assert is_gone(pid)

    run(main)


@pytest.mark.parametrize("is_split", [True, False])
def test_a_job_that_kills_every_process_fails_alone(is_split: bool) -> None:
    async def main() -> None:
        async with hashes(processes=1, attempts=2, splits_batches=is_split) as executor:
            jobs = [make_job(0), make_job(1, snapshot="die"), make_job(2)]
            first, lost, last = await executor.generate_batch(jobs)
            assert isinstance(lost, ExecutorLostError)
            assert "lost its process 2 times" in str(lost)
            assert "SIGKILL" in str(lost)
            assert (first.text, last.text) == (text_of("prompt 0"), text_of("prompt 2"))
            assert executor.restarts == (2 if is_split else 3)

    run(main)


def test_the_scheduler_s_retries_reach_a_lost_job(tmp_path: Path) -> None:
    async def main() -> None:
        async with hashes(tmp_path, processes=1, attempts=1) as executor:
            retry = RetryPolicy(attempts=2, first_pause_s=0.0, retry_on=(ExecutorLostError,))
            scheduler = InferenceScheduler(1, None, HotResultStore(), retry=retry)
            metrics = await scheduler.run_batches([make_job(0, snapshot="die-once b")], executor)
            assert metrics.executed == 1

    run(main)


def test_processes_killed_at_random_change_no_answer(tmp_path: Path) -> None:
    folder = tmp_path / "marks"
    folder.mkdir()

    async def main() -> None:
        async with LocalExecutor(
            f"{GENERATORS}:slow_words", kwargs={"folder": str(folder), "pause_s": 0.005}, processes=2
        ) as executor:
            scheduler = InferenceScheduler(2, None, store := HotResultStore(None))
            jobs = [make_job(n, snapshot=_conversation(n)) for n in range(60)]
            work = asyncio.create_task(scheduler.run_batches(jobs, executor, batch_size=4))
            marks = folder / "answers"
            for count in (5, 20, 40):
                await until(lambda: marks.exists() and len(marks.read_text().split()) >= count)  # noqa: B023
                for pid in executor.pids[:1]:
                    os.kill(pid, signal.SIGKILL)
            assert (await work).executed == 60
            assert executor.restarts >= 3
            assert [store.get(job.coalition_key) for job in jobs] == [job.snapshot.text for job in jobs]

    run(main)


def _conversation(number: int) -> Any:
    from undercurrent.runtime.domain import Conversation

    return Conversation.of(f"word {number}")


def test_a_cancelled_batch_ends_in_the_generator_and_the_process_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalExecutor(
            f"{GENERATORS}:PatientModel", kwargs={"folder": str(tmp_path)}, processes=1
        ) as executor:
            pids = executor.pids
            batch = asyncio.create_task(executor.generate_batch([make_job(0)]))
            await until((tmp_path / "started").exists)
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
            assert (tmp_path / "cancelled").exists()
            assert await executor.generate_batch([make_job(0, snapshot="quick")]) == ["quick"]
            assert executor.pids == pids
            assert not (tmp_path / "closed").exists()
        assert (tmp_path / "closed").exists()

    run(main)


def test_a_generator_that_hears_no_cancellation_loses_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("undercurrent.runtime.executors.local_executor._CANCEL_S", 0.05)

    async def main() -> None:
        async with hashes(tmp_path, processes=1) as executor:
            (pid,) = executor.pids
            batch = asyncio.create_task(executor.generate_batch([make_job(0, snapshot="hang")]))
            await until((tmp_path / "hanging").exists)
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
            assert is_gone(pid)
            assert (await executor.generate_batch([make_job(1)]))[0].text == text_of("prompt 1")

    run(main)


def test_a_batch_that_takes_too_long_fails_where_it_hangs(tmp_path: Path) -> None:
    async def main() -> None:
        async with hashes(tmp_path, processes=1, batch_timeout_s=0.5) as executor:
            answered, late = await executor.generate_batch([make_job(0), make_job(1, snapshot="hang")])
            assert isinstance(answered, GenerationRecord)
            assert isinstance(late, ExecutorTimeoutError)
            assert (await executor.generate_batch([make_job(1)]))[0].text == text_of("prompt 1")
            assert executor.restarts == 1

    run(main)


def test_closing_ends_a_batch_that_is_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        executor = LocalExecutor(f"{GENERATORS}:PatientModel", kwargs={"folder": str(tmp_path)}, processes=1)
        await executor.start()
        batch = asyncio.create_task(executor.generate_batch([make_job(0)]))
        await until((tmp_path / "started").exists)
        await executor.aclose()
        with pytest.raises(RuntimeStateError, match="closed"):
            await batch
        assert executor.pids == ()

    run(main)


def test_a_line_that_closes_while_its_process_lives_counts_as_its_death() -> None:
    async def main() -> None:
        async with hashes(processes=1) as executor:
            process = executor._processes[0]
            assert isinstance(process, HostProcess)
            process._writer.transport.abort()
            assert (await executor.generate_batch([make_job(0)]))[0].text == text_of("prompt 0")
            assert is_gone(process.pid)

    run(main)


PARENT = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from runtime_jobs import make_job
from undercurrent.runtime.executors import LocalExecutor

async def main():
    kwargs = {{"folder": {folder!r}}}
    async with LocalExecutor("executor_generators:PatientModel", kwargs=kwargs, processes=2) as executor:
        print(*executor.pids, flush=True)
        await executor.generate_batch([make_job(0)])

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    program = PARENT.format(tests=str(Path(__file__).parent.parent), folder=str(tmp_path))
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        pidfds = [os.pidfd_open(pid) for pid in pids]
        try:
            give_up_s = time.monotonic() + 30
            while not (tmp_path / "started").exists() and time.monotonic() < give_up_s:
                select.select([], [], [], 0.01)
            parent.send_signal(number)
            for pidfd in pidfds:
                assert select.select([pidfd], [], [], 20)[0], "a process outlived its parent"
            assert parent.wait(20) != 0
        finally:
            for pidfd in pidfds:
                os.close(pidfd)
        if number is signal.SIGINT:
            assert (tmp_path / "closed").exists()
            assert parent.stderr.read().rstrip().endswith("KeyboardInterrupt")


def test_an_answer_that_cannot_leave_is_an_error_of_its_job() -> None:
    async def main() -> None:
        async with LocalExecutor(f"{GENERATORS}:Unpicklable", processes=1) as executor:
            (error,) = await executor.generate_batch([make_job(0)])
            assert isinstance(error, GenerationTypeError)
            assert "cannot leave its process" in str(error)

    run(main)
