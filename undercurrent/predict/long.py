"""States longer than a model's sequence: cut into windows, and the windows' answers joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from undercurrent.predict.answers import aggregate_usage
from undercurrent.predict.checkpoint import CallOptions, Checkpoint, LongCheckpoint, StateWindow
from undercurrent.predict.context import PredictContext
from undercurrent.predict.errors import PredictRuntimeError, PredictTypeError, PredictValueError
from undercurrent.predict.probes import VETOED, ProbeTap, asked_of_model
from undercurrent.predict.questions import STATE_TYPES, parse_questions

__all__ = ["joined", "windows_of"]


def windows_of(
    checkpoint: Checkpoint[Any, Any, Any],
    state: Any,
    questions: object,
    window: int | None,
    stride: int | None,
    aggregate: str,
    options: CallOptions,
    tap: ProbeTap | None,
) -> Sequence[StateWindow]:
    """Cuts a state; one window means that it is read whole."""
    if not isinstance(state, STATE_TYPES):
        raise PredictTypeError(f"`state` must be a text, a dict or a list of turns, got {type(state).__name__}")
    if aggregate != "auto":
        raise PredictValueError(f"`aggregate` must be 'auto', got {aggregate!r}")
    for name, value in (("window", window), ("stride", stride)):
        if value is not None and (type(value) is not int or value < 1):
            raise PredictValueError(f"`{name}` counts tokens: an int >= 1 or None is expected, got {value!r}")
    parsed = parse_questions(questions)
    if not parsed:
        return [StateWindow("", 0, 0)]
    if not isinstance(checkpoint, LongCheckpoint):
        raise PredictTypeError(
            f"checkpoint {checkpoint.model_id!r} has no split(), so it cannot read long states; call predict()"
        )
    asked = asked_of_model(parsed, tap)
    checkpoint.check(asked, options)
    windows = checkpoint.split(state, asked, options, window_tokens=window, stride_tokens=stride)
    if not windows:
        raise PredictRuntimeError(f"checkpoint {checkpoint.model_id!r} cut a state into no windows; one is the least")
    return windows


def joined(
    model_id: str,
    ctx: PredictContext,
    results: Sequence[dict[str, Any]],
    windows: Sequence[StateWindow],
    *,
    is_as_cut: bool,
) -> dict[str, Any]:
    """Returns the document's result. `is_as_cut`: the hooks left the windows as they were, so answers can name
    theirs."""
    if not results:
        return {"model": model_id, "answers": {}, "usage": {**aggregate_usage([]), "windows": 0}}
    if ctx.is_skipped:
        return _with_windows(results[0], 0)
    if len(results) == 1:
        return _with_windows(results[0], 1 if results[0].get("answers") else 0)
    answers: dict[Any, Any] = {}
    for question_id in results[0]["answers"]:
        if not all(question_id in result["answers"] for result in results):
            raise PredictRuntimeError(f"hooks left an answer to {question_id!r} in some windows and not in others")
        per_window = [result["answers"][question_id] for result in results]
        at = max(range(len(results)), key=lambda index: _weight(per_window[index]))
        answers[question_id] = dict(per_window[at])
        if is_as_cut:
            answers[question_id]["window"] = {
                "index": at,
                "token_start": windows[at].token_start,
                "token_end": windows[at].token_end,
                "count": len(results),
            }
    document = {"model": model_id, "answers": answers, "usage": _usage(results)}
    if any("probes" in result for result in results):
        document["probes"] = [result.get("probes") for result in results]
    return document


def _with_windows(result: dict[str, Any], count: int) -> dict[str, Any]:
    usage: dict[str, Any] = result.get("usage") or {}
    return {**result, "usage": {**usage, "windows": count}}


def _weight(answer: dict[str, Any]) -> float:
    """Which window's answer is the document's: the highest. A veto of one window is a veto of the document."""
    if answer.get("abstention") == VETOED:
        return math.inf
    if answer.get("type") == "probe":
        score = answer.get("score")
        return float(score) if isinstance(score, int | float) else 0.0
    return float(answer["noul"] if answer.get("type") == "noul" else answer.get("answer_confidence", 0.0))


def _usage(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums what can be summed, joins tables, and lists each truncated question once."""
    usage: dict[str, Any] = {}
    for result in results:
        for key, value in (result.get("usage") or {}).items():
            before = usage.get(key)
            if isinstance(value, int | float):
                usage[key] = (before or 0) + value
            elif isinstance(value, dict):
                usage[key] = {**(before or {}), **value}
            elif isinstance(value, list):
                usage[key] = [*(before or []), *(one for one in value if one not in (before or []))]
            else:
                usage[key] = value
    usage["windows"] = len(results)
    return usage
