"""What holds for any hooks: random ones raise, answer, rewrite and call back."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from predict_checkpoints import LATE, TOPIC, Recorder, Trace, WordCheckpoint, answer_for

from undercurrent.predict import EVENTS, Agent, PredictContext, Router
from undercurrent.predict.simulate import Request, Scenario, simulate

MODELS = ("english", "multilingual", "third")
SCHEMAS: dict[str, dict[str, Any]] = {"q": LATE, "r": TOPIC, "": {}}
WORK = ("check", "encode", "collate", "forward", "decode")


class StepError(Exception):
    """A failure that knows which step it is."""

    def __init__(self, step: tuple[str, ...]) -> None:
        super().__init__(step)
        self.step = step


@st.composite
def scenarios(draw: st.DrawFn, *, count_max: int) -> Scenario:
    """Any call: requests, hooks, what is resident, what fails and what is answered by a hook."""
    count = draw(st.integers(1, count_max))
    requests = tuple(
        Request(f"s{index}", draw(st.sampled_from(MODELS)), draw(st.sampled_from(list(SCHEMAS))))
        for index in range(count)
    )
    events = st.lists(st.sampled_from(EVENTS), min_size=1, unique=True).map(tuple)
    outer = {name: draw(events) for name in ("R1", "R2", "R3")[: draw(st.integers(0, 3))]}
    inner = {name: draw(events) for name in ("A1", "A2")[: draw(st.integers(0, 2))]}
    scenario = Scenario(
        requests,
        outer,
        inner,
        resident=tuple(draw(st.lists(st.sampled_from(MODELS), unique=True, max_size=2))),
        max_loaded=draw(st.integers(1, 3)),
    )
    # What can fail is what would run, found by playing; failing steps then change what runs after them.
    steps = sorted(set(simulate("Router.predict_batch" if count > 1 else "Router.predict", scenario).trace))
    steps += [(hook, event, request.state) for hook in outer for event in ("on_error",) for request in requests]
    fails = draw(st.sets(st.sampled_from(steps), max_size=3)) if steps else set()
    starts = [step for step in steps if step[1:2] == ("on_predict_start",)]
    answers = draw(st.sets(st.sampled_from(starts), max_size=3)) if starts else set()
    return replace(scenario, fails=frozenset(fails), answers=frozenset(answers))


class Stage:
    """A real router with the checkpoints and hooks of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.trace: Trace = []
        self.hooks = [self._recorder(name, events) for name, events in scenario.hooks.items()]
        self.agent_hooks = [self._recorder(name, events) for name, events in scenario.agent_hooks.items()]
        self.router = Router({name: self._source(name) for name in MODELS}, max_loaded=scenario.max_loaded)
        # What is resident is there before the scenario's failures begin.
        self.is_playing = False
        self.router._residency.max_loaded = None
        for model in scenario.resident:
            self.router.load(model)
        self.router._residency.max_loaded = scenario.max_loaded
        self.router.add_hook(self.hooks)
        self.trace.clear()
        self.is_playing = True

    def run(self) -> tuple[str, ...] | None:
        """Makes the call; returns the step whose failure came out."""
        calls = [
            {"state": one.state, "questions": SCHEMAS[one.schema], "model": one.model} for one in self.scenario.requests
        ]
        try:
            if len(calls) > 1:
                self.router.predict_batch(calls)
            else:
                self.router.predict(**calls[0])
        except StepError as error:
            return error.step
        return None

    def _recorder(self, name: str, events: Any) -> Recorder:
        return Recorder(name, self.trace, {event: self._act(name, event) for event in events}, events)

    def _act(self, name: str, event: str) -> Callable[[PredictContext], None]:
        def act(ctx: PredictContext) -> None:
            step = self.trace[-1]
            if step in self.scenario.answers:
                ctx.skip(answer_for(ctx))
            if step in self.scenario.fails:
                raise StepError(step)

        return act

    def _source(self, name: str) -> Callable[[], Agent]:
        def build() -> Agent:
            self._step("build", name)
            return Agent(_FailingCheckpoint(name, self), hooks=self.agent_hooks)

        return build

    def _step(self, *step: str) -> None:
        self.trace.append(step)
        if self.is_playing and step in self.scenario.fails:
            raise StepError(step)


class _FailingCheckpoint(WordCheckpoint):
    def __init__(self, name: str, stage: Stage) -> None:
        super().__init__(name)
        self.stage = stage

    def _step(self, name: str) -> None:
        self.stage._step(name, self.model_id)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(count_max=5))
def test_what_runs_is_what_the_table_says(scenario: Scenario) -> None:
    stage = Stage(scenario)
    failure = stage.run()
    played = simulate("Router.predict_batch" if len(scenario.requests) > 1 else "Router.predict", scenario)
    assert stage.trace == played.trace
    assert failure == played.failure


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(count_max=4))
def test_the_error_that_comes_out_is_the_first_that_went_in(scenario: Scenario) -> None:
    stage = Stage(scenario)
    failure = stage.run()
    assert failure == next((step for step in stage.trace if step in scenario.fails), None)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(count_max=5))
