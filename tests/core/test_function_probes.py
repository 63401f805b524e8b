"""`@probe` turns a function into a probe: what it may look like, what it may return, and how it fails closed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from undercurrent.core import FunctionProbe, ProbeAction, ProbeRegistry, ProbeSignal, RequestContext, probe
from undercurrent.errors import ProbeDefinitionError, ProbingTypeError, ProbingValueError
from undercurrent.spec import ActivationRecord

CONTEXT = RequestContext("req-1", {}, None)


def first_value(record: ActivationRecord) -> Any:
    """Answers with whatever the tensor begins with."""
    return record.tensor[0]


def make_record(value: object = 0.0) -> ActivationRecord:
    return ActivationRecord("req-1", "guard", 4, 10, "mlp_out", [value], True)


def start(probe_cls: type[FunctionProbe], **arguments: Any) -> Any:
    instance = probe_cls.spawn("req-1", "guard", **arguments)
    instance.on_start(CONTEXT)
    return instance


def make_class(**options: Any) -> type[FunctionProbe]:
    made: type[FunctionProbe] = probe("first", register=False, **options)(first_value)
    return made


def test_decorated_function_is_a_single_shot_class_that_keeps_the_function() -> None:
    made = make_class(threshold=0.5, action="flag")

    assert issubclass(made, FunctionProbe)
    assert (made.__name__, made.__module__, made.__doc__) == ("first_value", __name__, first_value.__doc__)
    assert made.fn is first_value
    assert (made.probe_kind, made.probe_name) == ("single_shot", "first")
    assert (made.default_threshold, made.default_action) == (0.5, ProbeAction.FLAG)


def test_bare_decorator_registers_under_the_name_of_the_function() -> None:
    registry = ProbeRegistry(load_entry_points=False)
    made = probe(registry=registry)(first_value)

    assert registry.get("first_value").probe_cls is made


def test_register_false_leaves_the_registry_alone() -> None:
    registry = ProbeRegistry(load_entry_points=False)
    probe("first", registry=registry, register=False)(first_value)

    assert registry.list() == []


@pytest.mark.parametrize(
    ("answer", "action", "confidence", "score"),
    [
        (0.2, ProbeAction.CONTINUE, 0.2, 0.2),
        (0.5, ProbeAction.ABORT, 0.5, 0.5),
        (1, ProbeAction.ABORT, 1.0, 1.0),
        (Fraction(3, 4), ProbeAction.ABORT, 0.75, 0.75),
        (np.float32(0.75), ProbeAction.ABORT, 0.75, 0.75),
        (True, ProbeAction.ABORT, 1.0, None),
        (np.True_, ProbeAction.ABORT, 1.0, None),
        (False, ProbeAction.CONTINUE, None, None),
        (math.inf, ProbeAction.ABORT, math.inf, math.inf),
    ],
)
def test_answer_becomes_a_signal(
    answer: object, action: ProbeAction, confidence: float | None, score: float | None
) -> None:
    signal = start(make_class(threshold=0.5)).on_activation(make_record(answer))

    assert (signal.action, signal.confidence) == (action, confidence)
    assert signal.metadata == {"score": score, "probe": "first"}


def test_score_is_a_plain_float() -> None:
    signal = start(make_class()).on_activation(make_record(np.float32(0.5)))

    assert type(signal.metadata["score"]) is float


def test_none_says_nothing_and_is_not_counted() -> None:
    instance = start(make_class(threshold=0.5))

    assert instance.on_activation(make_record(None)) is None
    assert instance.on_end(CONTEXT).verdict == {"flagged": False, "max_score": None, "n": 0}


def test_signal_is_passed_on_as_it_is() -> None:
    instance = start(make_class())
    signal = ProbeSignal(ProbeAction.FLAG, {"why": "because"})

    assert instance.on_activation(make_record(signal)) is signal
    assert instance.on_end(CONTEXT).verdict == {"flagged": True, "max_score": None, "n": 1}


def test_score_without_a_threshold_is_only_recorded() -> None:
    instance = start(make_class())
    signal = instance.on_activation(make_record(1e9))

    assert signal.action is ProbeAction.CONTINUE
    assert instance.on_end(CONTEXT).verdict == {"flagged": False, "max_score": 1e9, "n": 1}


def test_score_that_is_not_a_number_reaches_every_threshold() -> None:
    instance = start(make_class(threshold=0.5))
    signal = instance.on_activation(make_record(math.nan))
    instance.on_activation(make_record(0.25))
    result = instance.on_end(CONTEXT)

    assert signal.action is ProbeAction.ABORT
    assert signal.metadata["nan"] is True
    assert result.verdict == {"flagged": True, "max_score": 0.25, "n": 2}
    assert result.metadata == {"nan_count": 1}


@pytest.mark.parametrize("answer", ["0.9", 1j, [0.9], np.array(0.9), np.array([0.9])])
def test_answer_that_is_no_score_is_refused(answer: object) -> None:
    with pytest.raises(ProbingTypeError, match="must return a number, bool, ProbeSignal or None"):
        start(make_class()).on_activation(make_record(answer))


def test_result_keeps_the_whole_history() -> None:
    instance = start(make_class(threshold=0.5))
    signals = [instance.on_activation(make_record(value)) for value in (0.2, 0.9, 0.7)]
    result = instance.on_end(CONTEXT)

    assert result.verdict == {"flagged": True, "max_score": 0.9, "n": 3}
    assert result.signal_history == signals


def test_arguments_of_the_point_replace_those_of_the_decorator() -> None:
    instance = start(make_class(threshold=0.5), threshold=0.9, action=ProbeAction.FLAG)

    assert instance.on_activation(make_record(0.7)).action is ProbeAction.CONTINUE
    assert instance.on_activation(make_record(0.9)).action is ProbeAction.FLAG


def test_threshold_can_be_taken_away() -> None:
    assert start(make_class(threshold=0.5), threshold=None).on_activation(make_record(0.9)).action == "continue"


def scaled(record: ActivationRecord, *, factor: float, shift: float = 0.0) -> float:
    return float(record.tensor[0]) * factor + shift


def open_ended(record: ActivationRecord, **options: float) -> float:
    return sum(options.values())


def test_options_reach_the_function() -> None:
    made = probe("scaled", register=False)(scaled)

    assert start(made, factor=2).on_activation(make_record(0.5)).confidence == 1.0
    assert start(made, factor=2, shift=1).on_activation(make_record(0.5)).confidence == 2.0


def test_function_may_take_any_option() -> None:
    made = probe("open", register=False)(open_ended)

    assert start(made, a=1.0, b=2.0).on_activation(make_record()).confidence == 3.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "needs 'factor'"), ({"factor": 1, "fakter": 2}, "takes no 'fakter'; it takes 'action', 'factor'")],
)
def test_missing_and_unknown_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    made = probe("scaled", register=False)(scaled)

    with pytest.raises(ProbingTypeError, match=message):
        made.spawn("req-1", "guard", **arguments)


@pytest.mark.parametrize("threshold", ["0.5", True, [0.5]])
def test_threshold_must_be_a_number(threshold: object) -> None:
    with pytest.raises(ProbingTypeError, match="`threshold` must be a number or None"):
        make_class(threshold=threshold)
    with pytest.raises(ProbingTypeError, match="`threshold` must be a number or None"):
        make_class().spawn("req-1", "guard", threshold=threshold)


def test_threshold_that_compares_with_nothing_is_refused() -> None:
    with pytest.raises(ProbingValueError, match="comparable"):
        make_class(threshold=math.nan)


@pytest.mark.parametrize("action", ["continue", "zap", None, 1])
def test_action_must_be_abort_or_flag(action: object) -> None:
    with pytest.raises(ProbingValueError, match="`action` must be one of 'abort', 'flag'"):
        make_class(action=action)
    with pytest.raises(ProbingValueError, match="`action` must be one of 'abort', 'flag'"):
        make_class().spawn("req-1", "guard", action=action)


@pytest.mark.parametrize("name", ["", 3, b"x"])
def test_name_must_be_a_string_that_says_something(name: object) -> None:
    with pytest.raises(ProbingValueError, match="non-empty name"):
        probe(name)


def no_record() -> float:
    return 0.0


def two_records(first: object, second: object) -> float:
    return 0.0


def many_records(*records: object) -> float:
    return 0.0


def own_threshold(record: object, *, threshold: float) -> float:
    return threshold


def generates(record: object) -> Any:
    yield 0.0


async def awaits(record: object) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_record, "got none"),
        (two_records, "got first, second"),
        (many_records, r"got \*records"),
        (own_threshold, "a parameter 'threshold'"),
        (generates, "a plain function"),
        (awaits, "a plain function"),
        (object, "decorates a function"),
        (functools.partial(two_records, 1), "decorates a function"),
    ],
)
def test_function_that_takes_no_single_record_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ProbeDefinitionError, match=message):
        probe("wrong", register=False)(function)


def test_base_class_without_a_function_cannot_be_spawned() -> None:
    with pytest.raises(ProbeDefinitionError, match="has no function"):
        FunctionProbe.spawn("req-1", "guard")
