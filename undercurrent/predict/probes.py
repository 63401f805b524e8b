"""Probes at an Agent: what the model's inside says about a state stands beside the answers about it.

A `ProbeTap` reads the forward passes of one checkpoint. Its verdicts become `result["probes"]`; a question of the type
`probe` is answered by one; and a probe that vetoes takes the model's answers back. `engines` has a tap for models of
torch: `undercurrent.engines.checkpoint_probes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from undercurrent.errors import did_you_mean
from undercurrent.predict.checkpoint import Checkpoint, EncodedState
from undercurrent.predict.errors import PredictRuntimeError, PredictValueError
from undercurrent.predict.questions import Question

__all__ = ["VETOED", "ProbeAttachment", "ProbeTap", "ProbeWatch", "StateVerdicts", "add_verdicts", "asked_of_model"]

VETOED = "vetoed"
"""The `abstention` of an answer that a probe has taken back."""


class StateVerdicts(msgspec.Struct, frozen=True):
    """What the probes said about one state."""

    points: Mapping[str, Mapping[str, Any]]
    """By point: `verdict`, `coverage`, and where it vetoed `vetoed` and `reason`."""
    vetoed_by: str | None = None
    """The point whose probe vetoed first."""


class ProbeWatch(Protocol):
    """One forward pass under watch."""

    @property
    def verdicts(self) -> Sequence[StateVerdicts]:
        """One per state, once the block has ended."""
        ...


class ProbeTap(Protocol):
    """Reads one checkpoint. Several threads may watch at once."""

    @property
    def points(self) -> Sequence[str]:
        """The names of what it reads."""
        ...

    def watching(
        self, request_ids: Sequence[str], states: Sequence[Any], encoded: Sequence[EncodedState[Any]]
    ) -> AbstractContextManager[ProbeWatch]:
        """A block in which this thread runs the checkpoint's `collate` and `forward` over `encoded`.

        Its end waits for the verdicts. What a probe raises, it raises; requests that it opened end in any case.
        """
        ...


ProbeAttachment = Callable[[Checkpoint[Any, Any, Any]], ProbeTap]
"""Makes a tap for a checkpoint that was loaded; what `Agent(probes=…)` takes."""

CARRIER = Question(
    id="carrier",
    type="noul",
    instructions="the text is as it should be",
    keys=("false", "true"),
    labels=("false", "true"),
    descriptions=(None, None),
    texts=("false", "true"),
)
"""Asked where all questions are the probes', so that there is a forward pass to read; nobody sees its answer."""


def asked_of_model(questions: tuple[Question, ...], tap: ProbeTap | None) -> tuple[Question, ...]:
    """Returns the questions that the checkpoint answers; `CARRIER` where there are others only.

    Raises:
        PredictValueError: a question is for a probe that is not there.
    """
    for question in questions:
        if question.type == "probe":
            break
    else:
        return questions
    points = () if tap is None else tap.points
    for question in questions:
        if question.type != "probe" or question.labels[0] in points:
            continue
        where = f"question {question.id!r}: no probe is attached as {question.labels[0]!r}"
        if not points:
            raise PredictValueError(f"{where}, nor as anything else; make the Agent with `probes=`")
        raise PredictValueError(
            f"{where}{did_you_mean(question.labels[0], points) or ';'} attached are {', '.join(map(repr, points))}"
        )
    return tuple(question for question in questions if question.type != "probe") or (CARRIER,)


def add_verdicts(result: dict[str, Any], questions: Sequence[Question], said: StateVerdicts) -> None:
    """Puts verdicts into a result: beside the answers, as answers, and over those that are vetoed."""
    answers = result["answers"]
    result["answers"] = {question.id: _answer(question, answers, said) for question in questions}
    result["probes"] = {name: dict(point) for name, point in said.points.items()}


def _answer(question: Question, answers: Mapping[Any, Any], said: StateVerdicts) -> dict[str, Any]:
    if question.type != "probe":
        if said.vetoed_by is None:
            return answers[question.id]  # type: ignore[no-any-return]
        return {"type": question.type, "abstention": VETOED, "vetoed_by": said.vetoed_by}
    name = question.labels[0]
    point = said.points.get(name)
    if point is None:
        raise PredictRuntimeError(f"question {question.id!r}: the probe of point {name!r} said nothing")
    verdict = point["verdict"]
    answer = {"type": "probe", "point": name, "verdict": verdict}
    if isinstance(verdict, Mapping):
        answer.update({key: verdict[key] for key in ("flagged", "score", "label") if key in verdict})
    answer["complete"] = bool(point.get("coverage", {}).get("complete"))
    return answer
