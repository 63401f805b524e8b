"""A small deterministic checkpoint, hooks that write down what they see, and routers made of both."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from undercurrent.predict import (
    EVENTS,
    CallOptions,
    EncodedState,
    PredictContext,
    PredictValueError,
    Question,
    Router,
    Scores,
    StateWindow,
)

_WORD = re.compile(r"\w+")

LATE = {"late": {"type": "noul", "instructions": "a parcel is late"}}
TOPIC = {"topic": {"type": "choice", "instructions": "what it is about", "criteria": ["parcel", "bill", "other"]}}

Trace = list[tuple[Any, ...]]
"""What ran, in order: ("build", name), ("encode", model), ... for work, (hook, event, request) for hooks."""


class WordCheckpoint:
    """Scores an option by how many words it shares with the state; nine tokens a word, so to speak, are one.

    Everything it does goes to `trace`, where one is given, and `seen` keeps the texts that reached it.
    """

    def __init__(
        self,
        model_id: str = "words",
        *,
        trace: Trace | None = None,
        size_bytes: int = 100,
        max_len: int = 64,
        fails_at: str = "",
        uses_lang: bool = False,
    ) -> None:
        self.model_id = model_id
        self.device = "cpu"
        self.size_bytes = size_bytes
        self.uses_lang = uses_lang
        self.max_len = max_len
        self.fails_at = fails_at
        self.trace = trace
        self.seen: list[str] = []
        self.batch_sizes: list[int] = []

    def check(self, questions: Sequence[Question], options: CallOptions) -> None:
        """Refuses questions whose options need more words than the budget."""
        self._step("check")
        budget = options.max_len or self.max_len
        for question in questions:
            needed = sum(len(text.split()) for text in question.texts)
            if needed > budget:
                raise PredictValueError(
                    f"question {question.id!r}: its options take {needed} tokens, `max_len` is {budget}"
                )

    def encode(
        self, state: object, questions: Sequence[Question], options: CallOptions
    ) -> EncodedState[tuple[str, ...]]:
        """Cuts a state into words."""
        self._step("encode")
        text = _text(state)
        self.seen.append(text)
        words = text.lower().split()
        kept = words[: options.max_len or self.max_len]
        return EncodedState(
            row=tuple(kept),
            input_tokens=len(kept) * len(questions),
            state_tokens=len(words),
            state_tokens_dropped=len(words) - len(kept),
            truncated_questions=tuple(q.id for q in questions) if len(kept) < len(words) else (),
        )

    def collate(self, encoded: Sequence[EncodedState[tuple[str, ...]]]) -> list[tuple[str, ...]]:
        """Joins rows."""
        self._step("collate")
        return [one.row for one in encoded]

    def forward(self, batch: list[tuple[str, ...]]) -> list[frozenset[str]]:
        """Makes sets of words of them."""
        self._step("forward")
        self.batch_sizes.append(len(batch))
        return [frozenset(row) for row in batch]

    def decode(
        self,
        output: list[frozenset[str]],
        encoded: Sequence[EncodedState[tuple[str, ...]]],
        questions: Sequence[Question],
        options: CallOptions,
    ) -> list[list[Scores]]:
        """Turns shared words into probabilities."""
        self._step("decode")
        assert len(output) == len(encoded)
        return [[_scores(words, question) for question in questions] for words in output]

    def split(
        self,
        state: object,
        questions: Sequence[Question],
        options: CallOptions,
        *,
        window_tokens: int | None,
        stride_tokens: int | None,
    ) -> list[StateWindow]:
        """Cuts a state into windows of words."""
        words = _text(state).split()
        size = min(window_tokens or self.max_len, self.max_len)
        stride = stride_tokens or max(1, size // 2)
        if stride > size:
            raise PredictValueError(f"`stride` must be at most the window's {size} tokens, got {stride}")
        windows = []
        for first in range(0, max(1, len(words)), stride):
            windows.append(StateWindow(" ".join(words[first : first + size]), first, min(first + size, len(words))))
            if first + size >= len(words):
                break
        return windows

    def _step(self, name: str) -> None:
        if self.trace is not None:
            self.trace.append((name, self.model_id))
        if self.fails_at == name:
            raise RuntimeError(f"{self.model_id} fails at {name}")


class StubAgent:
    """Something to attach: answers at once, with the same thing, and knows no arguments but the two it needs."""

    def __init__(self, model_id: str = "stub") -> None:
        self.model_id = model_id
        self.calls = 0

    def system_one(self, state: Any, questions: Mapping[str, Any]) -> dict[str, Any]:
        """Answers one state."""
        self.calls += 1
        return {"model": self.model_id, "answers": {}, "usage": {"input_tokens": 3, "output_tokens": 0}}

    def predict_batch(
        self, states: list[Any], questions: Mapping[str, Any], batch_size: int | None = None
    ) -> list[dict[str, Any]]:
        """Answers many."""
        return [self.system_one(state, questions) for state in states]


class Recorder:
    """A hook that writes down every event it gets, and does what `acts` says there.

    `acts` maps an event, or (event, model) for those of a checkpoint, to a function of the context.
    """

    def __init__(
        self,
        name: str,
        trace: Trace,
        acts: Mapping[str, Callable[[PredictContext], object]] | None = None,
        events: Sequence[str] = EVENTS,
    ) -> None:
        self.name = name
        self.trace = trace
        for event in EVENTS:
            if event not in events:
                setattr(self, event, None)
        self.acts = dict(acts or {})
        self.contexts: list[tuple[str, PredictContext]] = []

    def _note(self, event: str, ctx: PredictContext) -> None:
        self.trace.append((self.name, event, subject(event, ctx)))
        self.contexts.append((event, ctx))
        act = self.acts.get(event)
        if act is not None:
            act(ctx)

    def ids(self, *events: str) -> list[str]:
        """The run ids of the contexts it was given, of some events or all."""
        return [ctx.run_id for event, ctx in self.contexts if not events or event in events]


def _method(event: str) -> Callable[[Recorder, PredictContext], None]:
    def run(self: Recorder, ctx: PredictContext) -> None:
        self._note(event, ctx)

    return run


for _event in EVENTS:
    setattr(Recorder, _event, _method(_event))


def subject(event: str, ctx: PredictContext) -> str:
    """What an event is about: a checkpoint for load and evict, else the states."""
    if event in ("on_load", "on_evict"):
        return str(ctx.model)
    return "+".join(map(_text, ctx.states))


def raising(error: BaseException) -> Callable[[PredictContext], object]:
    """An act that raises."""

    def act(ctx: PredictContext) -> object:
        raise error

    return act


def answer_for(ctx: PredictContext) -> list[dict[str, Any]]:
    """Results as a cache would hold them, one per state."""
    return [{"model": "cache", "answers": {"late": {"type": "noul", "noul": 1.0}}} for _ in ctx.states]


def make_router(
    trace: Trace | None = None, *, names: Sequence[str] = ("english", "multilingual"), **arguments: Any
) -> Router:
    """A router whose checkpoints are `WordCheckpoint`s that are built when first used, which is traced too."""

    def factory(name: str) -> Callable[[], WordCheckpoint]:
        def build() -> WordCheckpoint:
            if trace is not None:
                trace.append(("build", name))
            return WordCheckpoint(name, trace=trace)

        return build

    return Router(models={name: factory(name) for name in names}, **arguments)


def _text(state: object) -> str:
    return state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)


def _scores(words: frozenset[str], question: Question) -> Scores:
    weights = [math.exp(len(words & set(_WORD.findall(text.lower())))) for text in question.texts]
    return Scores([weight / sum(weights) for weight in weights])
