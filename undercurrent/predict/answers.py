"""Answers: what a question's scores mean, what a call used, and which answers are too uncertain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from undercurrent.errors import did_you_mean
from undercurrent.predict.checkpoint import EncodedState, Scores
from undercurrent.predict.errors import PredictRuntimeError, PredictValueError
from undercurrent.predict.probes import VETOED
from undercurrent.predict.questions import Question

__all__ = ["MinConfidence", "aggregate_usage", "checked_min_confidence", "empty_result", "gate", "make_result"]

MinConfidence = float | Mapping[str, float]
"""One threshold in [0, 1], or one by kind and number of options: "noul:2", "choice:3-5", "score:11+", "default"."""

_DIGITS = 4
_SIZES = ("2", "3-5", "6-10", "11+")
_BUCKETS = (*(f"{kind}:{size}" for kind in ("choice", "score", "noul") for size in _SIZES), "default")


def make_result(
    model_id: str, questions: Sequence[Question], scores: Sequence[Scores], encoded: EncodedState[Any]
) -> dict[str, Any]:
    """Returns the result of one state: its answers, and what reading it took."""
    usage: dict[str, Any] = {
        "input_tokens": encoded.input_tokens,
        "output_tokens": 0,
        "state_tokens": encoded.state_tokens,
        "state_tokens_dropped": encoded.state_tokens_dropped,
        "truncated": encoded.state_tokens_dropped > 0,
        "truncated_questions": list(encoded.truncated_questions),
    }
    if encoded.usage:
        usage.update(encoded.usage)
    if len(scores) != len(questions):
        raise PredictRuntimeError(f"checkpoint {model_id!r} scored {len(scores)} of {len(questions)} questions")
    answers = {question.id: make_answer(question, score) for question, score in zip(questions, scores, strict=True)}
    return {"model": model_id, "answers": answers, "usage": usage}


def empty_result(model_id: str) -> dict[str, Any]:
    """Returns the result of a state that was asked nothing."""
    return {"model": model_id, "answers": {}, "usage": {"input_tokens": 0, "output_tokens": 0}}


def make_answer(question: Question, scores: Scores) -> dict[str, Any]:
    """Returns one answer. `confidence` is 1 minus the normalised entropy (choice, score) or the larger probability
    (noul); `answer_confidence` is the calibrated probability of the answer. Numbers have four digits.

    Raises:
        PredictRuntimeError: there is not one finite probability per option.
    """
    probabilities = list(map(float, scores.probabilities))
    # The sum of probabilities is finite exactly where all of them are.
    if len(probabilities) != len(question.keys) or not math.isfinite(sum(probabilities)):
        raise PredictRuntimeError(
            f"question {question.id!r} has {len(question.keys)} options, the checkpoint gave the probabilities"
            f" {probabilities!r}; one finite number per option is expected"
        )
    best = max(probabilities)
    answer: dict[str, Any]
    if question.type == "noul":
        answer = {
            "type": "noul",
            "noul": round(probabilities[1], _DIGITS),
            "confidence": round(max(probabilities[1], 1.0 - probabilities[1]), _DIGITS),
        }
    else:
        by_key = dict(zip(question.keys, [round(value, _DIGITS) for value in probabilities], strict=True))
        if question.type == "choice":
            answer = {"type": "choice", "choice": question.keys[probabilities.index(best)]}
        else:
            level = sum(index * value for index, value in enumerate(probabilities))
            legend = dict(zip(question.keys, question.descriptions, strict=True))
            answer = {"type": "score", "score": round(level, _DIGITS), "legend": legend}
        answer["probabilities"] = by_key
        answer["confidence"] = round(_concentration(probabilities), _DIGITS)
    confidence = best if scores.answer_confidence is None else float(scores.answer_confidence)
    answer["answer_confidence"] = round(confidence, _DIGITS)
    if scores.answer:
        answer.update(scores.answer)
    return answer


def _concentration(probabilities: Sequence[float]) -> float:
    count = len(probabilities)
    if count < 2:
        return 1.0
    entropy = 0.0
    for value in probabilities:
        if value > 0.0:
            entropy -= value * math.log(value)
    return min(1.0, max(0.0, 1.0 - entropy / math.log(count)))


def aggregate_usage(results: Sequence[Any]) -> dict[str, int]:
    """Sums the tokens of results; what has no usage, or no number there, counts nothing.

    Raises:
        PredictValueError: a usage is no dict, or a number of tokens is none.
    """
    read = written = 0
    for result in results:
        usage = result.get("usage") if type(result) is dict else None
        if not usage:
            continue
        try:
            read += usage.get("input_tokens") or 0
            written += usage.get("output_tokens") or 0
        except (AttributeError, TypeError) as error:
            raise PredictValueError(
                f"a result's `usage` must be a dict with numbers of tokens, got {usage!r}; see who made the result"
            ) from error
    return {"input_tokens": read, "output_tokens": written}


def checked_min_confidence(value: object) -> MinConfidence | None:
    """Returns a threshold or a table of them.

    Raises:
        PredictValueError: a number is not within [0, 1], or a key names no kind and size of question.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return _threshold(value)
    for key in value:
        if key not in _BUCKETS:
            raise PredictValueError(
                f"keys of `min_confidence` are like 'choice:3-5', or 'default', got {key!r}"
                + did_you_mean(str(key), _BUCKETS)
            )
    if not value:
        raise PredictValueError("`min_confidence` is an empty dict; give at least a 'default'")
    return {key: _threshold(one) for key, one in value.items()}


def gate(results: Sequence[Any] | None, min_confidence: MinConfidence | None) -> None:
    """Marks each answer as passed, abstained or unevaluated, with the threshold; nothing where there is none."""
    if min_confidence is None or results is None:
        return
    for result in results:
        answers = result.get("answers") if isinstance(result, dict) else None
        for answer in (answers or {}).values():
            if isinstance(answer, dict):
                _mark(answer, min_confidence)


def _mark(answer: dict[str, Any], min_confidence: MinConfidence) -> None:
    if isinstance(min_confidence, Mapping):
        threshold = min_confidence.get(_bucket(answer), min_confidence.get("default", 0.0))
    else:
        threshold = min_confidence
    if answer.get("abstention") == VETOED:
        return
    answer.pop("low_confidence", None)
    confidence = next(
        (value for value in map(answer.get, ("answer_confidence", "confidence")) if _is_number(value)), None
    )
    if confidence is None:
        answer["abstention"] = "unevaluated"
    elif confidence < threshold:
        answer["abstention"] = "abstained"
        answer["low_confidence"] = True
    else:
        answer["abstention"] = "passed"
    answer["abstention_threshold"] = threshold


def _bucket(answer: Mapping[str, Any]) -> str:
    count = len(answer.get("probabilities") or (0, 1))
    return f"{answer.get('type')}:{_SIZES[0 if count <= 2 else 1 if count <= 5 else 2 if count <= 10 else 3]}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _threshold(value: object) -> float:
    if not _is_number(value) or not 0.0 <= value <= 1.0:  # type: ignore[operator]
        raise PredictValueError(f"`min_confidence` must be within 0 and 1, got {value!r}")
    return float(value)  # type: ignore[arg-type]
