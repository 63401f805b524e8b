"""Jobs are taken lazily, run within bounds, each text is generated once, and what is counted is committed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_jobs import GENERATION, MANIFEST, CountingModel, make_job, make_jobs, text_of

from undercurrent.runtime import (
    CoalitionDedupRegistry,
    CoalitionJob,
    GenerationRecord,
    HotResultStore,
    InferenceScheduler,
    ProbeValue,
    RunArchive,
    SchedulerMetrics,
)
from undercurrent.runtime.errors import RuntimeStateError, RuntimeValueError


class Gate:
    """A model that answers when it is let, and knows how many calls are in it."""

    def __init__(self) -> None:
        self.inside = self.most_inside = 0
        self.opened = asyncio.Event()
        self.entered = asyncio.Event()

    async def __call__(self, snapshot: object) -> str:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.entered.set()
        try:
            await self.opened.wait()
        finally:
            self.inside -= 1
        return text_of(snapshot)


class Steps:
    """Progress as a list of what was said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int, int]] = []

    def on_coalitions_planned(self, total: int) -> None:
        self.said.append(("planned", total, 0))

    def on_coalition_finished(self, done: int, total: int) -> None:
        self.said.append(("finished", done, total))


def scheduler(max_inflight: int = 2, **options: object) -> InferenceScheduler:
    store = options.pop("store", HotResultStore(maxsize=None))
    return InferenceScheduler(max_inflight, None, store, **options)  # type: ignore[arg-type]