def test_a_start_has_exactly_one_end_and_requests_end_backwards(scenario: Scenario) -> None:
    stage = Stage(scenario)
    stage.run()
    for hook in [*stage.hooks, *stage.agent_hooks]:
        if hook.on_predict_start is None or hook.on_predict_end is None:
            continue
        starts, ends = hook.ids("on_predict_start"), hook.ids("on_predict_end")
        assert Counter(starts) == Counter(ends)
        assert set(Counter(starts).values()) <= {1}
        open_runs: list[str] = []
        for event, ctx in hook.contexts:
            if event == "on_predict_start":
                open_runs.append(ctx.run_id)
            elif event == "on_predict_end":
                assert open_runs.pop() == ctx.run_id


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(count_max=4))
def test_every_hook_of_an_event_runs_in_list_order(scenario: Scenario) -> None:
    stage = Stage(scenario)
    stage.run()
    order = list(scenario.hooks)
    steps = [step for step in stage.trace if step[0] in order]
    at = 0
    while at < len(steps):
        _, event, about = steps[at]
        having = [name for name in order if event in scenario.hooks[name]]
        assert steps[at : at + len(having)] == [(name, event, about) for name in having]
        at += len(having)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(count_max=4))
def test_no_context_outlives_its_call(scenario: Scenario) -> None:
    stage = Stage(scenario)
    contexts: list[weakref.ref[PredictContext]] = []
    stage.router.add_hook(_Watcher(contexts))
    stage.run()
    for hook in [*stage.hooks, *stage.agent_hooks]:
        hook.contexts.clear()
    gc.collect()
    assert [ref for ref in contexts if ref() is not None] == []


class _Watcher:
    def __init__(self, contexts: list[weakref.ref[PredictContext]]) -> None:
        self.contexts = contexts

    def _watch(self, ctx: PredictContext) -> None:
        self.contexts.append(weakref.ref(ctx))

    on_route = on_load = on_evict = on_error = on_predict_start = on_predict_end = _watch


class Restless:
    """A hook that does something else each time: nothing, a rewrite, an answer, a call of its own, a failure."""

    def __init__(self, agent: Agent, deeds: list[str], depth_max: int = 2) -> None:
        self.agent = agent
        self.deeds = deeds
        self.depth_max = depth_max
        self.depth = 0
        self.told: list[tuple[str, str, str]] = []

    def _do(self, event: str, ctx: PredictContext) -> None:
        self.told.append((event, ctx.run_id, ctx.correlation_id))
        deed = self.deeds.pop() if self.deeds else "nothing"
        if deed == "rewrite" and event == "on_predict_start":
            ctx.states = [f"{state} again" for state in ctx.states]
            ctx.questions = dict(TOPIC)
        elif deed == "rewrite" and ctx.results is not None:
            ctx.results = [dict(result) for result in ctx.results]
        elif deed == "skip" and event == "on_predict_start":
            ctx.skip(answer_for(ctx))
        elif deed == "skip wrong" and event == "on_predict_start":
            ctx.skip([])
        elif deed == "call" and self.depth < self.depth_max:
            self.depth += 1
            try:
                self.agent.predict("nested", LATE)
            finally:
                self.depth -= 1
        elif deed == "raise":
            raise StepError((event,))

    def on_predict_start(self, ctx: PredictContext) -> None:
        self._do("on_predict_start", ctx)

    def on_predict_end(self, ctx: PredictContext) -> None:
        self._do("on_predict_end", ctx)

    def on_error(self, ctx: PredictContext) -> None:
        self._do("on_error", ctx)


DEEDS = st.lists(st.sampled_from(["nothing", "rewrite", "skip", "skip wrong", "call", "raise"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(DEEDS, st.booleans(), st.booleans())
def test_restless_hooks_leave_every_start_one_end_and_one_correlation(
    deeds: list[str], hooks_raise: bool, hooks_concurrent: bool
) -> None:
    agent = Agent(WordCheckpoint(), hooks_raise=hooks_raise, hooks_concurrent=hooks_concurrent)
    hook = Restless(agent, deeds)
    agent.add_hook(hook)
    try:
        results = agent.predict_batch(["one", "two"], LATE)
    except (StepError, ValueError):
        pass
    else:
        assert len(results) == 2
    starts = Counter(run_id for event, run_id, _ in hook.told if event == "on_predict_start")
    assert starts == Counter(run_id for event, run_id, _ in hook.told if event == "on_predict_end")
    assert set(starts.values()) == {1}
    assert len({correlation_id for _, _, correlation_id in hook.told}) == 1


def test_interrupt_goes_before_other_failures_and_hooks_still_run() -> None:
    trace: Trace = []
    agent = Agent(WordCheckpoint())

    def interrupt(ctx: PredictContext) -> None:
        raise KeyboardInterrupt

    def fail(ctx: PredictContext) -> None:
        raise ValueError("first")

    hooks = [
        Recorder("A", trace, {"on_predict_start": fail}),
        Recorder("B", trace, {"on_predict_start": interrupt}),
        Recorder("C", trace),
    ]
    with pytest.raises(KeyboardInterrupt) as raised:
        agent.predict("s", LATE, hooks=hooks, hooks_raise=False)
    assert [step[0] for step in trace] == ["A", "B", "C"] * 3
    assert [step[1] for step in trace[::3]] == ["on_predict_start", "on_error", "on_predict_end"]
    with pytest.raises(KeyboardInterrupt) as raised:
        agent.predict("s", LATE, hooks=hooks)
    assert any("first" in note for note in raised.value.__notes__)
