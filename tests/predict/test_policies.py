"""What a hook's failure does to its call: policies, deadlines, threads."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from predict_checkpoints import LATE, Recorder, Trace, WordCheckpoint, make_router, raising

from undercurrent.predict import WITHHELD, Agent, HookTimeoutError, PredictContext, with_policy
from undercurrent.predict.pool import HookPool


class Starter:
    """A hook with one start method and a policy."""

    def __init__(
        self,
        act: Callable[[PredictContext], object],
        *,
        failure: str | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.act = act
        self.failure_policy = failure
        self.deadline_s = deadline_s

    def on_predict_start(self, ctx: PredictContext) -> object:
        return self.act(ctx)


class Hang:
    """Holds a hook until it is let go, and says when it has begun and ended."""

    def __init__(self, then: Callable[[PredictContext], object] = lambda ctx: None) -> None:
        self.then = then
        self.may_go = threading.Event()
        self.has_ended = threading.Event()
        self.failure: BaseException | None = None

    def __call__(self, ctx: PredictContext) -> None:
        assert self.may_go.wait(30)
        try:
            self.then(ctx)
        except BaseException as error:
            self.failure = error
        self.has_ended.set()

    def let_go(self) -> None:
        """Lets the hook run on, and waits until it has."""
        self.may_go.set()
        assert self.has_ended.wait(30)


FAIL = raising(ValueError("my secret words"))


def test_closed_hook_fails_its_call_also_where_hooks_do_not_raise() -> None:
    agent = Agent(WordCheckpoint(), hooks=Starter(FAIL, failure="closed"), hooks_raise=False)
    with pytest.raises(ValueError, match="my secret words"):
        agent.predict("s", LATE)


def test_open_hook_lets_its_call_go_on_also_where_hooks_raise() -> None:
    agent = Agent(WordCheckpoint(), hooks=Starter(FAIL, failure="open"))
    assert agent.predict("s", LATE)["answers"]
    assert agent.hook_failure_count == 1


def test_hook_without_policy_goes_by_the_call_then_by_the_agent() -> None:
    agent = Agent(WordCheckpoint(), hooks=Starter(FAIL), hooks_raise=False)
    assert agent.predict("s", LATE)["answers"]
    with pytest.raises(ValueError, match="secret"):
        agent.predict("s", LATE, hooks_raise=True)


def test_with_policy_wraps_a_hook_of_others_and_is_removed_by_identity() -> None:
    trace: Trace = []
    hook = with_policy(Recorder("H", trace, {"on_predict_start": FAIL}), failure="open")
    agent = Agent(WordCheckpoint(), hooks=hook)
    agent.predict("s", LATE)
    assert [step[1] for step in trace] == ["on_predict_start", "on_predict_end"]
    assert agent.remove_hook(hook)
    assert agent.hooks == ()


def test_log_of_a_failure_that_was_let_pass_names_the_hook_and_quotes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "undercurrent.predict"):
        Agent(WordCheckpoint(), hooks=Starter(FAIL, failure="open")).predict("s", LATE)
    assert "Starter.on_predict_start failed with ValueError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("entry", ["agent", "router", "router batch"])
@pytest.mark.parametrize("kind", ["raises", "hangs"])
def test_failed_redaction_lets_no_raw_text_through(entry: str, kind: str) -> None:
    hang = Hang(lambda ctx: setattr(ctx, "states", ["raw secret"]))
    redaction = Starter(FAIL if kind == "raises" else hang, failure="withhold")
    redaction.deadline_s = 0.05 if kind == "hangs" else None
    trace: Trace = []
    later = Recorder("later", trace)
    checkpoint = WordCheckpoint("english")
    arguments: dict[str, Any] = {"hooks": [redaction, later], "hooks_raise": False}
    expected = ValueError if kind == "raises" else HookTimeoutError
    if entry == "agent":
        with pytest.raises(expected):
            Agent(checkpoint).predict("raw secret", LATE, **arguments)
    else:
        router = make_router()
        router.register("english", checkpoint)
        request = {"state": "raw secret", "questions": LATE, "model": "english"}
        with pytest.raises(expected):
            router.predict(**request, **arguments) if entry == "router" else router.predict_batch(
                [request], **arguments
            )
    if kind == "hangs":
        hang.let_go()
    told = [step for step in trace if step[1] not in ("on_route", "on_load")]
    assert told == [("later", event, WITHHELD) for event in ("on_predict_start", "on_error", "on_predict_end")]
    assert checkpoint.seen == []


def test_hook_over_its_deadline_can_no_longer_change_the_context() -> None:
    def meddle(ctx: PredictContext) -> None:
        ctx.states = ["meddled"]
        ctx.max_len = 1
        ctx.skip([{"answers": "meddled"}])

    hang = Hang(meddle)
    trace: Trace = []
    checkpoint = WordCheckpoint()
    agent = Agent(checkpoint, hooks=[Starter(hang, failure="open", deadline_s=0.05), Recorder("H", trace)])
    result = agent.predict("kept as it is", LATE, on_predict_end=lambda ctx: hang.let_go())
    assert checkpoint.seen == ["kept as it is"]
    assert result["usage"]["state_tokens"] == 4
    assert [step[2] for step in trace] == ["kept as it is"] * 2


def test_what_a_hook_did_before_its_deadline_passed_does_not_count_either() -> None:
    def change_then_hang(ctx: PredictContext) -> None:
        ctx.states = ["half redacted"]
        ctx.max_len = 1
        hang(ctx)

    hang = Hang()
    checkpoint = WordCheckpoint()
    agent = Agent(checkpoint, hooks=Starter(change_then_hang, failure="open", deadline_s=0.05))
    agent.predict("kept as it is", LATE)
    hang.let_go()
    assert checkpoint.seen == ["kept as it is"]


def test_hook_over_its_deadline_cannot_change_in_place_what_it_was_given() -> None:
    questions = {"late": {"type": "noul", "instructions": "a parcel is late"}}
    seen: list[Any] = []

    def read_then_hang(ctx: PredictContext) -> None:
        seen.append((ctx.states, ctx.questions))
        hang(ctx)

    hang = Hang(lambda ctx: (seen[0][0].clear(), seen[0][1]["late"].clear()))
    checkpoint = WordCheckpoint()
    states = ["a state"]
    agent = Agent(checkpoint, hooks=Starter(read_then_hang, failure="open", deadline_s=0.05))
    agent.predict_batch(states, questions, on_predict_end=lambda ctx: hang.let_go())
    assert states == ["a state"]
    assert questions["late"]["type"] == "noul"


def test_hook_that_reads_after_its_deadline_is_told() -> None:
    hang = Hang(lambda ctx: ctx.states)
    agent = Agent(WordCheckpoint(), hooks=Starter(hang, failure="open", deadline_s=0.05))
    agent.predict("s", LATE)
    hang.let_go()
    assert isinstance(hang.failure, HookTimeoutError)


def test_hook_within_its_deadline_changes_the_context_as_any_other() -> None:
    def shape(ctx: PredictContext) -> None:
        ctx.states[0] = "rewritten"
        ctx.max_len = 7
        ctx.mine = "kept"  # type: ignore[attr-defined]

    checkpoint = WordCheckpoint()
    seen: list[Any] = []
    agent = Agent(checkpoint, hooks=Starter(shape, deadline_s=30))
    with pytest.raises(ValueError, match="`max_len` is 7"):
        agent.predict("s", LATE, on_predict_end=lambda ctx: seen.append((ctx.states, ctx.max_len, vars(ctx)["mine"])))
    assert seen == [(["rewritten"], 7, "kept")]


def test_hook_with_a_deadline_sees_the_callers_contextvars() -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    tenant.set("someone")
    seen: list[str] = []
    Agent(WordCheckpoint()).predict("s", LATE, on_predict_start=lambda ctx: seen.append(tenant.get()), hooks_timeout=30)
    assert seen == ["someone"]


def _call(method: Callable[[], object], argument: None) -> None:
    method()


def test_hung_hooks_keep_a_bounded_number_of_threads() -> None:
    pool = HookPool(thread_count_max=2)
    may_go = threading.Event()
    for _ in range(4):
        with pytest.raises(HookTimeoutError):
            pool.run(_call, lambda: may_go.wait(30), None, 0.02, "hung")
    assert pool.thread_count == 2
    with pytest.raises(HookTimeoutError, match="all 2 threads were busy"):
        pool.run(_call, lambda: None, None, 0.02, "starved")
    may_go.set()
    assert pool.run(_call, lambda: None, None, 30.0, "served again") is None
    assert pool.thread_count <= 2


def test_pool_serves_again_in_a_forked_child() -> None:
    agent = Agent(WordCheckpoint(), hooks=Starter(lambda ctx: None, deadline_s=30))
    agent.predict("s", LATE)
    child = os.fork()
    if child == 0:
        try:
            agent.predict("s", LATE)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_ids_of_a_forked_child_are_its_own() -> None:
    from undercurrent.predict.context import new_id

    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, new_id().encode())
        os._exit(0)
    ours = new_id()
    os.waitpid(child, 0)
    theirs = os.read(read_end, 64).decode()
    os.close(read_end)
    os.close(write_end)
    assert len(ours) == len(theirs) == 32
    assert ours[:16] != theirs[:16]


def test_async_hooks_are_awaited_in_their_place() -> None:
    trace: Trace = []

    class Remote:
        async def on_predict_start(self, ctx: PredictContext) -> None:
            await asyncio.sleep(0)
            trace.append(("remote", ctx.states[0]))
            ctx.states = ["rewritten"]

    agent = Agent(WordCheckpoint(), hooks=[Remote(), Recorder("H", trace)])
    agent.predict("s", LATE)

    async def within_a_loop() -> None:
        agent.predict("t", LATE)

    asyncio.run(within_a_loop())
    assert [step for step in trace if "end" not in str(step)] == [
        ("remote", "s"),
        ("H", "on_predict_start", "rewritten"),
        ("remote", "t"),
        ("H", "on_predict_start", "rewritten"),
    ]


@pytest.mark.parametrize("hooks_timeout", [None, 30.0])
def test_serialised_hooks_run_one_at_a_time_and_may_call_back(hooks_timeout: float | None) -> None:
    busy = threading.Lock()
    overlaps: list[str] = []
    agent = Agent(WordCheckpoint(), hooks_concurrent=False, hooks_timeout=hooks_timeout)

    def nested(ctx: PredictContext) -> None:
        if ctx.states == ["inner"]:
            return
        if not busy.acquire(blocking=False):
            overlaps.append(ctx.run_id)
            return
        agent.predict("inner", LATE)
        busy.release()

    agent.add_hook(Starter(nested))
    threads = [threading.Thread(target=agent.predict, args=("outer", LATE)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert overlaps == []


def test_concurrent_hooks_run_in_parallel_by_default() -> None:
    both = threading.Barrier(2, timeout=30)
    agent = Agent(WordCheckpoint(), hooks=Starter(lambda ctx: both.wait()))
    threads = [threading.Thread(target=agent.predict, args=("s", LATE)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not both.broken


def test_later_failures_of_an_event_are_notes_on_the_first() -> None:
    first = ValueError("first")
    agent = Agent(WordCheckpoint(), hooks=[Starter(raising(first)), Starter(raising(TypeError("second")))])
    hook = Recorder("H", [], {"on_error": raising(KeyError("third")), "on_predict_end": raising(OSError("fourth"))})
    with pytest.raises(ValueError, match="first") as raised:
        agent.predict("s", LATE, hooks=hook)
    assert raised.value is first
    assert [word for note in first.__notes__ for word in ("second", "third", "fourth") if word in note] == [
        "second",
        "third",
        "fourth",
    ]


def test_end_hook_that_fails_after_a_success_takes_the_result_and_tells_no_error() -> None:
    trace: Trace = []
    hooks = [Recorder("A", trace, {"on_predict_end": FAIL}), Recorder("B", trace)]
    with pytest.raises(ValueError, match="secret"):
        Agent(WordCheckpoint()).predict("s", LATE, hooks=hooks)
    assert [step[:2] for step in trace][-2:] == [("A", "on_predict_end"), ("B", "on_predict_end")]
    assert "on_error" not in [step[1] for step in trace]


def test_malformed_usage_of_a_skipped_result_is_a_failure_with_its_end() -> None:
    trace: Trace = []
    hook = Recorder("H", trace, {"on_predict_start": lambda ctx: ctx.skip([{"usage": {"input_tokens": "many"}}])})
    with pytest.raises(ValueError, match="usage"):
        Agent(WordCheckpoint()).predict("s", LATE, hooks=hook)
    assert [step[1] for step in trace] == ["on_predict_start", "on_error", "on_predict_end"]
