"""What the coalition runtime costs, for either package: `python -P uc_bench_runtime.py NAME '{"argument": value}'`.

Under this package's interpreter it measures `undercurrent.runtime`, under the peer's `mllm_shap.runtime`, which has the
same names. Prints one JSON object on its last line.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

try:
    from undercurrent import runtime

    IS_OURS = True
    GenerationConfig, PackedMask = runtime.GenerationConfig, runtime.PackedMask
    SCHEMA_VERSION = runtime.MANIFEST_SCHEMA_VERSION
except ImportError:
    IS_OURS = False
    runtime = import_module("mllm_shap.runtime")
    GenerationConfig = import_module("mllm_shap.domain.config").GenerationConfig
    PackedMask = import_module("mllm_shap.masking.codec").PackedMask
    SCHEMA_VERSION = import_module("mllm_shap.runtime.archive").MANIFEST_SCHEMA_VERSION

MASK = PackedMask(b"\xff\x0f", 16)
TEXT = "x" * 200


class Manifest:
    def to_dict(self):
        return {"run_id": "bench", "estimand": "shapley", "schema_version": SCHEMA_VERSION}


def make_jobs(count):
    for number in range(count):
        yield runtime.CoalitionJob(f"{number:064d}", "snapshot", None, "delete", b"\xff\x0f", 16, "model")


def make_drafts(count):
    keys = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(count)]
    return [runtime.CoalitionRecordDraft("snapshot", key, MASK, "delete", "model", TEXT, 1.5, False) for key in keys]


async def answer(snapshot):
    return "x"


async def bare(count, max_inflight):
    """A task group with the same two semaphores and nothing else."""
    pending, inflight = asyncio.Semaphore(4 * max_inflight), asyncio.Semaphore(max_inflight)

    async def one(job):
        async with inflight:
            return await answer(job.snapshot)

    def release(_):
        pending.release()

    async with asyncio.TaskGroup() as group:
        for job in make_jobs(count):
            await pending.acquire()
            group.create_task(one(job)).add_done_callback(release)


async def scheduled(count, max_inflight, archive=None, dedup=None):
    store = runtime.HotResultStore(maxsize=128)
    scheduler = runtime.InferenceScheduler(max_inflight, GenerationConfig(), store, dedup, archive)
    metrics = await scheduler.run_iter(make_jobs(count), answer)
    assert metrics.executed == count


def cpu_us(coroutine, count):
    started = time.process_time()
    asyncio.run(coroutine)
    return (time.process_time() - started) / count * 1e6


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


def scheduler(jobs=100_000, max_inflight=2, pairs=5):
    """CPU time per no-op job, in alternating pairs with the bare task group."""
    floors, costs, ratios, dedup_ratios = [], [], [], []
    for _ in range(pairs):
        floors.append(cpu_us(bare(jobs, max_inflight), jobs))
        costs.append(cpu_us(scheduled(jobs, max_inflight), jobs))
        ratios.append(costs[-1] / floors[-1])
        registry = runtime.CoalitionDedupRegistry()
        dedup_ratios.append(cpu_us(scheduled(jobs, max_inflight, dedup=registry), jobs) / floors[-1])
    return {
        "floor_us": median(floors),
        "job_us": median(costs),
        "ratio": median(ratios),
        "dedup_ratio": median(dedup_ratios),
    }


def memory(jobs=100_000):
    """Growth of the resident set over a run of many jobs with dedup, after a small one."""
    asyncio.run(scheduled(1000, 2, dedup=runtime.CoalitionDedupRegistry()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asyncio.run(scheduled(jobs, 2, dedup=runtime.CoalitionDedupRegistry()))
    return {"growth_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}


def open_archive(folder, flush_every):
    options = {} if flush_every is None else {"flush_every": flush_every}
    return runtime.RunArchive.open(Path(folder), Manifest(), **options)


def append(rows=100_000, flush_every=None, repeats=3):
    """Rows per second from the first append to the return of the last commit."""
    drafts = make_drafts(rows)
    rates, cpu = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            archive = open_archive(folder, flush_every)
            started, started_cpu = time.perf_counter(), time.process_time()
            for draft in drafts:
                archive.append(draft)
            archive.flush()
            rates.append(rows / (time.perf_counter() - started))
            cpu.append((time.process_time() - started_cpu) / rows * 1e6)
            archive.close()
    return {"rows_per_s": median(rates), "cpu_us": median(cpu)}


def archived_run(jobs=20_000):
    """CPU and wall time of a no-op job whose row is committed before it counts."""
    with tempfile.TemporaryDirectory() as folder:
        archive = open_archive(folder, None if IS_OURS else 1)
        started = time.perf_counter()
        spent_us = cpu_us(scheduled(jobs, 2, archive), jobs)
        wall_us = (time.perf_counter() - started) / jobs * 1e6
        archive.close()
    return {"cpu_us": spent_us, "wall_us": wall_us}


def latency(seconds=2.0, rows_per_tick=4, pairs=3):
    """How much later a loop's timers of 1 ms are while it appends, at the 99.9th percentile, in alternating pairs."""
    drafts = make_drafts(1000)

    async def beat(archive):
        late_us, number = [], 0
        until = time.perf_counter() + seconds
        while (now := time.perf_counter()) < until:
            for _ in range(rows_per_tick):
                number += 1
                if archive is not None:
                    archive.append(drafts[number % 1000])
            await asyncio.sleep(0.001)
            late_us.append((time.perf_counter() - now - 0.001) * 1e6)
        late_us.sort()
        return late_us[int(len(late_us) * 0.999)]

    idle, busy = [], []
    for _ in range(pairs):
        idle.append(asyncio.run(beat(None)))
        with tempfile.TemporaryDirectory() as folder:
            archive = open_archive(folder, None if IS_OURS else 1)
            busy.append(asyncio.run(beat(archive)))
            archive.close()
    added = median([after - before for before, after in zip(idle, busy, strict=True)])
    return {"idle_p999_us": median(idle), "busy_p999_us": median(busy), "added_p999_us": added}


def stream(rows=100_000, repeats=3):
    """Rows per second from `load` to the last row of `history_lazy`."""
    rates, cpu_us = [], []
    with tempfile.TemporaryDirectory() as folder:
        archive = open_archive(folder, None if IS_OURS else 5000)
        for draft in make_drafts(rows):
            archive.append(draft)
        archive.mark_complete()
        archive.close()
        for _ in range(repeats):
            started, started_cpu = time.perf_counter(), time.process_time()
            loaded = runtime.RunArchive.load(Path(folder))
            assert sum(1 for _ in loaded.history_lazy()) == rows
            rates.append(rows / (time.perf_counter() - started))
            cpu_us.append((time.process_time() - started_cpu) / rows * 1e6)
            loaded.close()
    return {"rows_per_s": median(rates), "cpu_us": median(cpu_us)}


def key(calls=20_000, players=16, repeats=5):
    """Microseconds of CPU time per coalition key."""
    names = tuple(f"snapshot:0:0:{player}" for player in range(players))
    masks = [tuple(bool(number >> player & 1) for player in range(players)) for number in range(256)]
    settings = GenerationConfig()
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        for number in range(calls):
            runtime.build_coalition_key("snapshot", names, masks[number % 256], "delete", "model", settings)
        best = min(best, time.process_time() - started)
    return {"key_us": best / calls * 1e6}


SCENARIOS = {
    function.__name__: function for function in (scheduler, memory, append, archived_run, latency, stream, key)
}

if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](**json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))))
