"""Values keep their kind and content on the way to another process, or are refused with their path."""

from __future__ import annotations

import array
import datetime
import struct
import sys
import types
import zoneinfo
from collections import OrderedDict, deque
from typing import Any

import msgspec
import numpy as np
import pytest
from crossing_classes import (
    Access,
    Colour,
    DictVerdict,
    Frozen,
    Number,
    Pair,
    Plain,
    Structure,
    Verdict,
    Word,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import UndercurrentError, ValuePathError
from undercurrent.spec import ExecutionMode, ExtractionPoint, FrozenArgs, ProbeKind, TensorType, parse_position
from undercurrent.workers import value_codes as codes
from undercurrent.workers.references import MalformedValueError
from undercurrent.workers.value_reader import decode_value
from undercurrent.workers.value_writer import encode_numbers, encode_value


def cross(value: Any, *, pickle_allowed: bool = False) -> Any:
    return decode_value(encode_value(value, pickle_allowed=pickle_allowed), pickle_allowed=pickle_allowed)


def assert_same(left: Any, right: Any) -> None:
    """Equal in kind and content at every level; NaN equals NaN."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert len(left) == len(right)
        for (left_key, left_item), (right_key, right_item) in zip(left.items(), right.items(), strict=True):
            assert_same(left_key, right_key)
            assert_same(left_item, right_item)
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for left_item, right_item in zip(left, right, strict=True):
            assert_same(left_item, right_item)
    elif isinstance(left, Structure):
        assert_same((left.name, left.parts), (right.name, right.parts))
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, float):
        assert struct.pack("d", left) == struct.pack("d", right)
    else:
        assert left == right


def outcome_of(data: bytes) -> str:
    """What reading `data` comes to; anything but a value or our error is a failure of the test."""
    try:
        decode_value(data, pickle_allowed=False)
    except MalformedValueError as error:
        return str(error)
    return "a value"


hashables = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=8)
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.sampled_from([*Colour, *Word, *Number, Access.READ | Access.WRITE, ProbeAction.ABORT])
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | st.builds(Pair, inner, inner),
    max_leaves=5,
)
values = st.recursive(
    hashables | st.floats() | st.builds(bytearray, st.binary(max_size=8)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.sets(hashables, max_size=4)
        | st.builds(Structure, st.text(max_size=3), st.tuples(inner))
    ),
    max_leaves=12,
)


@given(values)
@settings(deadline=None, max_examples=300)
def test_every_value_comes_back_as_the_kind_it_was(value: Any) -> None:
    assert_same(cross(value), value)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=500)
def test_nonsense_is_a_value_or_a_clear_error(data: bytes) -> None:
    assert outcome_of(data)


@given(values, st.data())
@settings(deadline=None, max_examples=200)
def test_a_flipped_bit_is_a_value_or_a_clear_error(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode_value(value, pickle_allowed=False))
    position = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[position // 8] ^= 1 << position % 8
    assert outcome_of(bytes(encoded))


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1),
        np.longlong(7),
        np.bool_(True),
        np.str_("end\0"),
        np.bytes_(b"end\0"),
        np.datetime64("2026-11-29T10:00:00.123456789"),
        np.timedelta64(5, "D"),
        np.zeros((), "f4"),
        np.arange(6, dtype=">i2").reshape(2, 3)[:, ::2],
        np.zeros((0, 3), "M8[us]"),
        np.array([("a", 1.5)], dtype=np.dtype([("name", "U4"), ("score", "<f8")], align=True)),
        np.array(["x", "längst"]),
        array.array("l", [1, -2]),
        array.array("d", [0.5]),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}",
)
def test_arrays_and_their_scalars_keep_type_and_dtype(value: Any) -> None:
    restored = cross({"nested": [value]})["nested"][0]
    assert type(restored) is type(value)
    assert getattr(restored, "dtype", None) == getattr(value, "dtype", None)
    np.testing.assert_array_equal(np.asarray(restored), np.asarray(value))


def test_an_array_that_came_back_is_writable_and_its_own() -> None:
    data = encode_value(np.zeros(3), pickle_allowed=False)
    first, second = decode_value(data, pickle_allowed=False), decode_value(data, pickle_allowed=False)
    first[:] = 1
    assert second.tolist() == [0, 0, 0]


def test_a_tensor_keeps_its_dtype_and_loses_its_gradient() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16, requires_grad=True)
    restored = cross({"centre": tensor})["centre"]
    assert restored.dtype is torch.bfloat16
    assert torch.equal(restored, tensor.detach())
    assert not restored.requires_grad


def test_a_view_of_bytes_keeps_format_and_shape() -> None:
    view = memoryview(bytes(range(12))).cast("H", (2, 3))
    restored = cross([view])[0]
    assert (restored.format, restored.shape, restored == view) == ("H", (2, 3), True)


def test_dataclasses_are_rebuilt_without_calling_them() -> None:
    value = Verdict("toxic", [0.5, (1,)])
    born = Verdict.born
    assert cross(value) == value
    assert Verdict.born == born


def test_a_frozen_dataclass_with_an_empty_slot_comes_back_with_it_empty() -> None:
    restored = cross({Frozen((1, 2)): "x"})
    assert restored == {Frozen((1, 2)): "x"}
    assert not hasattr(next(iter(restored)), "later")


def test_a_struct_comes_back_as_its_class() -> None:
    value = Structure("a", (1, {2: "b"}))
    assert cross(value) == value


def test_enum_members_come_back_as_themselves() -> None:
    assert cross([Colour.ONE, Word.STOP, Number.SEVEN, Access(0), Access.READ | Access.WRITE]) == [
        Colour.RED,
        Word.STOP,
        Number.SEVEN,
        Access(0),
        Access.READ | Access.WRITE,
    ]
    assert cross(Colour.BLUE) is Colour.BLUE


def test_the_words_of_the_project_cross_without_pickle() -> None:
    point = ExtractionPoint(
        name="monitor",
        layers=(4, 7),
        tensor_type=TensorType.MLP_OUT,
        position=parse_position("generated[*]"),
        stride=None,
        until=None,
        probe_type="mean",
        probe_kind=ProbeKind.TRAJECTORY,
        execution_mode=ExecutionMode.ASYNC,
        queue_depth=16,
        probe_args=FrozenArgs({"threshold": 0.5, "layers": [1]}),
    )
    signal = ProbeSignal(ProbeAction.FLAG, {"score": np.float32(0.5)}, 0.5)
    result = ProbeResult("req-1", "monitor", {"mean": 0.5}, [signal], {"coverage": {"reasons": []}})
    context = RequestContext("req-1", {"model": "m", "prompt_len": 3}, point)
    assert cross(result) == result
    assert cross(context) == context
    assert type(cross(context).extraction_point_config.probe_args) is FrozenArgs


def test_zones_keep_their_kind() -> None:
    zones = [
        datetime.UTC,
        datetime.timezone(datetime.timedelta(hours=5, microseconds=3)),
        datetime.timezone(datetime.timedelta(hours=-3), "home"),
        zoneinfo.ZoneInfo("Europe/Berlin"),
    ]
    for zone in zones:
        moment = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=1)
        restored = cross(moment)
        assert (restored, restored.fold, restored.tzname()) == (moment, 1, moment.tzname())
        assert type(restored.tzinfo) is type(zone)


def test_big_integers_and_lone_surrogates_are_found_in_plain_containers() -> None:
    value = {"a": [1, 2**64, -(2**200)], "b": {"\udcff": "\ud800x"}, "c": 2**63}
    assert_same(cross(value), value)


@pytest.mark.parametrize(
    "value", [Plain(3), OrderedDict(a=1), deque([1, 2]), DictVerdict(label="x"), range(3), slice(1, 2)]
)
def test_other_classes_are_pickled_where_that_is_allowed(value: Any) -> None:
    restored = cross([value], pickle_allowed=True)[0]
    assert type(restored) is type(value)
    assert restored == value


def test_a_class_of_a_function_travels_by_value() -> None:
    class Local:
        def __init__(self, number: int) -> None:
            self.number = number

    assert cross({"x": Local(5)}, pickle_allowed=True)["x"].number == 5


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (ProbeResult("r", "p", None, [], {"x": [0, 1, 2, Plain(1)]}), "$.metadata['x'][3]"),
        ({"a": ({"b": {Plain}},)}, "$['a'][0]['b']{<class 'crossing_classes.Plain'>}"),
        ([Verdict("x", [1, lambda: 0])], "$[0].scores[1]"),
        ({(1, 2): [DictVerdict()]}, "$[(1, 2)][0]"),
        (Structure("x", (object(),)), "$.parts[0]"),
        (Pair(1, iter(())), "$.right"),
        (np.array([None]), "$"),
        ({"when": datetime.datetime(2026, 1, 1, tzinfo=type("Zone", (datetime.tzinfo,), {})())}, "$['when']"),
    ],
)
def test_what_cannot_cross_is_named_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(ValuePathError) as caught:
        encode_value(value, pickle_allowed=False)
    assert f"the value at {path} cannot cross" in str(caught.value)
    assert isinstance(caught.value, UndercurrentError)
    assert isinstance(caught.value, TypeError)


def test_what_pickle_refuses_is_named_by_its_path_too() -> None:
    with pytest.raises(ValuePathError, match=r"\$\['lock'\]\[1\]"):
        encode_value({"lock": [1, sys._getframe()]}, pickle_allowed=True)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append([endless])
    with pytest.raises(ValuePathError, match="contains itself"):
        encode_value(endless, pickle_allowed=True)


def test_a_value_of_too_many_items_is_refused_before_memory_ends() -> None:
    doubled: list[Any] = [0.5]
    for _ in range(60):
        doubled = [doubled, doubled]
    with pytest.raises(ValuePathError, match="items"):
        encode_value(doubled, pickle_allowed=False)


def test_a_value_of_too_many_bytes_is_refused() -> None:
    with pytest.raises(ValuePathError, match="the limit is"):
        encode_value(bytes(codes.VALUE_BYTES_MAX), pickle_allowed=False)


def test_pickle_is_not_opened_where_it_is_not_allowed() -> None:
    data = encode_value([Plain(1)], pickle_allowed=True)
    with pytest.raises(MalformedValueError, match="pickle"):
        decode_value(data, pickle_allowed=False)


def extension(code: int, body: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(body)))


@pytest.mark.parametrize(
    "data",
    [
        extension(99, None),
        extension(codes.TUPLE, 5),
        extension(codes.SET, [[1]]),
        extension(codes.DICT, [1]),
        extension(codes.ENUM, ["crossing_classes", "Colour", ["GREEN"]]),
        extension(codes.ENUM, ["crossing_classes", "Plain", ["RED"]]),
        extension(codes.ENUM, ["crossing_classes", "Colour", 1]),
        extension(codes.DATACLASS, ["crossing_classes", "Verdict", {"unknown": 1}]),
        extension(codes.DATACLASS, ["crossing_classes", "Verdict", 5]),
        extension(codes.DATACLASS, ["crossing_classes", "DictVerdict", {}]),
        extension(codes.DATACLASS, ["os", "environ", {}]),
        extension(codes.DATACLASS, [5, [], {}]),
        extension(codes.STRUCT, ["crossing_classes", "Structure", {"name": "x", "more": 1}]),
        extension(codes.STRUCT, ["crossing_classes", "Verdict", {}]),
        extension(codes.NAMED_TUPLE, ["crossing_classes", "Pair", [1]]),
        extension(codes.DATETIME, [[2026, 13, 1, 0, 0, 0, 0], 0, None]),
        extension(codes.DATETIME, [[2026, 1, 1, 0, 0, 0, 0], 0, "../../etc/passwd"]),
        extension(codes.ARRAY, ["O", [1], b"12345678"]),
        extension(codes.ARRAY, ["f4", [2], b"1234"]),
        extension(codes.ARRAY, ["f4", [-1, -1], b"1234"]),
        extension(codes.ARRAY, ["V0", [2**40], b""]),
        extension(codes.MEMORYVIEW, ["T{i}", [1], b"1234"]),
        extension(codes.TENSOR, ["save", [1], b"1234"]),
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"",
    ],
)
def test_a_message_nobody_of_ours_writes_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedValueError):
        decode_value(data, pickle_allowed=False)


def test_extensions_nested_without_end_are_malformed() -> None:
    data = b"\x90"
    for _ in range(2_000):
        data = msgspec.msgpack.encode(msgspec.msgpack.Ext(codes.TUPLE, data))
    with pytest.raises(MalformedValueError, match="nested"):
        decode_value(data, pickle_allowed=False)


def test_a_message_cannot_make_this_process_import_a_module() -> None:
    assert "this" not in sys.modules
    with pytest.raises(MalformedValueError, match="not imported here"):
        decode_value(extension(codes.DATACLASS, ["this", "Zen", {}]), pickle_allowed=False)
    assert "this" not in sys.modules


def test_a_message_cannot_make_a_module_look_for_a_name() -> None:
    module = types.ModuleType("lazy_module_of_a_test")
    module.__getattr__ = lambda name: pytest.fail(f"asked for {name}")  # type: ignore[method-assign]
    sys.modules[module.__name__] = module
    try:
        with pytest.raises(MalformedValueError, match="does not exist"):
            decode_value(extension(codes.DATACLASS, [module.__name__, "Lazy", {}]), pickle_allowed=False)
    finally:
        del sys.modules[module.__name__]


@given(st.recursive(st.integers() | st.floats(allow_nan=False) | st.booleans(), lambda x: st.lists(x) | st.tuples(x)))
def test_nested_numbers_keep_lists_and_tuples_apart(value: Any) -> None:
    assert_same(decode_value(encode_numbers(value), pickle_allowed=False), value)


@pytest.mark.parametrize("value", [["a"], [1, None], ({},), [{1}], [Number.SEVEN], [[b""]]])
def test_only_numbers_pass_for_numbers(value: Any) -> None:
    with pytest.raises(ValuePathError, match="no number"):
        encode_numbers(value)
