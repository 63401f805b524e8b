"""Questions: what callers write, checked and put into the one form that checkpoints read.

Three types are a model's. `choice`: `criteria` is a dict of label to description, or a list of labels. `score`:
`criteria` is a list of level descriptions, index 0 first. `noul`, a yes/no question: `criteria` and `labels` are dicts
with the keys "true" and "false", both optional. All take `instructions`, and `option_order`, a permutation in which the
options are shown. A fourth, `probe`, has a `point` and is answered by the probe that is attached under that name.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from undercurrent.errors import did_you_mean, one_of
from undercurrent.predict.errors import PredictTypeError, PredictValueError

__all__ = ["QUESTION_TYPES", "STATE_TYPES", "Question", "parse_questions", "schema_key"]

STATE_TYPES = (str, dict, list)
"""What a state may be: a text, a document, or a list of turns."""

_KNOWN_COUNT_MAX = 512
_KNOWN_KEY_BYTES_MAX = 65536
_NOUL_LABELS = {"false": "false", "true": "true"}
_NOUL_TEXTS = {"false": "no, the statement does not hold", "true": "yes, the statement holds"}


class Question(msgspec.Struct, frozen=True):
    """A question a checkpoint can score: instructions, and at least one option."""

    id: str | int
    type: str
    """One of `QUESTION_TYPES`."""
    instructions: str
    """The text the model answers; what was no text is JSON."""
    keys: tuple[Any, ...]
    """What an answer names the options by: the caller's labels; "0", "1", ... for levels; "false", "true"."""
    labels: tuple[str, ...]
    """The options' bare names, as text; the point of a probe question."""
    descriptions: tuple[str | None, ...]
    """What the caller said about each option, None where nothing."""
    texts: tuple[str, ...]
    """What a model is shown of each option: label and description."""
    option_order: tuple[int, ...] | None = None
    """Slot s shows option `option_order[s]`; None: in the order of `keys`."""


def parse_questions(questions: object) -> tuple[Question, ...]:
    """Checks questions and returns them in their order; what was parsed lately is remembered by value.

    Raises:
        PredictTypeError: `questions` is no dict.
        PredictValueError: a question cannot be asked; the message names it and what to change.
    """
    if type(questions) is not dict and not isinstance(questions, Mapping):
        raise PredictTypeError(
            f"`questions` must be a dict of question id to definition, got {type(questions).__name__}"
        )
    key = schema_key(questions)
    if type(key) is bytes:
        known = _known.get(key)
        if known is not None:
            return known
    parsed = tuple(_parse(question_id, definition) for question_id, definition in questions.items())
    if type(key) is bytes and len(key) <= _KNOWN_KEY_BYTES_MAX:
        if len(_known) >= _KNOWN_COUNT_MAX:
            _known.clear()
        _known[key] = parsed
    return parsed


_known: dict[bytes, tuple[Question, ...]] = {}


def schema_key(questions: object) -> bytes | str:
    """Returns what two sets of questions share exactly when they may share a forward pass: all values, in their order.

    marshal's format 0 writes plain values with their types and no references, so equal bytes are equal questions; it
    costs a tenth of JSON. What it does not take is written as JSON, other objects by their text.
    """
    try:
        return marshal.dumps(questions, 0)  # type: ignore[arg-type]
    except ValueError:
        pass
    try:
        return json.dumps(questions, ensure_ascii=False, default=repr)
    except (TypeError, ValueError):
        return repr(questions)


def _parse(question_id: object, definition: object) -> Question:
    if not isinstance(question_id, str | int) or (isinstance(question_id, str) and not question_id.strip()):
        raise PredictValueError(f"a question's id must be a string that is not blank, or an int, got {question_id!r}")
    where = f"question {question_id!r}"
    if not isinstance(definition, Mapping):
        raise PredictValueError(f"{where}: its definition must be a dict, got {type(definition).__name__}")
    kind = definition.get("type")
    options = QUESTION_TYPES.get(kind) if isinstance(kind, str) else None
    if options is None or not isinstance(kind, str):
        hint = did_you_mean(kind, QUESTION_TYPES) if isinstance(kind, str) else ""
        raise PredictValueError(f"{where}: `type` must be {one_of(QUESTION_TYPES)}, got {kind!r}{hint}")
    if "labels" in definition and kind != "noul":
        raise PredictValueError(f"{where}: `labels` belongs to noul questions; write a choice's labels in `criteria`")
    instructions = "" if kind == "probe" else _instructions(where, definition)
    keys, labels, descriptions, texts = options(where, definition)
    order = definition.get("option_order")
    return Question(
        id=question_id,
        type=kind,
        instructions=instructions,
        keys=keys,
        labels=labels,
        descriptions=descriptions,
        texts=texts,
        option_order=None if order is None else _option_order(where, order, len(keys)),
    )


