"""How an executor begins, what it refuses, and that it has one life."""

from __future__ import annotations

import pytest
from executor_generators import HashModel
from executor_runs import hashes, run
from runtime_jobs import make_job, text_of

from undercurrent.runtime.errors import RuntimeStateError, RuntimeTypeError, RuntimeValueError
from undercurrent.runtime.executors import ExecutorStartError, LocalExecutor

GENERATORS = "executor_generators"


@pytest.mark.parametrize(
    ("factory", "error", "words"),
    [
        ("broken", FileNotFoundError, "no weights"),
        ("dying", ExecutorStartError, "ended with status 7"),
        ("mute", ExecutorStartError, "must return an object with `generate_batch`, got object"),
        ("absent", ExecutorStartError, "no factory 'executor_generators:absent'"),
    ],
)
def test_a_factory_that_fails_is_told_at_the_start(factory: str, error: type[Exception], words: str) -> None:
    async def main() -> None:
        executor = LocalExecutor(f"{GENERATORS}:{factory}", processes=2)
        with pytest.raises(error, match=words):
            await executor.start()
        assert executor.pids == ()

    run(main)


def test_a_start_has_a_deadline() -> None:
    async def main() -> None:
        executor = LocalExecutor(f"{GENERATORS}:sleeping", processes=1, start_timeout_s=0.3)
        with pytest.raises(ExecutorStartError, match=r"not ready within 0\.3 s"):
            await executor.start()
        assert executor.pids == ()

    run(main)


def test_generators_of_two_models_are_refused() -> None:
    async def main() -> None:
        executor = LocalExecutor(HashModel, processes=2, per_process=[{"model_id": "a"}, {"model_id": "b"}])
        with pytest.raises(ExecutorStartError, match="of one model, got 'a', 'b'"):
            await executor.start()

    run(main)


def test_what_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(RuntimeTypeError, match=r"must be importable by another process, got .*<lambda>"):
        LocalExecutor(lambda: HashModel())
    with pytest.raises(RuntimeTypeError, match="cannot be sent to another process"):
        LocalExecutor(HashModel, kwargs={"model_id": lambda: None})
    with pytest.raises(RuntimeValueError, match=r"must be `module:function`, got 'module\.function'"):
        LocalExecutor("module.function")
    with pytest.raises(RuntimeValueError, match="`processes` must be >= 1, got 0"):
        LocalExecutor(HashModel, processes=0)
    with pytest.raises(RuntimeValueError, match="`batch_timeout_s` must be a finite number above 0"):
        LocalExecutor(HashModel, batch_timeout_s=float("inf"))

    async def main() -> None:
        async with hashes(processes=1) as executor:
            with pytest.raises(RuntimeTypeError, match="a job cannot be sent"):
                await executor.generate_batch([make_job(0, snapshot=lambda: None)])
            assert (await executor.generate_batch([make_job(0)]))[0].text == text_of("prompt 0")

    run(main)


def test_a_model_that_scores_no_answer_says_so() -> None:
    async def main() -> None:
        async with hashes(processes=1) as executor:
            executor.score_answer("blue")
            (error,) = await executor.generate_batch([make_job(0)])
            assert "HashModel scores no given answer" in str(error)
            executor.score_answer(None)
            assert (await executor.generate_batch([make_job(0)]))[0].text == text_of("prompt 0")

    run(main)


def test_an_executor_has_one_life() -> None:
    async def main() -> None:
        executor = LocalExecutor(HashModel, processes=1)
        with pytest.raises(RuntimeStateError, match="has not started"):
            await executor.generate_batch([make_job(0)])
        with pytest.raises(RuntimeStateError, match="start"):
            _ = executor.model_id
        await executor.start()
        with pytest.raises(RuntimeStateError, match="started once"):
            await executor.start()
        await executor.aclose()
        await executor.aclose()
        with pytest.raises(RuntimeStateError, match="was closed"):
            await executor.generate_batch([make_job(0)])

    run(main)
