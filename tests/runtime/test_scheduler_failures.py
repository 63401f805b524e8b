"""The first failure is raised as it is, nothing is left running, and no run counts less than it was asked for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from runtime_jobs import MANIFEST, CountingModel, make_job, make_jobs, text_of

from undercurrent.runtime import (
    CoalitionDedupRegistry,
    CoalitionJob,
    GenerationTypeError,
    HotResultStore,
    InferenceScheduler,
    JobCancelledError,
    RunArchive,
    SchedulerMetrics,
)


def scheduler(max_inflight: int = 2, **options: object) -> InferenceScheduler:
    return InferenceScheduler(max_inflight, None, HotResultStore(maxsize=None), **options)  # type: ignore[arg-type]


class Broken(Exception):
    """What a model may raise."""


def test_the_first_failure_cancels_the_other_jobs_and_is_raised_bare() -> None:
    cancelled: list[object] = []
    failure = Broken("no tokens left")
    failure.__cause__ = cause = KeyError("inner")

    async def generate(snapshot: object) -> str:
        if snapshot == "prompt 3":
            raise failure
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(snapshot)
            raise
        return "never"

    async def go() -> None:
        with pytest.raises(Broken) as caught:
            await scheduler(4).run(make_jobs(4), generate)
        assert caught.value is failure
        assert caught.value.__cause__ is cause
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())
    assert set(cancelled) == {"prompt 0", "prompt 1", "prompt 2"}


def test_nested_groups_are_searched_past_cancellations() -> None:
    failure = Broken("deep")

    async def generate(snapshot: object) -> str:
        raise BaseExceptionGroup(
            "outer", [asyncio.CancelledError(), ExceptionGroup("inner", [failure, ValueError("later")])]
        )

    with pytest.raises(Broken) as caught:
        asyncio.run(scheduler().run(make_jobs(1), generate))
    assert caught.value is failure


def test_a_failing_iterator_is_raised_the_same_way() -> None:
    def jobs() -> Iterator[CoalitionJob]:
        yield make_job(1)
        raise KeyError("no more")

    async def generate(snapshot: object) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            raise Broken("while it was cancelled")

    async def go() -> None:
        with pytest.raises(KeyError, match="no more"):
            await scheduler().run_iter(jobs(), generate)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())


def test_a_generator_that_cancels_itself_is_an_error_and_no_success_with_less() -> None:
    async def generate(snapshot: object) -> str:
        raise asyncio.CancelledError

    with pytest.raises(JobCancelledError, match="cancelled from within its generator"):
        asyncio.run(scheduler().run(make_jobs(2), generate))


def test_a_task_cancelled_by_somebody_else_is_an_error_too() -> None:
    async def generate(snapshot: object) -> str:
        task = asyncio.current_task()
        assert task is not None
        if snapshot == "prompt 1":
            task.cancel()
        await asyncio.sleep(0)
        return "x"

    with pytest.raises(JobCancelledError, match="1 of 3 jobs were cancelled"):
        asyncio.run(scheduler().run(make_jobs(3), generate))


def test_cancelling_the_run_cancels_every_job() -> None:
    async def go() -> None:
        async def generate(snapshot: object) -> str:
            await asyncio.Event().wait()
            return "never"

        running = asyncio.create_task(scheduler().run(make_jobs(9), generate))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())


def test_a_failure_frees_its_key_for_the_next_run() -> None:
    registry = CoalitionDedupRegistry()
    runner = scheduler(dedup=registry)
    model = CountingModel(failures=[Broken("once")])
    with pytest.raises(Broken):
        asyncio.run(runner.run([make_job(1)], model))
    assert not registry.contains(make_job(1).coalition_key)
    assert asyncio.run(runner.run([make_job(1)], model)) == SchedulerMetrics(1, 1, 0, 0)


def test_when_the_first_of_a_key_fails_in_one_run_a_duplicate_of_another_takes_over() -> None:
    async def go() -> None:
        runner = scheduler(4, dedup=CoalitionDedupRegistry())
        entered = asyncio.Event()

        async def fail(snapshot: object) -> str:
            entered.set()
            await asyncio.sleep(0)
            raise Broken("first")

        first = asyncio.create_task(runner.run([make_job(1)], fail))
        await entered.wait()
        model = CountingModel()
        second = await runner.run([make_job(1)], model)
        with pytest.raises(Broken):
            await first
        assert second == SchedulerMetrics(1, 1, 0, 0)
        assert model.asked == ["prompt 1"]

    asyncio.run(go())


@pytest.mark.parametrize(
    ("answer", "what"), [(None, "NoneType"), (b"bytes", "bytes"), (SimpleNamespace(text=3), "int as `text`")]
)
def test_an_answer_of_the_wrong_type_is_refused_by_name(answer: object, what: str) -> None:
    async def generate(snapshot: object) -> str:
        return answer  # type: ignore[return-value]

    with pytest.raises(GenerationTypeError, match=what):
        asyncio.run(scheduler().run(make_jobs(1), generate))


def test_an_exception_of_the_progress_fails_the_run() -> None:
    class Progress:
        def on_coalitions_planned(self, total: int) -> None:
            pass

        def on_coalition_finished(self, done: int, total: int) -> None:
            raise Broken("screen is gone")

    with pytest.raises(Broken, match="screen is gone"):
        asyncio.run(scheduler(progress=Progress()).run(make_jobs(3), CountingModel()))


def test_progress_counts_no_job_that_failed_or_was_cancelled() -> None:
    finished: list[int] = []

    class Progress:
        def on_coalitions_planned(self, total: int) -> None:
            pass

        def on_coalition_finished(self, done: int, total: int) -> None:
            finished.append(done)

    async def generate(snapshot: object) -> str:
        await asyncio.sleep(0)
        if snapshot == "prompt 1":
            raise Broken("second")
        return "x"

    with pytest.raises(Broken):
        asyncio.run(scheduler(1, progress=Progress()).run(make_jobs(6), generate))
    assert finished == [1]


def test_a_failed_run_leaves_an_archive_that_is_not_complete(tmp_path: Path) -> None:
    async def generate(snapshot: object) -> str:
        if snapshot == "prompt 3":
            raise Broken("no")
        return text_of(snapshot)

    archive = RunArchive.open(tmp_path, MANIFEST)
    with pytest.raises(Broken), archive:
        asyncio.run(scheduler(1, archive=archive).run(make_jobs(6), generate))
    loaded = RunArchive.load(tmp_path)
    assert not loaded.is_complete
    assert [row.generation_text for row in loaded.history_lazy()] == [text_of(f"prompt {n}") for n in range(3)]
    loaded.close()


NOISE = """
import asyncio, gc
from undercurrent.runtime import *
async def generate(snapshot):
    await asyncio.sleep(0)
    raise ValueError(snapshot)
