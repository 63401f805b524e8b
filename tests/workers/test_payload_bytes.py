"""Tensors as bytes that the ring does not read itself: they come out equal in type and value, or are refused."""

from __future__ import annotations

import array
import logging
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from undercurrent.errors import ProbingError, UnsupportedPayloadError
from undercurrent.ipc.layout import HEADER_BYTES
from undercurrent.workers import kinds, tensors
from undercurrent.workers.frames import HEADER_DTYPE, OPAQUE_KIND_MIN, describe, encode_opaque, rebuild
from undercurrent.workers.references import MalformedValueError


def header_of(kind: int, length: int, **fields: Any) -> np.void:
    header = np.zeros(1, HEADER_DTYPE)
    header["kind"], header["length"] = kind, length
    for name, value in fields.items():
        header[name] = value
    return header[0]


def through_bytes(tensor: Any) -> Any:
    kind, data = encode_opaque(tensor)
    assert kind >= OPAQUE_KIND_MIN
    return rebuild(header_of(kind, len(data)), bytearray(data))


def outcome_of(header: Any, payload: bytes) -> str:
    """What rebuilding comes to; anything but a tensor or our error is a failure of the test."""
    try:
        rebuild(header, bytearray(payload))
    except MalformedValueError as error:
        return str(error)
    return "a tensor"


def assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for left_item, right_item in zip(left, right, strict=True):
            assert_same(left_item, right_item)
    else:
        assert left == right or left != left


dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.array_dtypes(hnp.scalar_dtypes(), max_size=3, allow_subarrays=True),
    st.sampled_from([np.dtype("g"), np.dtype("G"), np.dtype(">f4")]),
)
numbers = st.recursive(
    st.integers() | st.integers(-(2**80), 2**80) | st.floats() | st.booleans() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=5) | st.lists(inner, max_size=5).map(tuple),
    max_leaves=20,
)


def test_the_header_is_read_by_the_dtype_of_the_ring() -> None:
    assert HEADER_DTYPE.itemsize == HEADER_BYTES


@given(hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=3)), st.booleans())
@settings(deadline=None, max_examples=200)
def test_numpy_arrays_of_every_dtype_come_out_equal(original: np.ndarray[Any, Any], is_transposed: bool) -> None:
    tensor = original.T if is_transposed else original
    restored = through_bytes(tensor)
    assert (type(restored), restored.dtype, restored.shape) == (np.ndarray, tensor.dtype, tensor.shape)
    assert restored.tobytes() == tensor.tobytes()
    assert restored.flags.writeable
    assert not np.shares_memory(restored, tensor)


@given(hnp.arrays(dtypes, 1))
@settings(deadline=None, max_examples=100)
def test_numpy_scalars_come_out_equal(holder: np.ndarray[Any, Any]) -> None:
    scalar = holder[0]
    if not isinstance(scalar, np.generic):
        return  # an item of a subarray dtype is an array
    restored = through_bytes(scalar)
    assert (type(restored), restored.dtype) == (type(scalar), scalar.dtype)
    if scalar.dtype.char in "gG":
        np.testing.assert_array_equal(restored, scalar)  # its bytes hold padding, which may be anything
    else:
        assert np.asarray(restored).tobytes() == np.asarray(scalar).tobytes()


@given(st.lists(numbers, max_size=6) | st.lists(numbers, max_size=6).map(tuple))
@settings(deadline=None, max_examples=200)
def test_lists_and_tuples_of_numbers_come_out_equal(tensor: Any) -> None:
    assert_same(through_bytes(tensor), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        [0.1, 0.2, math.inf],
        (0.1,),
        [1, -(2**63)],
        (1, 2),
        [2**64, 1],
        [1, 2.0, True],
        [],
        (),
        [[0.5, 1.5], [2.5]],
        ([1], (2, [3.0])),
        [np.float32(0.5), np.int64(3)],
        0.5,
        7,
    ],
)
def test_numbers_keep_their_kind(tensor: Any) -> None:
    kind, data = describe(tensor)
    assert kind >= OPAQUE_KIND_MIN
    assert_same(rebuild(header_of(kind, len(data)), bytearray(data)), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        memoryview(b"abcdef"),
        memoryview(bytearray(b"abcdef"))[::2],
        memoryview(array.array("d", [1, 2])),
        memoryview(bytes(24)).cast("i", (2, 3)),
        memoryview(b"xyz").cast("c"),
        memoryview(np.zeros((2, 0, 3), "i2")),
        memoryview(np.float32(2.5)),
    ],
    ids=lambda view: f"{view.format}{view.shape}",
)
def test_memoryviews_come_out_equal(tensor: memoryview) -> None:
    restored = through_bytes(tensor)
    assert (type(restored), restored.format, restored.shape) == (memoryview, tensor.format, tensor.shape)
    assert restored == tensor
    assert not restored.readonly


@pytest.mark.parametrize("typecode", "bBhHiIlLqQfdu")
def test_typed_arrays_keep_their_type_code(typecode: str) -> None:
    tensor = array.array(typecode, "ab" if typecode == "u" else [1, 2])
    restored = through_bytes(tensor)
    assert (restored, restored.typecode) == (tensor, typecode)


def test_a_record_array_stays_one() -> None:
    tensor = np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    restored = through_bytes(tensor)
    assert type(restored) is np.recarray
    assert restored.b.tolist() == [2.0]


