"""A batching generator gets groups that share a prefix, as large as they may be, and each job its own answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_jobs import MANIFEST, make_job, make_jobs, text_of

from undercurrent.runtime import (
    BatchGenerator,
    CoalitionDedupRegistry,
    CoalitionJob,
    GenerationTypeError,
    HotResultStore,
    InferenceScheduler,
    JobCancelledError,
    JobTimeoutError,
    RetryPolicy,
    RunArchive,
    SchedulerMetrics,
    group_jobs_for_prefix_cache,
    prefix_order,
    unpack_mask,
)
from undercurrent.runtime.batches import plan_batches


class BatchModel:
    """Answers batches with `text_of` and remembers them."""

    def __init__(self) -> None:
        self.batches: list[list[CoalitionJob]] = []
        self.inside = self.most_inside = 0

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[str | Exception]:
        self.batches.append(list(jobs))
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        return [text_of(job.snapshot) for job in jobs]


def scheduler(max_inflight: int = 1, **options: object) -> InferenceScheduler:
    store = options.pop("store", HotResultStore(maxsize=None))
    return InferenceScheduler(max_inflight, None, store, **options)  # type: ignore[arg-type]


def run(model: object, jobs: Sequence[CoalitionJob], *, batch_size: int = 8, **options: object) -> SchedulerMetrics:
    return asyncio.run(scheduler(**options).run_batches(jobs, model, batch_size=batch_size))  # type: ignore[arg-type]


def present(job: CoalitionJob) -> tuple[bool, ...]:
    return unpack_mask(job.mask)


def shared_players(jobs: Sequence[CoalitionJob]) -> int:
    """How many leading players all jobs agree on."""
    columns = zip(*(present(job) for job in jobs), strict=True)
    return len(list(itertools.takewhile(lambda column: len(set(column)) == 1, columns)))


def plan(jobs: Sequence[CoalitionJob], size: int) -> list[list[CoalitionJob]]:
    return [[jobs[index] for index in batch] for batch in plan_batches(jobs, size)]


def test_prefix_order_is_the_order_of_players() -> None:
    jobs = sorted(make_jobs(256), key=prefix_order)
    assert [present(job) for job in jobs] == sorted(present(job) for job in make_jobs(256))


def test_jobs_of_one_hash_are_neighbours_and_keep_their_order() -> None:
    jobs = [make_job(number, prefix_hash="ab"[number % 2]) for number in range(6)]
    assert [job.snapshot for job in group_jobs_for_prefix_cache(jobs, key=lambda job: job.prefix_hash)] == [
        f"prompt {number}" for number in (0, 2, 4, 1, 3, 5)
    ]


def test_batches_share_the_longest_prefixes_and_are_full() -> None:
    model = BatchModel()
    metrics = run(model, make_jobs(64, players=6), pending_limit=64)
    assert metrics == SchedulerMetrics(64, 64, 0, 0)
    assert [len(batch) for batch in model.batches] == [8] * 8
    # 8 of 64 coalitions of 6 players agree on 3 players where they are chosen well.
    assert [shared_players(batch) for batch in model.batches] == [3] * 8


def test_a_batch_takes_groups_of_one_hash_whole() -> None:
    jobs = [make_job(number, prefix_hash="aaaaabbbcd"[number]) for number in range(10)]
    batches = plan(jobs, 4)
    hashes = ["".join(job.prefix_hash for job in batch) for batch in batches]
    assert sorted("".join(hashes)) == list("aaaaabbbcd")
    assert "aaaa" in hashes
    assert all(len(batch) <= 4 for batch in batches)
    assert sum("b" in one for one in hashes) == 1


@given(
    st.lists(st.tuples(st.integers(0, 255), st.sampled_from(["", "a", "b", "c"]), st.integers(0, 2)), max_size=40),
    st.integers(1, 9),
)
def test_planning_loses_no_job_and_cuts_no_group_that_fits(rows: list[tuple[int, str, int]], size: int) -> None:
    jobs = [make_job(number, prefix_hash=digest, priority=priority) for number, digest, priority in rows]
    batches = plan(jobs, size)
    planned = [job for batch in batches for job in batch]
    assert sorted(map(id, planned)) == sorted(map(id, jobs))
    assert all(0 < len(batch) <= size for batch in batches)
    priorities = [job.priority for job in planned]
    assert priorities == sorted(priorities, reverse=True)
    for digest in "abc":
        for priority in range(3):
            group = {id(job) for job in jobs if (job.prefix_hash, job.priority) == (digest, priority)}
            holders = [batch for batch in batches if any(id(job) in group for job in batch)]
            assert len(holders) <= max(1, -(-len(group) // size))


def test_max_inflight_bounds_the_concurrent_batches() -> None:
    model = BatchModel()
    run(model, make_jobs(60), batch_size=4, max_inflight=3)
    assert model.most_inside == 3


def test_a_plain_function_will_do_and_an_object_is_a_batch_generator() -> None:
    model = BatchModel()
    assert isinstance(model, BatchGenerator)
    assert run(model.generate_batch, make_jobs(5)).executed == 5
    with pytest.raises(TypeError, match="an object with `generate_batch` was expected, got str"):
        run("model", make_jobs(5))


def test_one_job_that_comes_several_times_is_answered_each_time() -> None:
    model = BatchModel()
    assert run(model, [make_job(1)] * 3).executed == 3
    assert [len(batch) for batch in model.batches] == [3]


def test_equal_jobs_of_a_batch_are_asked_once_and_each_gets_a_row(tmp_path: Path) -> None:
    model = BatchModel()
    jobs = [make_job(number % 4) for number in range(12)]
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        metrics = run(model, jobs, dedup=CoalitionDedupRegistry(), archive=archive)
        rows = list(archive.history_lazy())
    assert (metrics.executed, metrics.deduplicated + metrics.cache_hits) == (4, 8)
    assert sum(map(len, model.batches)) == 4
    assert sorted(row.generation_text for row in rows) == sorted(text_of(job.snapshot) for job in jobs)


def test_a_high_priority_goes_into_the_first_batch() -> None:
    model = BatchModel()
    jobs = [make_job(number, priority=number // 60) for number in range(64)]
    run(model, jobs, batch_size=4, pending_limit=64)
    assert [job.snapshot for job in model.batches[0]] == [f"prompt {n}" for n in (60, 62, 61, 63)]


def test_an_exception_in_a_job_s_place_fails_or_retries_that_job_alone() -> None:
    class Flaky(BatchModel):
        async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[str | Exception]:
            answers = await super().generate_batch(jobs)
            return [
                ConnectionError("lost") if job.snapshot == "prompt 3" and len(self.batches) == 1 else answer
                for job, answer in zip(jobs, answers, strict=True)
            ]

    with pytest.raises(ConnectionError):
        run(Flaky(), make_jobs(8))
    model = Flaky()
    assert run(model, make_jobs(8), retry=RetryPolicy(attempts=2, first_pause_s=0)).executed == 8
    assert [len(batch) for batch in model.batches] == [8, 1]


def test_a_batch_that_raises_is_retried_for_each_of_its_jobs() -> None:
    class Flaky(BatchModel):
        async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[str | Exception]:
            answers = await super().generate_batch(jobs)
            if len(self.batches) == 1:
                raise ConnectionError("engine restarts")
            return answers

    model = Flaky()
    assert run(model, make_jobs(6), retry=RetryPolicy(attempts=2, first_pause_s=0)).executed == 6
    with pytest.raises(ConnectionError, match="engine restarts"):
        run(Flaky(), make_jobs(6))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (["one"], "a batch of 3 jobs must get 3 answers in a list, got 1 answers"),
        ("abc", "must get 3 answers"),
        (None, "got NoneType"),
        (["a", "b", 3], "got int"),
    ],
)
def test_answers_of_the_wrong_number_or_type_are_refused(answers: object, message: str) -> None:
    async def generate_batch(jobs: Sequence[CoalitionJob]) -> object:
        return answers

    with pytest.raises(GenerationTypeError, match=message):
        run(generate_batch, make_jobs(3))


def test_a_batch_that_cancels_itself_is_an_error() -> None:
    async def generate_batch(jobs: Sequence[CoalitionJob]) -> list[str]:
        raise asyncio.CancelledError

    with pytest.raises(JobCancelledError, match="a batch of 3 jobs"):
        run(generate_batch, make_jobs(3))


def test_a_batch_nobody_waits_for_any_more_gives_its_slot_back() -> None:
    calls: list[int] = []

    async def generate_batch(jobs: Sequence[CoalitionJob]) -> list[str]:
        calls.append(len(jobs))
        if len(calls) == 1:
            await asyncio.Event().wait()
        return ["x"] * len(jobs)

    policy = RetryPolicy(attempts=2, first_pause_s=0, attempt_timeout_s=0.01)
    assert run(generate_batch, make_jobs(4), retry=policy).executed == 4
    assert calls == [4, 4]


def test_a_batch_beyond_its_deadline_fails_by_name() -> None:
    async def generate_batch(jobs: Sequence[CoalitionJob]) -> list[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(JobTimeoutError, match=r"was not generated within 0.01 s"):
        run(generate_batch, make_jobs(2), deadline_s=0.01)


def test_no_task_is_left_when_a_batch_fails() -> None:
    async def go() -> None:
        async def generate_batch(jobs: Sequence[CoalitionJob]) -> list[str]:
            if jobs[0].snapshot == "prompt 0":
                raise ConnectionError("lost")
            await asyncio.Event().wait()
            return []

        with pytest.raises(ConnectionError):
            await scheduler(4).run_batches(make_jobs(30), generate_batch, batch_size=2)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())


@pytest.mark.parametrize("fail_at", range(1, 9))
def test_a_run_that_fails_leaves_every_slot_to_the_next_one(fail_at: int) -> None:
    calls = 0

    async def generate_batch(jobs: Sequence[CoalitionJob]) -> list[str]:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise ConnectionError("lost")
        await asyncio.sleep(0)
        return ["x"] * len(jobs)

    runner, model = scheduler(3), BatchModel()
    with pytest.raises(ConnectionError):
        asyncio.run(runner.run_batches(make_jobs(40), generate_batch, batch_size=3))
    asyncio.run(runner.run_batches([make_job(number) for number in range(100, 140)], model, batch_size=3))
    assert model.most_inside == 3


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="`batch_size` must be >= 1"):
        run(BatchModel(), make_jobs(1), batch_size=0)