async def settle() -> None:
    """Lets every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_every_job_of_an_iterator_runs_and_its_text_is_kept() -> None:
    store = HotResultStore(maxsize=None)
    model = CountingModel()
    metrics = asyncio.run(scheduler(store=store).run_iter(iter(make_jobs(100)), model))
    assert metrics == SchedulerMetrics(requested=100, executed=100, deduplicated=0, cache_hits=0)
    assert (metrics.kv_cache_hits, metrics.kv_cache_reused_tokens) == (0, 0)
    assert all(store.get(job.coalition_key) == text_of(job.snapshot) for job in make_jobs(100))
    assert model.asked == [job.snapshot for job in make_jobs(100)]


@pytest.mark.parametrize(("max_inflight", "pending_limit", "live"), [(2, None, 8), (3, None, 12), (2, 5, 5), (2, 0, 8)])
def test_live_tasks_are_bounded_and_the_iterator_is_taken_lazily(
    max_inflight: int, pending_limit: int | None, live: int
) -> None:
    taken = 0

    def jobs() -> Iterator[CoalitionJob]:
        nonlocal taken
        for job in make_jobs(50):
            taken += 1
            yield job

    async def go() -> tuple[int, int, int]:
        gate = Gate()
        running = asyncio.create_task(scheduler(max_inflight, pending_limit=pending_limit).run_iter(jobs(), gate))
        await settle()
        waiting = (taken, len(asyncio.all_tasks()) - 2, gate.inside)
        gate.opened.set()
        await running
        return waiting

    # One more job is taken than there are slots: it waits for one.
    assert asyncio.run(go()) == (live + 1, live, max_inflight)
    assert taken == 50


def test_a_job_that_ends_makes_room_for_the_next_one() -> None:
    async def go() -> list[int]:
        gates = {job.snapshot: asyncio.Event() for job in make_jobs(6)}
        started: list[object] = []

        async def generate(snapshot: object) -> str:
            started.append(snapshot)
            await gates[snapshot].wait()
            return "x"

        running = asyncio.create_task(scheduler(2, pending_limit=2).run(make_jobs(6), generate))
        seen = []
        for job in make_jobs(6):
            await settle()
            seen.append(len(started))
            gates[job.snapshot].set()
        await running
        return seen

    assert asyncio.run(go()) == [2, 3, 4, 5, 6, 6]


def test_never_more_than_max_inflight_calls_at_once() -> None:
    async def go() -> int:
        gate = Gate()
        running = asyncio.create_task(scheduler(3, pending_limit=20).run(make_jobs(20), gate))
        await settle()
        gate.opened.set()
        await running
        return gate.most_inside

    assert asyncio.run(go()) == 3


def test_a_pending_limit_below_max_inflight_bounds_the_calls_too() -> None:
    async def go() -> int:
        gate = Gate()
        running = asyncio.create_task(scheduler(4, pending_limit=1).run(make_jobs(6), gate))
        await settle()
        gate.opened.set()
        await running
        return gate.most_inside

    assert asyncio.run(go()) == 1


def test_equal_keys_reuse_the_stored_text() -> None:
    model, registry = CountingModel(), CoalitionDedupRegistry()
    jobs = [make_job(number % 10) for number in range(100)]
    metrics = asyncio.run(scheduler(4, dedup=registry).run(jobs, model))
    assert metrics == SchedulerMetrics(requested=100, executed=10, deduplicated=0, cache_hits=90)
    assert len(model.asked) == 10
    assert len(registry) == 0


def test_a_duplicate_in_flight_waits_for_the_first_and_gets_its_row(tmp_path: Path) -> None:
    async def go() -> tuple[SchedulerMetrics, int]:
        gate = Gate()
        with RunArchive.open(tmp_path, MANIFEST) as archive:
            runner = scheduler(3, dedup=CoalitionDedupRegistry(), archive=archive)
            running = asyncio.create_task(runner.run([make_job(5)] * 3, gate))
            await gate.entered.wait()
            await settle()
            gate.opened.set()
            return await running, gate.most_inside

    metrics, calls = asyncio.run(go())
    assert metrics == SchedulerMetrics(requested=3, executed=1, deduplicated=2, cache_hits=0)
    assert calls == 1
    rows = list(RunArchive.load(tmp_path).history_lazy())
    assert [(row.generation_text, row.cache_hit) for row in rows] == [(text_of("prompt 5"), hit) for hit in (0, 1, 1)]


def test_a_duplicate_of_what_the_store_has_lost_gets_its_text_all_the_same() -> None:
    model = CountingModel()
    jobs = [make_job(1), make_job(2), make_job(1)]
    runner = scheduler(1, pending_limit=1, dedup=CoalitionDedupRegistry(), store=HotResultStore(maxsize=1))
    metrics = asyncio.run(runner.run(jobs, model))
    assert metrics == SchedulerMetrics(requested=3, executed=3, deduplicated=0, cache_hits=0)


def test_without_dedup_every_job_in_flight_runs() -> None:
    async def go() -> int:
        gate = Gate()
        running = asyncio.create_task(scheduler(3).run([make_job(1)] * 3, gate))
        await settle()
        gate.opened.set()
        assert (await running).executed == 3
        return gate.most_inside

    assert asyncio.run(go()) == 3


def test_cache_hits_of_a_filled_store_carry_the_stored_logprobs(tmp_path: Path) -> None:
    store = HotResultStore()
    store.put(make_job(1).coalition_key, "kept", (-0.5, -1.5))
    model = CountingModel()
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        metrics = asyncio.run(scheduler(store=store, archive=archive).run([make_job(1)], model))
        (row,) = archive.history_lazy()
    assert metrics == SchedulerMetrics(requested=1, executed=0, deduplicated=0, cache_hits=1)
    assert not model.asked
    assert (row.generation_text, row.logprobs, row.cache_hit, row.elapsed_ms) == ("kept", (-0.5, -1.5), True, 0.0)


def test_a_generation_record_brings_logprobs_and_values(tmp_path: Path) -> None:
    values = {"danger": ProbeValue(0.75, (0.5, 1.0))}

    async def generate(snapshot: object) -> GenerationRecord:
        return GenerationRecord("text", (-0.25,), values)

    store = HotResultStore()
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        asyncio.run(scheduler(store=store, archive=archive).run([make_job(1)], generate))
        (row,) = archive.history_lazy()
    assert (row.generation_text, row.logprobs, row.values) == ("text", (-0.25,), values)
    assert row.elapsed_ms >= 0
    entry = store.entry(make_job(1).coalition_key)
    assert entry is not None
    assert (entry.text, entry.logprobs, entry.values) == ("text", (-0.25,), values)


def test_progress_reports_one_cumulative_plan_across_calls() -> None:
    steps = Steps()
    runner = scheduler(1, progress=steps)
    for jobs in (make_jobs(3), make_jobs(2)):
        asyncio.run(runner.run(jobs, CountingModel()))
    assert steps.said == [
        ("planned", 3, 0),
        *(("finished", done, 3) for done in (1, 2, 3)),
        ("planned", 5, 0),
        *(("finished", done, 5) for done in (4, 5)),
    ]


def test_without_a_total_the_plan_grows_with_each_job_taken() -> None:
    steps = Steps()
    asyncio.run(scheduler(1, pending_limit=1, progress=steps).run_iter(iter(make_jobs(3)), CountingModel()))
    assert steps.said == [("finished", 1, 2), ("finished", 2, 3), ("finished", 3, 3)]


def test_progress_and_counters_follow_the_commit() -> None:
    class SlowArchive:
        is_read_only = False
        commit = asyncio.Event()

        def lookup(self, key: str) -> None:
            return None

        def has_recorded(self, key: str) -> bool:
            return False

        async def aappend(self, draft: object) -> int:
            await self.commit.wait()
            return 1

    async def go() -> None:
        steps, archive = Steps(), SlowArchive()
        running = asyncio.create_task(scheduler(progress=steps, archive=archive).run([make_job(1)], CountingModel()))
        await settle()
        assert steps.said == [("planned", 1, 0)]
        archive.commit.set()
        assert (await running).executed == 1
        assert steps.said[-1] == ("finished", 1, 1)

    asyncio.run(go())


def test_memory_stays_flat_with_a_bounded_store() -> None:
    alive: weakref.WeakSet[object] = weakref.WeakSet()

    class Snapshot:
        pass

    most = 0

    def jobs() -> Iterator[CoalitionJob]:
        nonlocal most
        for number in range(2000):
            snapshot = Snapshot()
            alive.add(snapshot)
            yield make_job(number % 256, snapshot=snapshot, coalition_key=str(number))
            most = max(most, len(alive))

    store = HotResultStore(maxsize=128)

    async def generate(snapshot: object) -> str:
        return "x"

    asyncio.run(scheduler(2, store=store).run_iter(jobs(), generate))
    gc.collect()
    assert len(store) == 128
    assert most <= 20


def test_one_scheduler_runs_on_one_loop_after_another() -> None:
    runner = scheduler(1)

    async def generate(snapshot: object) -> str:
        await asyncio.sleep(0)
        return "x"

    for start in (0, 10):
        jobs = [make_job(number) for number in range(start, start + 5)]
        assert asyncio.run(runner.run(jobs, generate)).executed == 5


def test_two_runs_of_one_scheduler_share_the_bound_and_the_jobs_in_flight() -> None:
    async def go() -> tuple[int, list[int]]:
        gate = Gate()
        runner = scheduler(2, dedup=CoalitionDedupRegistry())
        runs = [asyncio.create_task(runner.run(make_jobs(4), gate)) for _ in range(2)]
        await settle()
        gate.opened.set()
        metrics = await asyncio.gather(*runs)
        assert all(one.requested == one.executed + one.deduplicated + one.cache_hits for one in metrics)
        return gate.most_inside, [sum(one.executed for one in metrics)]

    assert asyncio.run(go()) == (2, [4])


def test_a_run_in_another_loop_at_the_same_time_is_refused() -> None:
    runner = scheduler()

    async def go() -> None:
        gate = Gate()
        running = asyncio.create_task(runner.run(make_jobs(1), gate))
        await settle()
        with pytest.raises(RuntimeStateError, match="running in another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(runner.run(make_jobs(1), gate)))
        gate.opened.set()
        assert (await running).executed == 1

    asyncio.run(go())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_inflight": 0}, "`max_inflight` must be >= 1, got 0"),
        ({"pending_limit": -1}, "`pending_limit` must be >= 1"),
        ({"deadline_s": 0}, "`deadline_s` must be above 0"),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused_at_once(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(RuntimeValueError, match=message):
        scheduler(**arguments)  # type: ignore[arg-type]


def test_generation_may_be_none_or_settings() -> None:
    assert scheduler().generation is None
    assert InferenceScheduler(1, GENERATION, HotResultStore()).generation == GENERATION
