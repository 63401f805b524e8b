"""Batches and streams: what shares a pass, what a failure leaves, how much memory it takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from predict_checkpoints import (
    LATE,
    TOPIC,
    Recorder,
    StubAgent,
    Trace,
    WordCheckpoint,
    answer_for,
    make_router,
    raising,
)

from undercurrent.predict import Agent, BatchFailure, PredictContext, Router

MIB = 1 << 20


def english(state: str, questions: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A request for one checkpoint."""
    return {"state": state, "questions": LATE if questions is None else questions, "model": "english", **more}


def router_with(checkpoint: WordCheckpoint, **arguments: Any) -> Router:
    """A router with this checkpoint as English."""
    return Router({"english": checkpoint}, **arguments)


def test_batch_gives_what_predict_gives_for_each_request() -> None:
    router = make_router()
    batch = [english("a parcel"), english("a bill", TOPIC), {"state": "Wo ist mein Paket?", "questions": LATE}]
    assert router.predict_batch(batch) == [router.predict(**request) for request in batch]


def test_requests_share_passes_by_value_of_questions_and_by_budget() -> None:
    checkpoint = WordCheckpoint()
    equal = {"late": dict(LATE["late"])}
    batch = [english("1"), english("2", equal), english("3", max_len=40), english("4", TOPIC), english("5")]
    router_with(checkpoint).predict_batch(batch)
    assert checkpoint.batch_sizes == [3, 1, 1]


def test_questions_in_another_order_do_not_share_a_pass() -> None:
    checkpoint = WordCheckpoint()
    router_with(checkpoint).predict_batch([english("1", {**LATE, **TOPIC}), english("2", {**TOPIC, **LATE})])
    assert checkpoint.batch_sizes == [1, 1]


def test_alias_shares_the_pass_of_its_checkpoint_and_the_context_has_the_resolved_name() -> None:
    checkpoint = WordCheckpoint()
    trace: Trace = []
    hook = Recorder("H", trace, {"on_route": lambda ctx: setattr(ctx, "decision", {"model": "en"})})
    router_with(checkpoint).predict_batch([english("1"), {**english("2"), "model": "ml"}], hooks=hook)
    assert checkpoint.batch_sizes == [2]
    assert {ctx.model for event, ctx in hook.contexts if event == "on_predict_start"} == {"english"}


def test_start_hook_that_replaces_questions_or_budget_changes_its_own_request() -> None:
    checkpoint = WordCheckpoint()

    def replace(ctx: PredictContext) -> None:
        if ctx.states == ["2"]:
            ctx.questions = TOPIC
        if ctx.states == ["3"]:
            ctx.max_len = 33

    router = router_with(checkpoint)
    results = router.predict_batch([english(str(n)) for n in (1, 2, 3, 4)], on_predict_start=replace)
    assert [list(result["answers"]) for result in results] == [["late"], ["topic"], ["late"], ["late"]]
    assert checkpoint.batch_sizes == [2, 1, 1]


def test_start_hook_overrides_the_budget_of_the_request() -> None:
    seen: list[int | None] = []

    def narrow(ctx: PredictContext) -> None:
        seen.append(ctx.max_len)
        ctx.max_len = 20

    router = router_with(WordCheckpoint())
    result = router.predict_batch([english("w " * 30, max_len=25)], on_predict_start=narrow)[0]
    assert seen == [25]
    assert result["usage"]["state_tokens_dropped"] == 10


def test_shared_dict_changed_in_place_reaches_every_request_and_the_caller() -> None:
    shared = {"late": dict(LATE["late"])}

    def mutate(ctx: PredictContext) -> None:
        if ctx.states == ["2"]:
            ctx.questions["topic"] = TOPIC["topic"]

    results = router_with(WordCheckpoint()).predict_batch(
        [english("1", shared), english("2", shared)], on_predict_start=mutate
    )
    assert [list(result["answers"]) for result in results] == [["late", "topic"]] * 2
    assert list(shared) == ["late", "topic"]


def test_every_request_has_its_own_run_id_usage_and_time_and_one_correlation() -> None:
    trace: Trace = []
    hook = Recorder("H", trace)
    inner = Recorder("A", trace)
    router = make_router(hooks=hook)
    router.attach("english", Agent(WordCheckpoint(), hooks=inner))
    router.predict_batch([english("one"), english("two words")])
    ends = [ctx for event, ctx in hook.contexts if event == "on_predict_end"]
    assert len(set(hook.ids("on_predict_end"))) == 2
    assert sorted(hook.ids("on_predict_start")) == sorted(hook.ids("on_predict_end"))
    assert [ctx.usage for ctx in ends] == [
        {"input_tokens": 2, "output_tokens": 0},
        {"input_tokens": 1, "output_tokens": 0},
    ]
    assert all(ctx.elapsed_ms is not None and ctx.elapsed_ms >= 0 for ctx in ends)
    assert len({ctx.correlation_id for _, ctx in [*hook.contexts, *inner.contexts]}) == 1


