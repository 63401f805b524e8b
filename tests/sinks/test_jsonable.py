"""Anything becomes valid JSON, and nothing passes for what it is not."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from crossing_classes import Access, Colour, Frozen, Number, Pair, Structure, Verdict, Word
from hypothesis import given, settings
from hypothesis import strategies as st

from undercurrent.sinks import to_jsonable
from undercurrent.sinks.jsonable import as_plain

NAN = {"__summary__": "float", "value": "nan"}


def assert_is_json(value: Any) -> None:
    """Holds only what JSON has words for; `json` is told to refuse NaN."""
    text = json.dumps(value, allow_nan=False).encode("utf-8", "strict")
    assert json.loads(text) == value
    assert msgspec.json.decode(msgspec.json.encode(value)) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**100, 2**100),
        ("text", "text"),
        (float("nan"), NAN),
        (float("-inf"), {"__summary__": "float", "value": "-inf"}),
        (Colour.RED, 1),
        (Word.STOP, "stop"),
        (Number.SEVEN, 7),
        (Access.READ, 1),
        (b"abc", {"__summary__": "bytes", "length": 3}),
        (memoryview(bytes(8)).cast("i"), {"__summary__": "bytes", "length": 8}),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), NAN),
        (np.int16(-3), -3),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.datetime64("2026-11-29T10:00:00"), "2026-11-29T10:00:00"),
        (datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC), "2026-11-29T00:00:00+00:00"),
        (datetime.date(2026, 11, 29), "2026-11-29"),
        ((1, [2, {3}], frozenset()), [1, [2, [3]], []]),
        (Verdict("x", [Frozen(1)]), {"label": "x", "scores": [{"key": 1, "later": None}]}),
        (Structure("a", (b"x",)), {"name": "a", "parts": [{"__summary__": "bytes", "length": 1}]}),
        (Pair(1, 2), [1, 2]),
        ({1: "a", None: "b", Word.STOP: "c", (1, 2): "d"}, {"1": "a", "None": "b", "stop": "c", "(1, 2)": "d"}),
        (1 + 2j, "(1+2j)"),
        ("\ud800x", "\\ud800x"),
        ({"\udcff": 1}, {"\\udcff": 1}),
    ],
)
def test_every_kind_has_its_form(value: Any, expected: Any) -> None:
    simplified = to_jsonable(value)
    assert simplified == expected
    assert type(simplified) is type(expected)
    assert_is_json(simplified)


def test_an_array_is_a_summary() -> None:
    summary = to_jsonable(np.zeros((2, 3), "f2"))
    summary.pop("device", None)  # numpy 1 has none
    assert summary == {"__summary__": "tensor", "type": "ndarray", "shape": [2, 3], "dtype": "float16"}


def test_a_torch_scalar_is_a_number_and_a_tensor_a_summary() -> None:
    torch = pytest.importorskip("torch")
    assert to_jsonable(torch.tensor(0.5, dtype=torch.bfloat16)) == 0.5
    assert to_jsonable(torch.zeros(2, 3)) == {
        "__summary__": "tensor",
        "type": "Tensor",
        "shape": [2, 3],
        "dtype": "torch.float32",
        "device": "cpu",
    }


def test_a_container_that_contains_itself_is_marked() -> None:
    endless: dict[str, Any] = {"score": 1}
    endless["self"] = [endless]
    assert to_jsonable(endless) == {"score": 1, "self": [{"__summary__": "cycle", "type": "dict"}]}


def test_the_same_container_twice_is_no_cycle() -> None:
    shared = [1]
    assert to_jsonable([shared, shared]) == [[1], [1]]


def test_what_is_too_deep_is_marked() -> None:
    deep: Any = 0
    for _ in range(10_000):
        deep = [deep]
    assert b"too_deep" in msgspec.json.encode(to_jsonable(deep))


def test_what_is_too_large_is_cut_and_says_so() -> None:
    doubled: Any = [0]
    for _ in range(25):
        doubled = [doubled, doubled]
    assert b"truncated" in msgspec.json.encode(to_jsonable(doubled))
    assert to_jsonable(list(range(200_000)))[-1] == {"__summary__": "truncated", "items_max": 100_000}


def test_an_object_that_raises_costs_only_its_own_place() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("broken")

    assert to_jsonable({"a": Broken(), "b": 1}) == {"a": "<unserializable Broken>", "b": 1}


json_likes = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.sampled_from([Colour.BLUE, Word.STOP, np.float32(1.5), np.float64("inf"), Frozen(1)]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner) | st.tuples(inner),
    max_leaves=20,
)


@given(json_likes)
@settings(deadline=None, max_examples=300)
def test_everything_comes_out_as_valid_json(value: Any) -> None:
    assert_is_json(to_jsonable(value))


@given(json_likes)
@settings(deadline=None, max_examples=300)
def test_the_short_way_agrees_with_the_long_one(value: Any) -> None:
    short = as_plain(value)
    assert short == to_jsonable(value) or short == value
    if isinstance(value, float):
        assert (short is value) == math.isfinite(value)


def test_a_copy_is_made_of_every_container() -> None:
    value = {"inner": {"list": [1]}}
    to_jsonable(value)["inner"]["list"].append(2)
    assert value == {"inner": {"list": [1]}}