async def cancels(snapshot):
    await asyncio.sleep(0)
    raise asyncio.CancelledError
def job(n): return CoalitionJob(f"{n:064d}", "s", n, "delete", b"", 0, "m")
for generate in (generate, cancels):
    for dedup in (None, CoalitionDedupRegistry()):
        runner = InferenceScheduler(4, None, HotResultStore(), dedup)
        try:
            asyncio.run(runner.run([job(n % 3) for n in range(20)], generate))
        except (ValueError, RuntimeError) as error:
            print(type(error).__name__)
gc.collect()
"""


def test_no_task_exception_is_ever_unretrieved() -> None:
    command = [sys.executable, "-P", "-X", "dev", "-c", NOISE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["ValueError"] * 2 + ["JobCancelledError"] * 2
    assert done.stderr == ""


INTERRUPT = """
import asyncio, sys
from undercurrent.runtime import *
async def one(snapshot):
    await asyncio.sleep(0)
    raise {kind}
async def many(jobs):
    await asyncio.sleep(0)
    raise {kind}
def runner(): return InferenceScheduler(2, None, HotResultStore())
jobs = [CoalitionJob(str(n), "s", n, "delete", b"", 0, "m") for n in range(5)]
for run in (lambda: runner().run(jobs, one), lambda: runner().run_batches(jobs, many)):
    try:
        asyncio.run(run())
    except {kind}:
        print("caught")
"""


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit"])
def test_an_interrupt_leaves_no_exception_that_nobody_retrieved(kind: str) -> None:
    command = [sys.executable, "-P", "-X", "dev", "-c", INTERRUPT.format(kind=kind)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.stdout.split(), done.stderr) == (["caught", "caught"], "")