def test_route_load_evict_predict_and_the_nested_agent_share_one_correlation_id() -> None:
    trace: Trace = []
    outer, inner = Recorder("R", trace), Recorder("A", trace)
    router = Router(
        {"english": lambda: Agent(WordCheckpoint(), hooks=inner), "multilingual": lambda: WordCheckpoint()},
        max_loaded=1,
        hooks=outer,
    )
    router.load("multilingual")
    outer.contexts.clear()
    router.predict("s", LATE, model="english")
    assert [event for event, _ in outer.contexts] == [
        *("on_route", "on_evict", "on_load", "on_predict_start", "on_predict_end")
    ]
    contexts = [ctx for _, ctx in [*outer.contexts, *inner.contexts]]
    assert len({ctx.correlation_id for ctx in contexts}) == 1
    assert len({ctx.run_id for ctx in contexts}) == 5
    router.predict("s", LATE, model="english")
    assert outer.contexts[-1][1].correlation_id != contexts[0].correlation_id


def test_calls_that_a_hook_makes_share_the_correlation_of_its_call() -> None:
    router = make_router()
    seen: list[str] = []

    def call_back(ctx: PredictContext) -> None:
        seen.append(ctx.correlation_id)
        if ctx.states == ["outer"]:
            router.predict(**english("inner"), on_predict_start=call_back)
            router.predict_batch([english("inner")], on_predict_start=call_back)

    router.predict(**english("outer"), on_predict_start=call_back)
    router.predict(**english("another"), on_predict_start=call_back)
    assert seen[0] == seen[1] == seen[2] != seen[3]


def test_hit_in_a_batch_is_not_inferred_and_gets_its_routing() -> None:
    checkpoint = WordCheckpoint()

    def skip_2(ctx: PredictContext) -> None:
        if ctx.states == ["2"]:
            ctx.skip(answer_for(ctx))

    results = router_with(checkpoint).predict_batch([english("1"), english("2")], on_predict_start=skip_2)
    assert [result["model"] for result in results] == ["words", "cache"]
    assert results[1]["routing"]["model"] == "english"
    assert checkpoint.seen == ["1"]


@pytest.mark.parametrize("entry", ["predict", "predict_batch"])
def test_cached_result_is_never_changed(entry: str) -> None:
    cached = {"model": "cache", "answers": {"late": {"type": "noul", "noul": 1.0, "confidence": 0.2}}}
    before = {"model": "cache", "answers": {"late": {"type": "noul", "noul": 1.0, "confidence": 0.2}}}

    def meddle(ctx: PredictContext) -> None:
        assert ctx.results is not None
        ctx.results[0]["answers"]["late"]["noul"] = 0.0

    hooks = [Recorder("H", [], {"on_predict_start": lambda ctx: ctx.skip([cached]), "on_predict_end": meddle})]
    assign = Recorder(
        "H", [], {"on_predict_start": lambda ctx: setattr(ctx, "results", [cached]), "on_predict_end": meddle}
    )
    router = make_router()
    for hook in (hooks, assign):
        if entry == "predict":
            result = router.predict(**english("s"), hooks=hook, min_confidence=0.5)
        else:
            result = router.predict_batch([english("s")], hooks=hook, min_confidence=0.5)[0]
        result["answers"].clear()
        assert cached == before


def test_failed_batch_raises_the_very_object_with_a_note_and_what_it_came_to() -> None:
    failure = ValueError("three")
    hook = Recorder("H", [], {"on_predict_start": lambda ctx: raising(failure)(ctx) if ctx.states == ["3"] else None})
    batch = [
        english("1"),
        {**english("2"), "model": "ml"},
        {**english("3"), "model": "ml"},
        {**english("4"), "model": "ml"},
    ]
    with pytest.raises(ValueError, match="three") as raised:
        make_router(hooks=hook).predict_batch(batch)
    assert raised.value is failure
    described = failure.batch  # type: ignore[attr-defined]
    assert isinstance(described, BatchFailure)
    assert list(described.results) == [0]
    assert described.results[0]["model"] == "english"
    assert (described.failed, described.not_started) == ([1, 2], [3])
    assert any("1 answered, 2 failed requests [1, 2], 1 not started" in note for note in failure.__notes__)


