"""Every diagram and rule of the life cycle's page: what ran, step by step, against the page and against the table."""

from __future__ import annotations

from typing import Any

import pytest
from predict_checkpoints import LATE, Recorder, Trace, WordCheckpoint, answer_for, make_router, raising

from undercurrent.predict import EVENTS, Agent, PredictContext
from undercurrent.predict.order import SEQUENCES, rendered
from undercurrent.predict.simulate import Request, Scenario, simulate

ALL = {"H": EVENTS}


def work(model: str, *names: str) -> Trace:
    """Steps of a checkpoint."""
    return [(name, model) for name in names]


def infer(model: str, states: int = 1) -> Trace:
    """One forward pass over some states."""
    return [*work(model, "check"), *work(model, "encode") * states, *work(model, "collate", "forward", "decode")]


def told(hook: str, event: str, *subjects: str) -> Trace:
    """One event, about each subject in turn."""
    return [(hook, f"on_{event}", subject) for subject in subjects]


def agent_of(trace: Trace, **arguments: Any) -> Agent:
    """An agent whose checkpoint and hook write into one trace."""
    return Agent(WordCheckpoint("words", trace=trace), hooks=Recorder("H", trace), **arguments)


def requests(*pairs: tuple[str, str], questions: Any = None) -> list[dict[str, Any]]:
    """Requests that name their checkpoint."""
    return [{"state": state, "questions": questions or LATE, "model": model} for state, model in pairs]


def test_agent_batch_runs_as_on_the_page() -> None:
    trace: Trace = []
    agent_of(trace).predict_batch(["a", "b", "c"], LATE, batch_size=2)
    chunk = [*work("words", "encode", "encode", "collate", "forward"), *work("words", "encode", "collate", "forward")]
    assert trace == [
        *told("H", "predict_start", "a+b+c"),
        *work("words", "check"),
        *chunk,
        *work("words", "decode", "decode"),
        *told("H", "predict_end", "a+b+c"),
    ]
    scenario = Scenario((Request("a", "words"), Request("b", "words"), Request("c", "words")), ALL, batch_size=2)
    assert simulate("Agent.predict_batch", scenario).trace == trace


def test_system_one_and_predict_are_a_batch_of_one() -> None:
    trace: Trace = []
    agent = agent_of(trace)
    assert agent.system_one("a", LATE) == agent.predict("a", LATE) == agent.predict_batch(["a"], LATE)[0]
    one = [*told("H", "predict_start", "a"), *infer("words"), *told("H", "predict_end", "a")]
    assert trace == one * 3
    assert simulate("Agent.predict_batch", Scenario((Request("a", "words"),), ALL)).trace == one


def test_one_context_goes_from_start_to_error_and_end() -> None:
    trace: Trace = []
    hook = Recorder("H", trace)
    agent = Agent(WordCheckpoint("words", trace=trace, fails_at="forward"), hooks=hook)
    with pytest.raises(RuntimeError, match="fails at forward") as raised:
        agent.predict("a", LATE)
    contexts = {id(ctx) for _, ctx in hook.contexts}
    assert [event for event, _ in hook.contexts] == ["on_predict_start", "on_error", "on_predict_end"]
    assert len(contexts) == 1
    assert hook.contexts[-1][1].error is raised.value
    scenario = Scenario((Request("a", "words"),), ALL, fails=frozenset({("forward", "words")}))
    assert simulate("Agent.predict_batch", scenario).trace == trace


def test_router_routes_then_loads_then_predicts() -> None:
    trace: Trace = []
    router = make_router(trace, hooks=Recorder("H", trace))
    router.predict("a", LATE, model="english")
    assert trace == [
        *told("H", "route", "a"),
        *work("english", "build"),
        *told("H", "load", "english"),
        *told("H", "predict_start", "a"),
        *infer("english"),
        *told("H", "predict_end", "a"),
    ]
    assert simulate("Router.predict", Scenario((Request("a"),), ALL)).trace == trace
    trace.clear()
    router.predict("a", LATE, model="english")
    assert simulate("Router.predict", Scenario((Request("a"),), ALL, resident=("english",))).trace == trace


def test_router_evicts_before_it_tells_of_the_load() -> None:
    trace: Trace = []
    router = make_router(trace, hooks=Recorder("H", trace), max_loaded=1)
    router.load("english")
    trace.clear()
    router.predict("a", LATE, model="ml")
    assert trace[:4] == [
        *told("H", "route", "a"),
        *work("multilingual", "build"),
        *told("H", "evict", "english"),
        *told("H", "load", "multilingual"),
    ]
    scenario = Scenario((Request("a", "multilingual"),), ALL, resident=("english",), max_loaded=1)
    assert simulate("Router.predict", scenario).trace == trace


