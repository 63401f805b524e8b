"""A driver: jobs, generators and factories that misbehave on a Ray cluster, each with what it must come to."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from executor_generators import HashModel
from runtime_jobs import make_job, text_of

from undercurrent.runtime.executors import (
    ExecutorLostError,
    ExecutorTimeoutError,
    ExecutorUnavailableError,
    RayExecutor,
    ray_executor,
)

ADDRESS, FOLDER = sys.argv[1:]


def hashes(**options: Any) -> RayExecutor:
    return RayExecutor(HashModel, kwargs={"folder": FOLDER}, address=ADDRESS, **{"actors": 1, **options})


async def check_jobs_that_kill_or_raise() -> None:
    async with hashes(attempts=2) as executor:
        texts = ("fine", "die", "raise x", "die-once a", "raise-odd y", "also fine")
        fine, lost, missing, revived, odd, last = await executor.generate_batch(
            [make_job(index, snapshot=text) for index, text in enumerate(texts)]
        )
        assert isinstance(lost, ExecutorLostError), lost
        assert isinstance(missing, LookupError), missing
        assert "OddError: y" in str(odd), odd
        assert [fine.text, revived.text, last.text] == [text_of(text) for text in ("fine", "die-once a", "also fine")]
        assert executor.restarts >= 3, executor.restarts
        assert await executor.tokenize(["a b"]) == [[(0, 1), (2, 3)]]


async def check_a_hanging_batch() -> None:
    async with hashes(batch_timeout_s=2) as executor:
        (late,) = await executor.generate_batch([make_job(0, snapshot="hang")])
        assert isinstance(late, ExecutorTimeoutError), late
        assert (await executor.generate_batch([make_job(1)]))[0].text == text_of("prompt 1")


async def check_cancellation() -> None:
    order = {"kwargs": {"folder": FOLDER}, "address": ADDRESS, "actors": 1}
    async with RayExecutor("executor_generators:PatientModel", **order) as executor:  # type: ignore[arg-type]
        await _cancel(executor, make_job(0), Path(FOLDER) / "started")
        assert (Path(FOLDER) / "cancelled").exists()
        assert executor.restarts == 0
        assert await executor.generate_batch([make_job(0, snapshot="quick")]) == ["quick"]
    assert (Path(FOLDER) / "closed").exists()
    ray_executor._CANCEL_S = 0.5
    (Path(FOLDER) / "hanging").unlink()
    async with hashes() as executor:
        await _cancel(executor, make_job(0, snapshot="hang"), Path(FOLDER) / "hanging")
        assert (await executor.generate_batch([make_job(1)]))[0].text == text_of("prompt 1")
        assert executor.restarts == 1


async def _cancel(executor: RayExecutor, job: Any, mark: Path) -> None:
    batch = asyncio.create_task(executor.generate_batch([job]))
    while not mark.exists():
        await asyncio.sleep(0.02)
    batch.cancel()
    assert isinstance((await asyncio.gather(batch, return_exceptions=True))[0], asyncio.CancelledError)


async def check_starts_that_fail() -> None:
    with pytest.raises(FileNotFoundError, match="no weights"):
        await RayExecutor("executor_generators:broken", address=ADDRESS, actors=1).start()
    with pytest.raises(ExecutorUnavailableError, match=r"'num_cpus': 64.*the cluster has \{'CPU': "):
        await hashes(cpus_per_actor=64, start_timeout_s=3).start()


async def check_idle_actors_end() -> None:
    import ray

    ray.init(address=ADDRESS, namespace="undercurrent", log_to_driver=False, logging_level="ERROR")
    executor = hashes(name="idle", idle_timeout_s=1)
    await executor.start()
    name = f"idle-{executor._factory.fingerprint}-0"
    ray.get_actor(name)
    while True:
        try:
            ray.get_actor(name)
        except ValueError:
            break
        await asyncio.sleep(0.1)
    ray.shutdown()


async def main() -> None:
    checks = (
        check_jobs_that_kill_or_raise,
        check_a_hanging_batch,
        check_cancellation,
        check_starts_that_fail,
        check_idle_actors_end,
    )
    for check in checks:
        print(check.__name__, flush=True)
        await check()
    print("every trouble stayed where it was")


asyncio.run(main())
