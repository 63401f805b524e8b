"""Plays the sequences of `order` without a model: what would run, in which order, for a given call and given failures.

>>> from undercurrent.predict.simulate import Request, Scenario, simulate
>>> played = simulate("Agent.predict_batch", Scenario(hooks={"A": ("on_predict_start", "on_predict_end")}))
>>> [step[1] if step[0] == "A" else step[0] for step in played.trace]
['on_predict_start', 'check', 'encode', 'collate', 'forward', 'decode', 'on_predict_end']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from undercurrent.predict.order import SEQUENCES, START, Each, Event, Guarded, Step, Use, When, Work

__all__ = ["Played", "Request", "Scenario", "simulate"]

TraceStep = tuple[str, ...]
"""`(work, model)`, or `(hook, event, subject)`: the state for a request's events, the model for load and evict."""


@dataclass(frozen=True)
class Request:
    """One request of a call."""

    state: str
    model: str = "english"
    schema: str = "q"
    """Requests with equal schemas share forward passes; "" stands for no questions."""


@dataclass(frozen=True)
class Scenario:
    """A call: its requests, its hooks, what is resident, and what fails."""

    requests: tuple[Request, ...] = (Request("s"),)
    hooks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The Router's or Agent's hooks in their order, and the events each has."""
    agent_hooks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Hooks of every Agent behind a Router."""
    batch_size: int | None = None
    resident: tuple[str, ...] = ()
    """What a Router has loaded, the one used longest ago first."""
    max_loaded: int = 2
    fails: frozenset[TraceStep] = frozenset()
    """The steps that raise."""
    answers: frozenset[TraceStep] = frozenset()
    """The start steps that answer their call with `ctx.skip`."""


@dataclass(frozen=True)
class Played:
    """What ran, and whose failure the caller gets: None where there was none."""

    trace: list[TraceStep]
    failure: TraceStep | None


class _FailedError(Exception):
    def __init__(self, step: TraceStep) -> None:
        super().__init__(step)
        self.step = step


def simulate(name: str, scenario: Scenario) -> Played:
    """Plays a sequence of `SEQUENCES`."""
    player = _Player(scenario)
    scope = _Scope(scenario.hooks, scenario.requests)
    if name in ("Router.load", "Router.unload"):
        scope = replace(scope, subject=scenario.requests[0].model)
    if name == "Router.predict":
        scope = replace(scope, subject=scenario.requests[0].state)
    if name == "Agent.predict_batch":
        scope = player.agent_scope(scope, scenario.hooks)
    try:
        player.play(SEQUENCES[name], scope)
    except _FailedError as failed:
        return Played(player.trace, failed.step)
    return Played(player.trace, None)


@dataclass(frozen=True)
class _Scope:
    """Whose hooks run, which requests a step is about, and what its events are about."""

    hooks: Mapping[str, Sequence[str]]
    requests: tuple[Request, ...]
    subject: str = ""
    is_agent: bool = False