def test_route_hook_pins_a_checkpoint_and_the_other_is_never_built() -> None:
    trace: Trace = []

    def pin(ctx: PredictContext) -> None:
        ctx.decision = {"model": "ml", "reason": "pinned"}

    router = make_router(trace, hooks=Recorder("H", trace, {"on_route": pin}))
    result = router.predict("The parcel arrived twice and this is plainly English", LATE)
    assert work("english", "build")[0] not in trace
    assert result["routing"] == {"model": "ml", "reason": "pinned"}
    assert result["model"] == "multilingual"


def test_hooks_of_the_agent_run_inside_those_of_the_router() -> None:
    trace: Trace = []
    router = make_router(trace, hooks=Recorder("R", trace))
    router.attach("english", Agent(WordCheckpoint("english", trace=trace), hooks=Recorder("A", trace)))
    router.predict("a", LATE, model="english")
    scenario = Scenario((Request("a"),), {"R": EVENTS}, {"A": EVENTS}, resident=("english",))
    assert simulate("Router.predict", scenario).trace == trace
    assert trace == [
        *told("R", "route", "a"),
        *told("R", "predict_start", "a"),
        *told("A", "predict_start", "a"),
        *infer("english"),
        *told("A", "predict_end", "a"),
        *told("R", "predict_end", "a"),
    ]


def test_router_batch_starts_in_input_order_and_ends_in_reverse() -> None:
    trace: Trace = []
    router = make_router(trace, hooks=Recorder("H", trace))
    pairs = (("1", "english"), ("2", "multilingual"), ("3", "english"), ("4", "multilingual"))
    results = router.predict_batch(requests(*pairs))
    assert [result["model"] for result in results] == [model for _, model in pairs]
    assert trace == [
        *told("H", "route", "1", "2", "3", "4"),
        *work("english", "build"),
        *told("H", "load", "english"),
        *told("H", "predict_start", "1", "3"),
        *work("english", "check"),
        *infer("english", 2),
        *told("H", "predict_end", "3", "1"),
        *work("multilingual", "build"),
        *told("H", "load", "multilingual"),
        *told("H", "predict_start", "2", "4"),
        *work("multilingual", "check"),
        *infer("multilingual", 2),
        *told("H", "predict_end", "4", "2"),
    ]
    scenario = Scenario(tuple(Request(state, model) for state, model in pairs), ALL)
    assert simulate("Router.predict_batch", scenario).trace == trace


def test_failing_group_tells_every_started_request_backwards_and_later_groups_never_start() -> None:
    trace: Trace = []

    def fail_on_3(ctx: PredictContext) -> None:
        if ctx.states == ["3"]:
            raise ValueError("three")

    router = make_router(trace, hooks=Recorder("H", trace, {"on_predict_start": fail_on_3}))
    pairs = (("1", "english"), ("2", "multilingual"), ("3", "multilingual"), ("4", "multilingual"), ("5", "third"))
    router.register("third", lambda: WordCheckpoint("third", trace=trace))
    with pytest.raises(ValueError, match="three"):
        router.predict_batch(requests(*pairs))
    assert trace[-6:] == [
        *told("H", "predict_start", "2", "3"),
        *told("H", "error", "3"),
        *told("H", "predict_end", "3"),
        *told("H", "error", "2"),
        *told("H", "predict_end", "2"),
    ]
    scenario = Scenario(
        tuple(Request(state, model) for state, model in pairs), ALL, fails=frozenset({("H", "on_predict_start", "3")})
    )
    played = simulate("Router.predict_batch", scenario)
    assert played.trace == trace
    assert played.failure == ("H", "on_predict_start", "3")


def test_failure_before_any_start_tells_on_error_alone_in_single_and_batch_alike() -> None:
    for name, fails in (("on_route", ("H", "on_route", "1")), ("build", ("build", "english"))):
        for entry in ("Router.predict", "Router.predict_batch"):
            trace: Trace = []
            acts = {"on_route": raising(ValueError("no"))} if name == "on_route" else {}
            router = make_router(trace, hooks=Recorder("H", trace, acts))
            if name == "build":
                router.register("english", _failing_build(trace))
            arguments = (
                requests(("1", "english"))[0] if entry == "Router.predict" else {"requests": requests(("1", "en"))}
            )
            with pytest.raises(ValueError, match="no"):
                getattr(router, entry.removeprefix("Router."))(**arguments)
            assert trace[-1:] == told("H", "error", "1")
            assert simulate(entry, Scenario((Request("1"),), ALL, fails=frozenset({fails}))).trace == trace


def _failing_build(trace: Trace) -> Any:
    def build() -> WordCheckpoint:
        trace.append(("build", "english"))
        raise ValueError("no")

    return build


