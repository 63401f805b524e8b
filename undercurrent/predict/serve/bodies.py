"""The bodies that clients send, checked before anything of the Router runs."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from undercurrent.predict.answers import checked_min_confidence
from undercurrent.predict.errors import PredictError
from undercurrent.predict.questions import parse_questions
from undercurrent.predict.serve.limits import ServeLimits
from undercurrent.predict.serve.problems import Problem

__all__ = ["BatchBody", "BatchItem", "PredictBody", "read_batch", "read_predict"]

# What a caller in the same process may pass, and what would be code or a way around a policy here.
HOOK_ARGUMENTS = ("hooks", "on_predict_start", "on_predict_end", "hooks_raise", "hooks_timeout", "hooks_concurrent")

State = str | dict[str, Any] | list[Any]
TokenCount = Annotated[int, msgspec.Meta(ge=1)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
MinConfidence = Probability | dict[str, Probability]

BodyT = TypeVar("BodyT", "PredictBody", "BatchBody")


class BatchItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One request of a batch."""

    state: State
    questions: dict[str, Any]
    model: str | None = None
    lang: str | None = None
    lang_guess: str | None = None
    max_len: TokenCount | None = None
    head_max_len: TokenCount | None = None


class PredictBody(BatchItem, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One request by itself."""

    min_confidence: MinConfidence | None = None


class BatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Many requests."""

    requests: list[BatchItem]
    min_confidence: MinConfidence | None = None


def read_predict(body: bytes, limits: ServeLimits) -> PredictBody:
    """The request of a body.

    Raises:
        Problem: it is none.
    """
    found = _decoded(body, PredictBody)
    _check_item(found, limits, "$")
    _check_confidence(found.min_confidence)
    return found


def read_batch(body: bytes, limits: ServeLimits) -> BatchBody:
    """The requests of a body.

    Raises:
        Problem: they are none, or too many.
    """
    found = _decoded(body, BatchBody)
    count = len(found.requests)
    if count > limits.batch_size_max:
        raise Problem(
            413, "batch_too_large", f"at most {limits.batch_size_max} requests may come at once, got {count}; send less"
        )
    for index, item in enumerate(found.requests):
        _check_item(item, limits, f"$.requests[{index}]")
    _check_confidence(found.min_confidence)
    return found


def _decoded(body: bytes, kind: type[BodyT]) -> BodyT:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        if any(f"`{name}`" in text for name in HOOK_ARGUMENTS):
            raise Problem(
                422,
                "hooks_refused",
                f"{text}: hooks and their settings are not accepted from the network; they are installed on the Router"
                " where it is made",
            ) from None
        raise Problem(422, "invalid_request", text) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, "invalid_json", f"the body must be JSON in UTF-8: {error}") from None
    except RecursionError:
        raise Problem(422, "nested_too_deep", "the body is nested too deep to be read") from None


def _check_item(item: BatchItem, limits: ServeLimits, place: str) -> None:
    if len(item.questions) > limits.question_count_max:
        raise Problem(
            422,
            "too_many_questions",
            f"at most {limits.question_count_max} questions may be asked, got {len(item.questions)} at"
            f" `{place}.questions`",
        )
    for name in ("state", "questions"):
        if _is_deeper(getattr(item, name), limits.nesting_max):
            raise Problem(
                422, "nested_too_deep", f"at most {limits.nesting_max} levels may be nested at `{place}.{name}`"
            )
    try:
        parse_questions(item.questions)
    except PredictError as error:
        raise Problem(422, "invalid_question", f"{error} - at `{place}.questions`") from None


def _check_confidence(value: object) -> None:
    try:
        checked_min_confidence(value)
    except PredictError as error:
        raise Problem(422, "invalid_request", f"{error} - at `$.min_confidence`") from None


def _is_deeper(value: object, levels: int) -> bool:
    """Whether something is nested in more levels; level by level, so that no depth can exhaust the stack."""
    layer = [value]
    for _ in range(levels + 1):
        inner: list[object] = []
        for one in layer:
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, list):
                inner.extend(one)
        if not inner:
            return False
        layer = inner
    return any(isinstance(one, dict | list) for one in layer)