@pytest.mark.parametrize(
    "tensor",
    [
        "text",
        None,
        {"a": 1},
        object(),
        range(3),
        [1, "a"],
        [[1], None],
        np.array([None]),
        np.ma.masked_array([1.0], mask=[True]),
        np.array("a", dtype=object),
        memoryview(np.zeros(1, [("a", "i4"), ("b", "i2")])),
    ],
    ids=lambda tensor: type(tensor).__name__,
)
def test_anything_else_is_refused_with_its_type(tensor: Any) -> None:
    with pytest.raises(UnsupportedPayloadError) as caught:
        describe(tensor)[1] if not isinstance(tensor, np.ndarray) else encode_opaque(tensor)
    assert isinstance(caught.value, ProbingError)
    assert isinstance(caught.value, TypeError)


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = [1.0]
    endless.append(endless)
    with pytest.raises(UnsupportedPayloadError, match="contains itself"):
        describe(endless)


def test_describing_an_array_neither_copies_nor_imports_torch() -> None:
    program = (
        "import sys, numpy\n"
        "from undercurrent.workers.frames import describe, encode_opaque\n"
        "tensor = numpy.zeros(4)\n"
        "assert describe(tensor)[1] is tensor\n"
        "encode_opaque(tensor), describe([1.0]), describe(b'x')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (kinds.PACKED_ARRAY, b"\x93"),
        (kinds.PACKED_TENSOR, b"nonsense"),
        (kinds.PACKED_SCALAR, b""),
        (kinds.PACKED_SCALAR, b"d123"),
        (kinds.PACKED_VIEW, b"\x93\xa1B\x91\x05\xc4\x01x"),
        (kinds.PACKED_TYPED_ARRAY, b"d123"),
        (kinds.FLOAT_LIST, b"123"),
        (kinds.NUMBERS, b"\xc1"),
        (200, b"anything"),
        (0, b"anything"),
        (kinds.NUMPY, b"1234"),
    ],
)
def test_bytes_that_are_no_tensor_are_malformed(kind: int, data: bytes) -> None:
    with pytest.raises(MalformedValueError):
        rebuild(header_of(kind, len(data)), bytearray(data))


@given(st.binary(max_size=60), st.sampled_from(sorted({*range(64, 76)} - {kinds.PACKED_TENSOR})))
@settings(deadline=None, max_examples=300)
def test_random_bytes_are_a_tensor_or_malformed(data: bytes, kind: int) -> None:
    assert outcome_of(header_of(kind, len(data)), data)


@given(st.binary(min_size=24, max_size=24), st.binary(max_size=40))
@settings(deadline=None, max_examples=500)
def test_random_headers_are_a_tensor_or_malformed(form: bytes, payload: bytes) -> None:
    header = bytearray(HEADER_BYTES)
    header[16:40] = form
    assert outcome_of(bytes(header), payload)


torch_dtypes = [*tensors.TORCH_DTYPES.values(), "float8_e4m3fn", "complex32"]


@pytest.mark.parametrize("name", dict.fromkeys(torch_dtypes))
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 1, 2, 1, 2)])
def test_torch_tensors_of_every_dtype_come_out_equal(name: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    count = math.prod(shape) * dtype.itemsize
    # Bytes of 0 and 1 are items of every dtype, bool among them, and none of them is NaN.
    tensor = (torch.arange(count) % 2).to(torch.uint8).view(dtype).reshape(shape)
    restored = through_bytes(tensor)
    assert (type(restored), restored.dtype, restored.shape) == (torch.Tensor, dtype, tensor.shape)
    assert torch.equal(restored.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    assert restored.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or count == 0


def awkward_tensors() -> list[Any]:
    torch = pytest.importorskip("torch")
    grid = torch.arange(12.0).reshape(3, 4)
    with torch.inference_mode():
        inferred = torch.ones(2)
    return [
        grid.t(),
        grid[:, 1],
        grid[::2, ::3],
        torch.ones(1).expand(3, 2),
        grid.clone().requires_grad_(),
        torch.nn.Parameter(grid),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
        torch.tensor([1 + 2j]).conj().imag,
        inferred,
        torch._efficientzerotensor(2),
    ]


@pytest.mark.parametrize("index", range(11))
def test_awkward_torch_tensors_come_out_with_their_values(index: int) -> None:
    torch = pytest.importorskip("torch")
    tensor = awkward_tensors()[index]
    restored = through_bytes(tensor)
    assert type(restored) is torch.Tensor
    assert torch.equal(restored, tensor.detach())
    restored.fill_(7)
    assert not torch.equal(restored, tensor.detach())


def test_tensors_without_plain_memory_are_refused() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(UnsupportedPayloadError, match="torch"):
            encode_opaque(tensor)


def test_a_padded_dtype_is_not_taken_for_the_one_it_is_padded_to() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(2, dtype=torch.uint8).view(torch.uint4)
    kind, _ = describe(tensor)
    assert kind == kinds.PACKED_TENSOR
    assert through_bytes(tensor).dtype is torch.uint4


def test_a_device_tensor_is_copied_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "undercurrent.workers"):
        tensors._warn_of_device("test-device")
        tensors._warn_of_device("test-device")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    tensors._warned_devices.discard("test-device")