def test_load_of_a_batch_that_fails_tells_every_request_of_the_checkpoint_backwards() -> None:
    trace: Trace = []
    router = make_router(trace, hooks=Recorder("H", trace))
    router.register("english", _failing_build(trace))
    with pytest.raises(ValueError, match="no"):
        router.predict_batch(requests(("1", "english"), ("2", "multilingual"), ("3", "english")))
    assert trace == [*told("H", "route", "1", "2", "3"), ("build", "english"), *told("H", "error", "3", "1")]
    scenario = Scenario(
        (Request("1"), Request("2", "multilingual"), Request("3")), ALL, fails=frozenset({("build", "english")})
    )
    assert simulate("Router.predict_batch", scenario).trace == trace


def test_model_life_cycle_runs_as_on_the_page() -> None:
    trace: Trace = []
    router = make_router(trace, hooks=Recorder("H", trace), max_loaded=1)
    router.load("english")
    assert trace == simulate("Router.load", Scenario((Request("", "english"),), ALL)).trace
    trace.clear()
    router.load("multilingual")
    assert trace == [
        *work("multilingual", "build"),
        *told("H", "evict", "english"),
        *told("H", "load", "multilingual"),
    ]
    played = simulate("Router.load", Scenario((Request("", "multilingual"),), ALL, resident=("english",), max_loaded=1))
    assert played.trace == trace
    trace.clear()
    router.unload("multilingual")
    assert trace == told("H", "evict", "multilingual")
    assert simulate("Router.unload", Scenario((Request("", "multilingual"),), ALL)).trace == trace
    trace.clear()
    router.attach("english", Agent(WordCheckpoint()))
    assert trace == [] == simulate("Router.attach", Scenario((Request("", "english"),), ALL)).trace


@pytest.mark.parametrize("entry", ["agent", "router", "router batch"])
def test_skip_answers_without_tokenizing_and_the_end_still_runs(entry: str) -> None:
    trace: Trace = []
    skip = {"on_predict_start": lambda ctx: ctx.skip(answer_for(ctx))}
    hook = Recorder("H", trace, skip)
    if entry == "agent":
        Agent(WordCheckpoint("words", trace=trace), hooks=hook).predict("a", LATE)
        expected = simulate("Agent.predict_batch", _answered("words")).trace
    else:
        router = make_router(trace, hooks=hook)
        router.load("english")
        trace.clear()
        if entry == "router":
            result = router.predict("a", LATE, model="english")
        else:
            result = router.predict_batch(requests(("a", "english")))[0]
        assert result["routing"]["model"] == "english"
        expected = simulate(
            "Router.predict" if entry == "router" else "Router.predict_batch", _answered("english")
        ).trace
    assert trace == expected
    assert trace[-2:] == [*told("H", "predict_start", "a"), *told("H", "predict_end", "a")]


def _answered(model: str) -> Scenario:
    return Scenario(
        (Request("a", model),), ALL, resident=("english",), answers=frozenset({("H", "on_predict_start", "a")})
    )


def test_empty_inputs_run_hooks_and_no_model() -> None:
    trace: Trace = []
    agent = agent_of(trace)
    assert agent.predict_batch([], LATE) == []
    assert trace == simulate("Agent.predict_batch", Scenario((), ALL)).trace
    trace.clear()
    empty = {"model": "words", "answers": {}, "usage": {"input_tokens": 0, "output_tokens": 0}}
    results = agent.predict_batch(["a", "b"], {})
    assert results == [empty, empty]
    assert results[0] is not results[1]
    assert trace == [*told("H", "predict_start", "a+b"), *told("H", "predict_end", "a+b")]
    trace.clear()
    assert agent.system_one("a", {}) == empty
    assert trace == simulate("Agent.predict_batch", Scenario((Request("a", schema=""),), ALL)).trace


def test_installed_hooks_run_before_those_of_the_call_and_lists_in_order() -> None:
    trace: Trace = []
    agent = Agent(WordCheckpoint(), hooks=[Recorder("A", trace), Recorder("B", trace)])
    agent.predict("s", LATE, hooks=[Recorder("C", trace)], on_predict_end=lambda ctx: trace.append(("fn",)))
    assert trace == [
        *(step for name in "ABC" for step in told(name, "predict_start", "s")),
        *(step for name in "ABC" for step in told(name, "predict_end", "s")),
        ("fn",),
    ]
    hooks = dict.fromkeys("ABC", EVENTS)
    played = simulate("Agent.predict_batch", Scenario((Request("s", "words"),), hooks))
    assert [step for step in played.trace if step[0] in "ABC"] == trace[:-1]


def test_every_sequence_can_be_shown() -> None:
    for name in SEQUENCES:
        lines = rendered(name).splitlines()
        assert lines[0] == name
        assert all(line.startswith("  ") for line in lines[1:])