def _instructions(where: str, definition: Mapping[str, Any]) -> str:
    instructions = definition.get("instructions")
    if isinstance(instructions, str):
        if instructions.strip():
            return instructions
    elif (isinstance(instructions, dict | list) and instructions) or (
        isinstance(instructions, int | float) and not isinstance(instructions, bool)
    ):
        return _as_json(instructions)
    raise PredictValueError(
        f"{where}: `instructions` must be the text the model answers (a string, dict, list or number, not empty),"
        f" got {instructions!r}"
    )


_Options = tuple[tuple[Any, ...], tuple[str, ...], tuple[str | None, ...], tuple[str, ...]]


def _choice(where: str, definition: Mapping[str, Any]) -> _Options:
    criteria = definition.get("criteria")
    if not isinstance(criteria, Mapping | list) or not criteria:
        raise PredictValueError(
            f"{where}: a choice takes `criteria` as a dict of label to description or as a list of labels, with at"
            f" least one, got {criteria!r}"
        )
    for index, label in enumerate(criteria):
        if not isinstance(label, str | int | float):
            raise PredictValueError(
                f"{where}: label {index} is both shown as text and the key of the answer, so it must be a string, a"
                f" number or a bool, got {label!r}"
            )
    keys = tuple(criteria)
    if len(set(keys)) != len(keys):
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise PredictValueError(
            f"{where}: label {twice!r} comes twice (1, 1.0 and True are one key); each needs its own"
        )
    labels = tuple(map(str, keys))
    if isinstance(criteria, Mapping):
        descriptions = tuple(None if value is None or value == "" else _as_text(value) for value in criteria.values())
    else:
        descriptions = (None,) * len(keys)
    texts = tuple(
        label if text is None else f"{label}: {text}" for label, text in zip(labels, descriptions, strict=True)
    )
    return keys, labels, descriptions, texts


def _score(where: str, definition: Mapping[str, Any]) -> _Options:
    criteria = definition.get("criteria")
    if not isinstance(criteria, list) or not criteria:
        raise PredictValueError(
            f"{where}: a score takes `criteria` as a list of level descriptions, index 0 first, with at least one, got"
            f" {criteria!r}"
        )
    if None in criteria:
        raise PredictValueError(f"{where}: level {criteria.index(None)} is None; describe every level")
    keys = tuple(map(str, range(len(criteria))))
    descriptions = tuple(map(_as_text, criteria))
    texts = tuple(f"level {index}: {text}" for index, text in enumerate(descriptions))
    return keys, keys, descriptions, texts


def _noul(where: str, definition: Mapping[str, Any]) -> _Options:
    keys = ("false", "true")
    labels = definition.get("labels", _NOUL_LABELS)
    is_usable = (
        isinstance(labels, Mapping) and set(labels) == set(keys) and all(isinstance(v, str) for v in labels.values())
    )
    names = tuple(labels[key].strip() for key in keys) if is_usable else ()
    if not all(names) or len(set(names)) != 2:
        raise PredictValueError(
            f"{where}: `labels` must give 'false' and 'true' two different texts that are not blank, got {labels!r}"
        )
    criteria = definition.get("criteria")
    if criteria is None:
        criteria = {}
    elif not isinstance(criteria, Mapping) or not {str(key).lower() for key in criteria} <= set(keys):
        raise PredictValueError(
            f"{where}: a noul takes `criteria` as a dict with the keys 'true' and 'false', either or both, or none at"
            f" all, got {criteria!r}; to word the answers differently set `labels`"
        )
    by_key = {str(key).lower(): value for key, value in criteria.items()}
    descriptions = tuple(
        None if by_key.get(key) is None or by_key[key] == "" else _as_text(by_key[key]) for key in keys
    )
    texts = tuple(
        f"{name}: {_NOUL_TEXTS[key] if text is None else text}"
        for key, name, text in zip(keys, names, descriptions, strict=True)
    )
    return keys, names, descriptions, texts


def _probe(where: str, definition: Mapping[str, Any]) -> _Options:
    point = definition.get("point")
    if not isinstance(point, str) or not point:
        raise PredictValueError(f"{where}: a probe question names the `point` whose probe answers it, got {point!r}")
    return (), (point,), (), ()


QUESTION_TYPES: dict[str, Callable[[str, Mapping[str, Any]], _Options]] = {
    "choice": _choice,
    "score": _score,
    "noul": _noul,
    "probe": _probe,
}
"""How the options of each type are read."""


def _option_order(where: str, order: object, count: int) -> tuple[int, ...]:
    if (
        not isinstance(order, Sequence)
        or any(type(index) is not int for index in order)
        or sorted(order) != list(range(count))
    ):
        raise PredictValueError(
            f"{where}: `option_order` must name each option from 0 to {count - 1} once, got {order!r}"
        )
    return tuple(order)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else _as_json(value)


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=str)
