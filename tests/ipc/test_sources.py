"""What `publish` accepts as bytes, and what it leaves to the caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ipc_rig import headers_of, rig

from undercurrent.ipc import layout, register_arrays

SUPPORTED = [
    (np.arange(6, dtype=np.float32).reshape(2, 3), (2, 32, (2, 3))),
    (np.ones(3, np.float16), (2, 16, (3,))),
    (np.ones(3, np.float64), (2, 64, (3,))),
    (np.ones(3, np.int8), (0, 8, (3,))),
    (np.ones(3, np.int64), (0, 64, (3,))),
    (np.ones(3, np.uint16), (1, 16, (3,))),
    (np.ones(3, np.bool_), (6, 8, (3,))),
    (np.ones(3, np.complex64), (5, 64, (3,))),
    (np.ones(3, np.complex128), (5, 128, (3,))),
    (np.array(5.0), (2, 64, ())),
    (np.ones((1, 2, 1, 2), np.int32), (0, 32, (1, 2, 1, 2))),
    (np.ones((0, 3), np.int32), (0, 32, (0, 3))),
    (b"abc", (1, 8, (3,))),
    (bytearray(b"abc"), (1, 8, (3,))),
    (memoryview(b"abcdefgh").cast("q"), (0, 64, (1,))),
    (np.ones((4, 4), np.float32)[1:3], (2, 32, (2, 4))),
]

UNSUPPORTED = [
    np.ones((3, 4)).T,
    np.ones(8)[::2],
    np.ones(3, ">f4"),
    np.zeros(2, [("a", "i4")]),
    np.array(["a"]),
    np.array(["2020"], "M8[s]"),
    np.array([None]),
    np.ones(3, np.longdouble),
    np.ones((1, 1, 1, 1, 1)),
    memoryview(b"abcd")[::2],
    [1, 2],
    "text",
    7,
    None,
    object(),
    int,
]


def described(source: object) -> tuple[int, int, tuple[int, ...]]:
    """Publishes one payload and returns what the header says of it."""
    with rig() as both:
        assert both.ring.publish(source, 0, 0, 0, 0, 0.0) == layout.OK
        batch = both.reader.take(1)
        assert batch is not None
        (header,) = headers_of(batch)
        shape = tuple(header[f"shape{i}"] for i in range(header["ndim"]))
        assert bytes(batch.copy(0)) == raw(source)
        return header["dtype_code"], header["dtype_bits"], shape


def raw(source: Any) -> bytes:
    """The bytes of a payload, another way."""
    if hasattr(source, "untyped_storage"):
        import torch

        return bytes(source.contiguous().reshape(-1).view(torch.uint8).tolist()) if source.numel() else b""
    return memoryview(source).tobytes()


@pytest.mark.parametrize(("source", "expected"), SUPPORTED, ids=lambda value: str(value)[:20])
def test_buffers_of_native_types_cross_with_type_and_shape(source: object, expected: tuple[object, ...]) -> None:
    assert described(source) == expected


@pytest.mark.parametrize("source", UNSUPPORTED, ids=lambda value: str(type(value)))
def test_other_objects_are_left_to_the_caller_uncounted(source: object) -> None:
    with rig() as both:
        assert both.ring.publish(source, 0, 0, 0, 0, 0.0) == layout.UNSUPPORTED
        assert both.ring.statistics().produced == 0


def test_opaque_bytes_have_a_code_of_their_own() -> None:
    with rig() as both:
        assert both.ring.publish_opaque(b"pickle?", 64, 1, 2, 0, 0.0) == layout.OK
        batch = both.reader.take(1)
        assert batch is not None
        (header,) = headers_of(batch)
        assert (header["dtype_code"], header["shape0"], header["length"]) == (layout.DTYPE_OPAQUE, 7, 7)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1535, 1536, 1537, 1599, 1600, 8191, 8192, 100_001])
def test_bytes_are_whole_at_every_edge_of_the_copy(size: int) -> None:
    payload = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with rig(depth=2) as both:
        for _ in range(5):  # the first goes to a fresh slot, later ones to one that came back from the consumer
            assert both.ring.publish(payload, 0, 0, 0, 0, 0.0) == layout.OK
            assert both.take() == [payload.tobytes()]
        for _ in range(8):  # and to ones that were dropped unread
            both.ring.publish(payload, 0, 0, 0, 0, 0.0)
        assert both.take() == [payload.tobytes()] * 2


@pytest.fixture
def registered() -> Iterator[None]:
    """Arrays of float32 and bool are read in place; afterwards, arrays of all usual types, as elsewhere."""
    assert register_arrays([np.zeros(2, np.float32), np.zeros(2, np.bool_)])
    yield
    assert register_arrays([np.zeros(2, code) for code in "?bhilBHILefdFD"])


class Subclass(np.ndarray[Any, Any]):
    """More than an array."""


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("source", [source for source, _ in SUPPORTED] + [np.ones(4, np.float32).view(Subclass)])
def test_payload_read_in_place_is_what_the_buffer_protocol_says(source: Any) -> None:
    with rig() as both:
        for _ in range(2):  # the second finds a slot in hand
            assert both.ring.publish(source, 0, 0, 0, 0, 0.0) == layout.OK
        batch = both.reader.take(2)
        assert batch is not None
        first, second = headers_of(batch)
        names = ("length", "dtype_code", "dtype_bits", "ndim", "shape0", "shape1", "shape2", "shape3")
        assert [first[name] for name in names] == [second[name] for name in names]
        assert bytes(batch.copy(0)) == bytes(batch.copy(1)) == raw(source)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "source",
    [
        np.ones((3, 4), np.float32).T,
        np.ones(8, np.float32)[::2],
        np.ones(3, ">f4"),
        np.ones((1, 1, 1, 1, 1), np.float32),
        np.broadcast_to(np.ones(1, np.float32), (4,)),
    ],
)
def test_array_that_cannot_be_read_in_place_is_left_to_the_caller(source: object) -> None:
    with rig() as both:
        both.publish(b"x" * 256)
        assert both.ring.publish(source, 0, 0, 0, 0, 0.0) == layout.UNSUPPORTED


def test_dtype_of_the_same_name_and_another_object_goes_through_the_protocol() -> None:
    assert described(np.ones(3, np.dtype(np.float32, metadata={"unit": "V"}))) == (2, 32, (3,))


def test_only_arrays_that_look_as_they_say_are_registered() -> None:
    for samples in ([b"not an array"], [bytearray(8)], [memoryview(b"12345678")], [np.ones((2, 2)).T]):
        assert not register_arrays(samples)
    for wrong in ([], (np.ones(1),), [np.ones(1)] * 17):
        with pytest.raises(TypeError, match="1 to 16 arrays"):
            register_arrays(wrong)  # type: ignore[arg-type]
    assert register_arrays([np.zeros(2, code) for code in "?bhilBHILefdFD"])


def test_misaligned_source_is_copied_whole() -> None:
    payload = np.arange(5000, dtype=np.uint8)[3:]
    assert described(payload) == (1, 8, (4997,))


def test_torch_tensors_cross_through_the_exchange_table() -> None:
    torch = pytest.importorskip("torch")
    for dtype, code, bits in (
        (torch.bfloat16, 4, 16),
        (torch.float32, 2, 32),
        (torch.int64, 0, 64),
        (torch.bool, 6, 8),
    ):
        tensor = torch.arange(6).to(dtype).reshape(2, 3)
        assert described(tensor) == (code, bits, (2, 3))
    assert described(torch.tensor(2.5)) == (2, 32, ())
    assert described(torch.ones(0, 2)) == (2, 32, (0, 2))
    assert described(torch.arange(10)[3:7]) == (0, 64, (4,))
    assert described(torch.zeros(4, dtype=torch.float8_e4m3fn))[1:] == (8, (4,))
    assert described(torch.ones(3, 1).t()) == (2, 32, (1, 3)), "a stride over one element says nothing"


def test_torch_tensors_whose_bytes_are_not_their_value_are_left_to_the_caller() -> None:
    torch = pytest.importorskip("torch")
    complex_one = torch.ones(1, dtype=torch.complex64)
    sources = [
        torch.ones(3, 4).t(),
        torch.ones(3).expand(2, 3),
        complex_one.conj(),
        complex_one.conj().imag,
        torch.ones(3).to_sparse(),
        torch.ones(3, device="meta"),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(1, 1, 1, 1, 1),
    ]
    with rig() as both:
        for source in sources:
            assert both.ring.publish(source, 0, 0, 0, 0, 0.0) == layout.UNSUPPORTED, source
        assert both.ring.statistics().produced == 0


def test_exchange_table_of_many_types_is_not_mixed_up() -> None:
    torch = pytest.importorskip("torch")
    kinds = [type(f"Kind{i}", (), {}) for i in range(20)]
    with rig() as both:
        for kind in kinds:
            assert both.ring.publish(kind(), 0, 0, 0, 0, 0.0) == layout.UNSUPPORTED
            assert both.ring.publish(torch.ones(2), 0, 0, 0, 0, 0.0) == layout.OK


def test_an_object_that_lies_about_its_exchange_table_is_left_to_the_caller() -> None:
    class Liar:
        __dlpack_c_exchange_api__ = 7

    with rig() as both:
        assert both.ring.publish(Liar(), 0, 0, 0, 0, 0.0) == layout.UNSUPPORTED
