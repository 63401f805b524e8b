"""What crosses in an answer cell comes back as it was; nonsense is an error of ours."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercurrent.core import ProbeAction, ProbeSignal
from undercurrent.errors import ValuePathError
from undercurrent.ipc.layout import ANSWER_BYTES_MAX
from undercurrent.workers.answers import (
    ERROR,
    NOTHING,
    PLAIN,
    VALUE,
    decode_answer,
    decode_error,
    encode_answer,
    encode_error,
)
from undercurrent.workers.frames import MalformedValueError

PLAIN_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


def is_same(left: Any, right: Any) -> bool:
    """Equal in type and value; NaN is equal to itself."""
    if type(left) is not type(right):
        return False
    return bool(left == right) or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


@given(
    st.sampled_from(ProbeAction),
    st.dictionaries(st.text(), PLAIN_VALUES),
    st.none() | st.integers() | st.floats(),
    st.floats(allow_nan=False),
)
def test_signals_of_plain_values_come_back_as_they_were(
    action: ProbeAction, metadata: dict[str, Any], confidence: Any, timestamp: float
) -> None:
    signal = ProbeSignal(action, metadata, confidence, timestamp)

    found = decode_answer(*encode_answer(signal))

    assert found.action is action
    assert is_same(found.confidence, confidence)
    assert found.timestamp == timestamp
    assert list(found.metadata) == list(metadata)
    assert all(is_same(found.metadata[name], value) for name, value in metadata.items())


@pytest.mark.parametrize(
    "metadata",
    [
        {"at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)},
        {"top": ("a", 1)},
        {"action": ProbeAction.FLAG},
        {1: "number as a name"},
        {"big": 1 << 80},
        {"score": np.float64(0.5)},
    ],
)
def test_other_values_cross_too(metadata: dict[Any, Any]) -> None:
    kind, data = encode_answer(ProbeSignal(ProbeAction.FLAG, metadata))

    found = decode_answer(kind, data)

    assert kind == VALUE
    assert found.metadata == metadata
    assert [type(value) for value in found.metadata.values()] == [type(value) for value in metadata.values()]


def test_nothing_and_plain_signals_are_short() -> None:
    assert encode_answer(None) == (NOTHING, b"")
    kind, data = encode_answer(ProbeSignal(ProbeAction.ABORT, {"score": 0.93, "probe": "toxicity"}, 0.93))
    assert kind == PLAIN
    assert len(data) < ANSWER_BYTES_MAX / 8


def test_what_cannot_cross_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValuePathError):
        encode_answer(ProbeSignal(metadata={"lock": __import__("threading").Lock()}))


@given(st.integers(0, 2**32 - 1), st.binary(max_size=64))
def test_nonsense_is_a_value_or_an_error_of_ours(kind: int, data: bytes) -> None:
    if kind == VALUE:
        kind = PLAIN  # pickled values come from our own guard only, and may be anything
    try:
        decode_answer(kind, data)
    except MalformedValueError:
        return
    assert kind in (NOTHING, PLAIN)


@given(st.binary(max_size=64))
def test_a_nonsense_error_is_described(data: bytes) -> None:
    name, message = decode_error(data)
    assert isinstance(name, str)
    assert isinstance(message, str)


def test_an_error_fits_every_cell_however_long_it_is() -> None:
    error = ValueError("\N{SNOWMAN}" * 10_000)
    data = encode_error(error)

    assert len(data) <= ANSWER_BYTES_MAX
    assert decode_error(data)[0] == "ValueError"
    with pytest.raises(MalformedValueError):
        decode_answer(ERROR, data)
