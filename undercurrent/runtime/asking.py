"""How a model is asked for one job: attempts, pauses, deadlines, and what counts as an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from undercurrent.runtime.errors import GenerationTypeError, JobCancelledError, JobTimeoutError
from undercurrent.runtime.jobs import CoalitionJob
from undercurrent.runtime.protocols import GenerateFn
from undercurrent.runtime.retries import RetryPolicy
from undercurrent.runtime.slots import PrioritySlots
from undercurrent.runtime.store import StoredGeneration

__all__ = [
    "Answer",
    "Ask",
    "accept",
    "as_batch_error",
    "ask_one_by_one",
    "ask_with_retries",
    "require_batch_answers",
    "require_not_cancelled",
]

Answer: TypeAlias = tuple[StoredGeneration, float]
"""A generation and the milliseconds it took, waits excluded."""
Ask: TypeAlias = Callable[[CoalitionJob], Awaitable[Answer]]


def ask_one_by_one(generate: GenerateFn, slots: PrioritySlots) -> Ask:
    """Asks with one call per job, as many at a time as there are slots."""

    async def ask(job: CoalitionJob) -> Answer:
        if slots.free > 0:
            slots.free -= 1
        else:
            await slots.take(job.priority)
        try:
            started_s = time.perf_counter()
            answer = await generate(job.snapshot)
            elapsed_ms = (time.perf_counter() - started_s) * 1000
        except asyncio.CancelledError as error:
            require_not_cancelled(job, error)
            raise
        finally:
            slots.give()
        return accept(answer), elapsed_ms

    return ask


def ask_with_retries(ask: Ask, policy: RetryPolicy, deadline_s: float | None) -> Ask:
    """Asks again by a policy, until the job's deadline or else `deadline_s`, counted from the first call."""

    async def ask_again(job: CoalitionJob) -> Answer:
        limit_s = job.deadline_s if job.deadline_s is not None else deadline_s
        scope = asyncio.timeout(limit_s)
        attempt = 0
        try:
            async with scope:
                while True:
                    attempt += 1
                    try:
                        return await _attempt(ask, job, policy)
                    except Exception as error:
                        if not policy.is_retried(error, attempt):
                            if policy.attempts > 1:
                                error.add_note(f"attempt {attempt} of {policy.attempts} for {_name(job)}")
                            raise
                    await asyncio.sleep(policy.pause_s(attempt))
        except TimeoutError as error:
            if scope.expired():
                raise JobTimeoutError(
                    f"{_name(job)} was not generated within {limit_s:g} s, {attempt} attempts"
                ) from error
            raise

    return ask_again


async def _attempt(ask: Ask, job: CoalitionJob, policy: RetryPolicy) -> Answer:
    if policy.attempt_timeout_s is None:
        return await ask(job)
    scope = asyncio.timeout(policy.attempt_timeout_s)
    try:
        async with scope:
            return await ask(job)
    except TimeoutError as error:
        if scope.expired():
            raise JobTimeoutError(
                f"one attempt at {_name(job)} took more than {policy.attempt_timeout_s:g} s"
            ) from error
        raise


def accept(answer: object) -> StoredGeneration:
    """What is kept of a model's answer.

    Raises:
        GenerationTypeError: it is neither a string nor an object with a `text` string.
    """
    if isinstance(answer, str):
        return StoredGeneration(answer)
    text = getattr(answer, "text", None)
    if not isinstance(text, str):
        raise GenerationTypeError(
            "a generator must return a string, or an object with a string `text` (GenerationRecord), got "
            f"{type(answer).__qualname__}{'' if text is None else f' with {type(text).__qualname__} as `text`'}"
        )
    logprobs = getattr(answer, "logprobs", None)
    return StoredGeneration(text, None if logprobs is None else tuple(logprobs), getattr(answer, "values", None))


def require_not_cancelled(job: CoalitionJob, error: asyncio.CancelledError) -> None:
    """Turns a cancellation that nobody asked this task for into an error; a task group would take it for an end.

    Raises:
        JobCancelledError: the generator cancelled itself.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        raise JobCancelledError(f"{_name(job)} was cancelled from within its generator; no text came of it") from error


def require_batch_answers(answers: object, count: int) -> Sequence[object]:
    """The answers of a batch generator to `count` jobs.

    Raises:
        GenerationTypeError: they are no list of that length.
    """
    if isinstance(answers, str) or not isinstance(answers, Sequence) or len(answers) != count:
        got = f"{len(answers)} answers" if isinstance(answers, Sequence) else type(answers).__qualname__
        raise GenerationTypeError(f"a batch of {count} jobs must get {count} answers in a list, got {got}")
    return answers


def as_batch_error(error: asyncio.CancelledError, count: int) -> JobCancelledError:
    """What a batch comes to that was cancelled from within its generator.

    Raises:
        asyncio.CancelledError: somebody asked for it.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise error
    cancelled = JobCancelledError(f"a batch of {count} jobs was cancelled from within its generator")
    cancelled.__cause__ = error
    return cancelled


def _name(job: CoalitionJob) -> str:
    return f"coalition {job.coalition_key[:12]!r} of snapshot {job.snapshot_id!r}"
