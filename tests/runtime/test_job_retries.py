"""Failed generations are tried again by a policy, within deadlines; the most urgent job goes first."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_jobs import CountingModel, make_job, make_jobs

from undercurrent.runtime import (
    GenerationTypeError,
    HotResultStore,
    InferenceScheduler,
    JobCancelledError,
    JobTimeoutError,
    RetryPolicy,
)
from undercurrent.runtime.slots import PrioritySlots

NO_PAUSE = RetryPolicy(attempts=3, first_pause_s=0)


def scheduler(max_inflight: int = 1, **options: object) -> InferenceScheduler:
    return InferenceScheduler(max_inflight, None, HotResultStore(maxsize=None), **options)  # type: ignore[arg-type]


async def never(snapshot: object) -> str:
    await asyncio.Event().wait()
    return "never"


def test_a_failure_is_tried_again_until_it_works() -> None:
    model = CountingModel(failures=[ConnectionError("one"), ConnectionError("two")])
    assert asyncio.run(scheduler(retry=NO_PAUSE).run(make_jobs(1), model)).executed == 1
    assert model.asked == ["prompt 0"] * 3


def test_the_last_failure_is_raised_and_says_which_attempt_it_was() -> None:
    model = CountingModel(failures=[ConnectionError(str(number)) for number in range(5)])
    with pytest.raises(ConnectionError, match="2") as caught:
        asyncio.run(scheduler(retry=NO_PAUSE).run(make_jobs(1), model))
    assert caught.value.__notes__ == [
        f"attempt 3 of 3 for coalition {make_job(0).coalition_key[:12]!r} of snapshot 'snapshot-1'"
    ]


def test_without_a_policy_nothing_is_tried_again() -> None:
    model = CountingModel(failures=[ConnectionError("one")])
    with pytest.raises(ConnectionError):
        asyncio.run(scheduler().run(make_jobs(1), model))
    assert len(model.asked) == 1


def test_only_what_the_policy_names_is_tried_again() -> None:
    policy = RetryPolicy(attempts=3, first_pause_s=0, retry_on=(ConnectionError,))
    model = CountingModel(failures=[ValueError("bad prompt")])
    with pytest.raises(ValueError, match="bad prompt"):
        asyncio.run(scheduler(retry=policy).run(make_jobs(1), model))
    assert len(model.asked) == 1


def test_a_wrong_type_and_a_cancellation_are_not_tried_again() -> None:
    asked: list[object] = []

    async def wrong(snapshot: object) -> str:
        asked.append(snapshot)
        return 3  # type: ignore[return-value]

    with pytest.raises(GenerationTypeError):
        asyncio.run(scheduler(retry=NO_PAUSE).run(make_jobs(1), wrong))
    assert len(asked) == 1


def test_a_generator_that_cancels_itself_is_tried_again_and_then_an_error() -> None:
    model = CountingModel(failures=[asyncio.CancelledError()])
    assert asyncio.run(scheduler(retry=NO_PAUSE).run(make_jobs(1), model)).executed == 1
    model = CountingModel(failures=[asyncio.CancelledError()] * 3)
    with pytest.raises(JobCancelledError):
        asyncio.run(scheduler(retry=NO_PAUSE).run(make_jobs(1), model))


def test_an_attempt_that_takes_too_long_is_tried_again() -> None:
    asked: list[object] = []

    async def generate(snapshot: object) -> str:
        asked.append(snapshot)
        return await never(snapshot) if len(asked) == 1 else "x"

    policy = RetryPolicy(attempts=2, first_pause_s=0, attempt_timeout_s=0.01)
    assert asyncio.run(scheduler(retry=policy).run(make_jobs(1), generate)).executed == 1
    with pytest.raises(JobTimeoutError, match=r"one attempt at coalition .* took more than 0.01 s"):
        asyncio.run(scheduler(retry=policy).run(make_jobs(1), never))


def test_a_timeout_of_the_model_s_own_is_raised_as_it_is() -> None:
    failure = TimeoutError("upstream")
    policy = RetryPolicy(attempts=1, attempt_timeout_s=30)
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(scheduler(retry=policy, deadline_s=30).run(make_jobs(1), CountingModel([failure])))
    assert caught.value is failure


@pytest.mark.parametrize("of_job", [True, False])
def test_a_deadline_bounds_attempts_pauses_and_waits(of_job: bool) -> None:
    policy = RetryPolicy(attempts=100, first_pause_s=60, jitter=0)
    runner = scheduler(retry=policy, deadline_s=None if of_job else 0.02)
    jobs = [make_job(0, deadline_s=0.02 if of_job else None)]
    with pytest.raises(JobTimeoutError, match=r"was not generated within 0.02 s, 1 attempts"):
        asyncio.run(runner.run(jobs, CountingModel([ConnectionError("down")])))


def test_a_deadline_counts_the_wait_for_the_model() -> None:
    with pytest.raises(JobTimeoutError, match=r"within 0.01 s"):
        asyncio.run(scheduler(1).run([make_job(0), make_job(1, deadline_s=0.01)], never))


def test_the_most_urgent_job_goes_first_then_the_one_that_came_first() -> None:
    order: list[object] = []

    async def generate(snapshot: object) -> str:
        order.append(snapshot)
        await asyncio.sleep(0)
        return "x"

    jobs = [make_job(number, priority=priority) for number, priority in enumerate([0, 0, 5, 1, 5, 0])]
    asyncio.run(scheduler(1, pending_limit=6).run(jobs, generate))
    assert order == [f"prompt {number}" for number in (0, 2, 4, 3, 1, 5)]


def test_a_slot_handed_to_a_waiter_that_is_cancelled_goes_on() -> None:
    async def go() -> int:
        slots = PrioritySlots(1)
        await slots.take()
        first, second = (asyncio.create_task(slots.take()) for _ in range(2))
        await asyncio.sleep(0)
        slots.give()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        slots.give()
        return slots.free

    assert asyncio.run(go()) == 1


@given(st.integers(1, 2000), st.floats(0, 100), st.floats(0, 100), st.floats(0, 1), st.floats(0, 1))
def test_pauses_double_and_stay_within_bounds(
    attempt: int, first_s: float, longest_s: float, jitter: float, chance: float
) -> None:
    policy = RetryPolicy(first_pause_s=first_s, longest_pause_s=longest_s, jitter=jitter)
    pause_s = policy.pause_s(attempt, lambda: chance)
    assert 0 <= pause_s <= longest_s


def test_the_pause_doubles_with_each_attempt() -> None:
    policy = RetryPolicy(first_pause_s=0.5, longest_pause_s=3, jitter=0)
    assert [policy.pause_s(attempt) for attempt in (1, 2, 3, 4)] == [0.5, 1, 2, 3]


@pytest.mark.parametrize(
    "changes",
    [
        {"attempts": 0},
        {"first_pause_s": -1.0},
        {"longest_pause_s": float("inf")},
        {"jitter": 1.5},
        {"attempt_timeout_s": 0.0},
    ],
    ids=str,
)
def test_policies_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        RetryPolicy(**changes)  # type: ignore[arg-type]