def test_hit_fails_with_its_group_and_sees_the_others_failure() -> None:
    trace: Trace = []

    def act(ctx: PredictContext) -> None:
        if ctx.states == ["hit"]:
            ctx.skip(answer_for(ctx))

    hook = Recorder("H", trace, {"on_predict_start": act})
    router = router_with(WordCheckpoint(fails_at="forward"), hooks=hook)
    with pytest.raises(RuntimeError, match="fails at forward") as raised:
        router.predict_batch([english("hit"), english("miss")])
    errors = [ctx.error for event, ctx in hook.contexts if event == "on_error"]
    assert errors == [raised.value, raised.value]


def test_failing_end_hook_spares_the_other_requests_their_end_and_the_first_is_raised() -> None:
    trace: Trace = []

    def fail_1_and_2(ctx: PredictContext) -> None:
        if ctx.states != ["3"]:
            raise ValueError(ctx.states[0])

    hook = Recorder("H", trace, {"on_predict_end": fail_1_and_2})
    with pytest.raises(ValueError, match="2") as raised:
        make_router(hooks=hook).predict_batch([english("1"), english("2"), english("3")])
    assert [step[2] for step in trace if step[1] == "on_predict_end"] == ["3", "2", "1"]
    assert list(raised.value.batch.results) == [2]  # type: ignore[attr-defined]
    assert raised.value.batch.failed == [0, 1]  # type: ignore[attr-defined]


def test_questions_of_every_group_are_checked_before_any_pass_and_the_request_is_named() -> None:
    checkpoint = WordCheckpoint()
    with pytest.raises(ValueError, match="choice takes `criteria`") as raised:
        router_with(checkpoint).predict_batch(
            [english("1"), english("2", {"q": {"type": "choice", "instructions": "x", "criteria": []}})]
        )
    assert checkpoint.seen == []
    assert "in requests [1] of the batch" in raised.value.__notes__


def test_agent_that_returns_too_few_results_is_an_error() -> None:
    class Lossy(StubAgent):
        def predict_batch(
            self, states: list[Any], questions: Any, batch_size: int | None = None
        ) -> list[dict[str, Any]]:
            return super().predict_batch(states[1:], questions)

    router = make_router()
    router.attach("english", Lossy())
    with pytest.raises(RuntimeError, match="returned 1 results for 2 states"):
        router.predict_batch([english("1"), english("2")])


def test_plain_agents_need_two_methods_and_no_more() -> None:
    router = make_router()
    router.attach("english", StubAgent())
    assert router.predict(**english("1"))["model"] == "stub"
    assert len(router.predict_batch([english("1"), english("2")])) == 2


def test_sorted_batches_keep_the_order_of_their_results() -> None:
    checkpoint = WordCheckpoint()
    states = ["one two three", "one", "one two", "one two three four"]
    results = Agent(checkpoint).predict_batch(states, LATE, batch_size=2, sort_by_length=True)
    assert [result["usage"]["state_tokens"] for result in results] == [3, 1, 2, 4]
    assert checkpoint.batch_sizes == [2, 2]


def test_stream_yields_in_order_and_treats_each_window_as_one_batch() -> None:
    trace: Trace = []
    router = make_router(hooks=Recorder("H", trace))
    taken: list[int] = []

    def source() -> Iterator[dict[str, Any]]:
        for number in range(5):
            taken.append(number)
            yield english(f"{number} " * (number + 1))

    stream = router.predict_stream(source(), window=2)
    assert taken == []
    first = next(stream)
    assert taken == [0, 1]
    assert [result["usage"]["state_tokens"] for result in [first, *stream]] == [1, 2, 3, 4, 5]
    ends = [step[2][0] for step in trace if step[1] == "on_predict_end"]
    assert ends == ["1", "0", "3", "2", "4"]


def test_failure_in_a_stream_counts_the_whole_stream() -> None:
    router = make_router()
    batch = [english("0"), english("1"), english("2"), english("3", {"q": {"type": "nothing"}})]
    stream = router.predict_stream(iter(batch), window=2)
    assert len([next(stream), next(stream)]) == 2
    with pytest.raises(ValueError, match="nothing") as raised:
        next(stream)
    assert raised.value.batch.failed == [2, 3]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stream_of_a_hundred_thousand_requests_stays_under_64_mib() -> None:
    peak = _stream_peak(100_000)
    assert peak < 64 * MIB


def test_memory_of_a_stream_does_not_grow_with_its_length() -> None:
    assert _stream_peak(1_500, window=256) < 1.5 * _stream_peak(750, window=256)


def _stream_peak(count: int, window: int = 1024) -> int:
    """Peak bytes of a stream of requests, each with text and questions of its own."""
    router = make_router(hooks=Recorder("H", [], {}, ("on_load",)))
    router.load("english")

    def source() -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield english(f"where is parcel {number}, it should have come " * 4, {f"late {number % 7}": LATE["late"]})

    tracemalloc.start()
    try:
        assert sum(1 for _ in router.predict_stream(source(), window=window)) == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