class _Player:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.trace: list[TraceStep] = []
        self.resident = list(scenario.resident)
        self.answered: set[tuple[bool, str]] = set()
        self.started: list[Request] = []

    def play(self, steps: Iterable[Step], scope: _Scope) -> None:
        for step in steps:
            match step:
                case Event(name):
                    self.run_event(name, scope)
                case Work(name):
                    self.work(name, scope)
                case Use("Agent.predict_batch"):
                    self.play(SEQUENCES["Agent.predict_batch"], self.agent_scope(scope, self.scenario.agent_hooks))
                case Use("Router.load"):
                    self.play(SEQUENCES["Router.load"], replace(scope, subject=scope.requests[0].model))
                    self.use(scope.requests[0].model)
                case Each(over, inner):
                    for one in self.scopes(over, scope):
                        self.play(inner, one)
                case When(condition, inner):
                    if self.holds(condition, scope):
                        self.play(inner, scope)
                case Guarded(body, ended, failed):
                    self.guarded(body, ended, failed, scope)

    def guarded(self, body: tuple[Step, ...], ended: tuple[Step, ...], failed: tuple[Step, ...], scope: _Scope) -> None:
        try:
            self.play(body, scope)
        except _FailedError:
            self.play_all(failed, scope)
            raise
        first = self.play_all(ended, scope)
        if first is not None:
            raise first

    def play_all(self, steps: tuple[Step, ...], scope: _Scope) -> _FailedError | None:
        """Plays every step whatever the others do; returns the first failure."""
        first: _FailedError | None = None
        for step in steps:
            scopes = [(step.steps, one) for one in self.scopes(step.over, scope)] if isinstance(step, Each) else None
            for inner, one in scopes or [((step,), scope)]:
                for each in inner:
                    try:
                        self.play((each,), one)
                    except _FailedError as failed:
                        first = first or failed
        return first

    def run_event(self, event: str, scope: _Scope) -> None:
        first: TraceStep | None = None
        if event == START and not scope.is_agent:
            self.started.append(scope.requests[0])
        for hook, events in scope.hooks.items():
            if event not in events:
                continue
            step = (hook, event, scope.subject)
            self.trace.append(step)
            if step in self.scenario.answers:
                self.answered.add((scope.is_agent, scope.subject))
            if step in self.scenario.fails:
                first = first or step
        if first is not None:
            raise _FailedError(first)

    def work(self, name: str, scope: _Scope) -> None:
        model = scope.requests[0].model
        self.trace.append((name, model))
        if (name, model) in self.scenario.fails:
            raise _FailedError((name, model))
        if name == "build":
            self.use(model)

    def use(self, model: str) -> None:
        if model in self.resident:
            self.resident.remove(model)
        self.resident.append(model)

    def agent_scope(self, scope: _Scope, hooks: Mapping[str, Sequence[str]]) -> _Scope:
        states = "+".join(request.state for request in scope.requests)
        return _Scope(hooks, scope.requests, states, is_agent=True)

    def holds(self, condition: str, scope: _Scope) -> bool:
        if condition == "not resident":
            return scope.requests[0].model not in self.resident
        is_answered = (scope.is_agent, scope.subject) in self.answered
        if condition == "no hook answered":
            return not is_answered
        if condition == "there are questions":
            return bool(scope.requests[0].schema)
        assert condition == "no hook answered, and there are states and questions", condition
        return not is_answered and bool(scope.requests) and bool(scope.requests[0].schema)

    def scopes(self, over: str, scope: _Scope) -> list[_Scope]:
        requests = scope.requests
        match over:
            case "chunk of states":
                size = self.scenario.batch_size or len(requests)
                return [replace(scope, requests=requests[at : at + size]) for at in range(0, len(requests), size)]
            case "state of the chunk" | "request" | "request of the checkpoint":
                return [self.one(scope, request) for request in requests]
            case "request of the checkpoint, last first":
                return [self.one(scope, request) for request in reversed(requests)]
            case "started request, last first":
                return [self.one(scope, request) for request in reversed(requests) if request in self.started]
            case "checkpoint, by first appearance":
                return [replace(scope, requests=tuple(group)) for group in _grouped(requests, "model")]
            case "group of requests that share passes":
                left = [request for request in requests if (False, request.state) not in self.answered]
                return [replace(scope, requests=tuple(group)) for group in _grouped(left, "schema")]
            case "checkpoint there is no room for":
                over_count = max(0, len(self.resident) - self.scenario.max_loaded)
                evicted, self.resident = self.resident[:over_count], self.resident[over_count:]
                return [replace(scope, subject=model) for model in evicted]
        raise AssertionError(f"nobody says what {over!r} is")

    def one(self, scope: _Scope, request: Request) -> _Scope:
        subject = scope.subject if scope.is_agent else request.state
        return replace(scope, requests=(request,), subject=subject)


def _grouped(requests: Sequence[Request], by: str) -> list[list[Request]]:
    groups: dict[Any, list[Request]] = {}
    for request in requests:
        groups.setdefault(getattr(request, by), []).append(request)
    return list(groups.values())
