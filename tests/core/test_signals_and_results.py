"""Signals and results: published order and defaults, and actions that are actions."""

from __future__ import annotations

import dataclasses
import pickle
import time

import pytest

from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import ProbingValueError


def test_signal_says_continue_unless_told_otherwise() -> None:
    before = time.time()
    signal = ProbeSignal()

    assert (signal.action, signal.metadata, signal.confidence) == (ProbeAction.CONTINUE, {}, None)
    assert before <= signal.timestamp <= time.time()


def test_signal_takes_its_fields_by_position() -> None:
    signal = ProbeSignal(ProbeAction.FLAG, {"score": 0.9}, 0.9, 12.5)

    assert (signal.metadata, signal.confidence, signal.timestamp) == ({"score": 0.9}, 0.9, 12.5)


def test_action_given_as_a_word_is_an_action() -> None:
    assert ProbeSignal("abort").action is ProbeAction.ABORT  # type: ignore[arg-type]


@pytest.mark.parametrize("action", ["abrt", None, 1])
def test_unknown_action_is_refused(action: object) -> None:
    with pytest.raises(ProbingValueError, match=r"`ProbeSignal\.action` must be one of"):
        ProbeSignal(action)  # type: ignore[arg-type]


def test_nearest_action_is_suggested() -> None:
    with pytest.raises(ProbingValueError, match="did you mean 'abort'"):
        ProbeSignal("abrt")  # type: ignore[arg-type]


def test_action_equals_its_word_and_prints_as_a_member() -> None:
    assert ProbeAction.ABORT == "abort"
    assert str(ProbeAction.ABORT) == "ProbeAction.ABORT"
    assert repr(ProbeAction.ABORT) == "<ProbeAction.ABORT: 'abort'>"


def test_signals_do_not_share_their_metadata() -> None:
    ProbeSignal().metadata["a"] = 1

    assert ProbeSignal().metadata == {}


def test_result_has_room_for_history_and_metadata() -> None:
    result = ProbeResult("req-1", "guard", {"flagged": False})

    assert (result.signal_history, result.metadata) == ([], {})
    result.metadata["coverage"] = {}
    assert ProbeResult("req-1", "guard", None).metadata == {}


def test_context_is_frozen() -> None:
    context = RequestContext("req-1", {"prompt_len": 3}, None)

    with pytest.raises(dataclasses.FrozenInstanceError):
        context.request_id = "req-2"  # type: ignore[misc]


@pytest.mark.parametrize(
    "value",
    [
        ProbeSignal(ProbeAction.FLAG, {"score": 0.9}),
        ProbeResult("req-1", "guard", {"flagged": True}, [ProbeSignal()]),
        RequestContext("req-1", {"prompt_len": 3}, None),
    ],
)
def test_value_survives_pickling(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
