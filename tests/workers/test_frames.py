"""Tensors through a real ring: what a probe gets is equal to what was routed, its own, and writable."""

from __future__ import annotations

import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from undercurrent.errors import ProbingValueError, UndercurrentError
from undercurrent.ipc import Batch, ConsumerLane, ConsumerRing, MemoryBudget, ProducerLane, ProducerRing
from undercurrent.ipc.layout import OK, UNSUPPORTED, OverflowCode
from undercurrent.workers.frames import (
    HEADER_DTYPE,
    OPAQUE_KIND_MIN,
    describe,
    encode_opaque,
    rebuild,
    rebuild_view,
    stack,
)

QUEUE_DEPTH = 16


class Lane:
    """Both ends of a lane with one ring, in one process."""

    def __init__(self) -> None:
        self.producer_lane = ProducerLane(MemoryBudget(256 << 20))
        self.ring: ProducerRing = self.producer_lane.open_ring(
            queue_depth=QUEUE_DEPTH, policy=OverflowCode.DROP_NEWEST, generation=1
        )
        self.consumer_lane = ConsumerLane(self.producer_lane.control_fd, self.producer_lane.payload_fd)
        self.reader: ConsumerRing = self.consumer_lane.attach_ring(
            self.ring.ring_index, queue_depth=QUEUE_DEPTH, policy=OverflowCode.DROP_NEWEST, generation=1
        )

    def publish(self, tensor: Any) -> None:
        """Publishes as a binding does."""
        kind, source = describe(tensor)
        if kind < OPAQUE_KIND_MIN:
            answer = self.ring.publish(source, kind, 4, 10, 1, 0.5)
            if answer == UNSUPPORTED:
                kind, source = encode_opaque(tensor)
        if kind >= OPAQUE_KIND_MIN:
            answer = self.ring.publish_opaque(source, kind, 4, 10, 1, 0.5)
        assert answer == OK

    def take(self) -> tuple[np.ndarray[Any, Any], Batch]:
        batch = self.reader.take(QUEUE_DEPTH)
        assert batch is not None
        return np.frombuffer(batch.headers, HEADER_DTYPE), batch

    def cross(self, tensor: Any) -> Any:
        self.publish(tensor)
        headers, batch = self.take()
        restored = rebuild(headers[0], batch.copy(0))
        self.reader.finish(batch)
        return restored

    def close(self) -> None:
        self.ring.close()
        self.reader.detach()
        self.consumer_lane.close()
        self.producer_lane.close()


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    lane = Lane()
    yield lane
    lane.close()


def as_bytes(tensor: Any) -> bytes:
    torch = pytest.importorskip("torch")
    if isinstance(tensor, torch.Tensor):
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return np.asarray(tensor).tobytes()


arrays = hnp.arrays(
    st.one_of(hnp.scalar_dtypes(), hnp.unicode_string_dtypes(), hnp.array_dtypes(hnp.scalar_dtypes(), max_size=2)),
    hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4),
)


# One lane serves all examples: each leaves its ring empty.
shared = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(tensor=arrays)
@shared
def test_arrays_come_through_a_ring_equal_and_owned(lane: Lane, tensor: np.ndarray[Any, Any]) -> None:
    before = tensor.tobytes()
    restored = lane.cross(tensor)
    assert (type(restored), restored.dtype, restored.shape) == (np.ndarray, tensor.dtype, tensor.shape)
    assert restored.tobytes() == before
    restored.reshape(-1).view(np.uint8)[:] = 255 if restored.dtype.itemsize else 0
    assert tensor.tobytes() == before


@given(tensor=st.lists(st.floats() | st.integers() | st.booleans() | st.lists(st.floats(), max_size=3), max_size=6))
@shared
def test_lists_come_through_a_ring_as_lists(lane: Lane, tensor: list[Any]) -> None:
    assert repr(lane.cross(tensor)) == repr(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        b"bytes",
        b"",
        bytearray(b"\0\1"),
        array.array("l", [1, -1]),
        array.array("q", [1]),
        array.array("f", []),
        np.float32(0.1),
        np.float16("nan"),
        np.longlong(4),
        np.ulonglong(2**64 - 1),
        np.bool_(False),
        np.complex64(1 + 2j),
        np.longdouble("0.1"),
        np.datetime64("2026-11-29", "D"),
        np.str_("x"),
        (0.5, 1.5),
        (),
        [2**100],
        ([1, 2.5], True),
    ],
    ids=lambda tensor: f"{type(tensor).__name__}-{str(tensor)[:12]}",
)
def test_every_kind_comes_through_a_ring(lane: Lane, tensor: Any) -> None:
    restored = lane.cross(tensor)
    assert type(restored) is type(tensor)
    assert getattr(restored, "typecode", None) == getattr(tensor, "typecode", None)
    assert restored == tensor or tensor != tensor


@pytest.mark.parametrize(
    "tensor",
    [
        memoryview(b"abc"),
        memoryview(array.array("d", [0.5, 1.5])),
        memoryview(bytes(12)).cast("H", (2, 3)),
        memoryview(b"abcdef")[::-2],
        memoryview(b"xyz").cast("c"),
    ],
    ids=lambda view: f"{view.format}{view.shape}",
)
def test_views_come_through_a_ring(lane: Lane, tensor: memoryview) -> None:
    restored = lane.cross(tensor)
    assert (type(restored), restored.format, restored.shape) == (memoryview, tensor.format, tensor.shape)
    assert restored == tensor


TORCH_DTYPE_NAMES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "bool",
    "complex32",
    "complex64",
    "complex128",
    "uint4",
]


@pytest.mark.parametrize("name", TORCH_DTYPE_NAMES)
@pytest.mark.parametrize("shape", [(), (5,), (0, 2), (2, 3), (2, 1, 2, 1, 2)], ids=str)
def test_torch_tensors_of_every_dtype_come_through_a_ring(lane: Lane, name: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    count = int(np.prod(shape)) * dtype.itemsize
    tensor = (torch.arange(count) % 2).to(torch.uint8).view(dtype).reshape(shape)
    restored = lane.cross(tensor)
    assert (type(restored), restored.dtype, restored.shape) == (torch.Tensor, dtype, tensor.shape)
    assert as_bytes(restored) == as_bytes(tensor)


def test_awkward_tensors_come_through_a_ring_with_their_values(lane: Lane) -> None:
    torch = pytest.importorskip("torch")
    grid = torch.arange(12.0).reshape(3, 4)
    with torch.inference_mode():
        inferred = torch.ones(2)
    for tensor in (
        grid.t(),
        grid[1],
        grid[:, 2],
        torch.ones(1).expand(3, 2),
        grid.clone().requires_grad_(),
        torch.nn.Parameter(grid.clone()),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.tensor([1 + 2j])[0].conj().imag,
        inferred,
        torch._efficientzerotensor(2),
    ):
        restored = lane.cross(tensor)
        assert torch.equal(restored, tensor.detach())
        assert not restored.requires_grad
        restored.fill_(99)
        assert not torch.equal(restored, tensor.detach())


def mixed_tensors() -> list[Any]:
    torch = pytest.importorskip("torch")
    return [
        np.arange(3.0),
        torch.arange(3.0),
        torch.arange(3.0).to(torch.bfloat16),
        [0.5, 1.5],
        bytearray(b"abc"),
        np.zeros((2, 2), ">i4"),
        array.array("d", [1.0]),
        memoryview(bytearray(8)),
        np.array([("x", 1)], [("a", "U1"), ("b", "i4")]),
    ]


def overwrite(tensor: Any) -> None:
    if isinstance(tensor, (list, bytearray, array.array, memoryview)):
        for index in range(len(tensor)):
            tensor[index] = 7
    elif isinstance(tensor, np.ndarray):
        tensor.reshape(-1).view(np.uint8)[:] = 7
    else:
        tensor.fill_(7)


def test_what_one_probe_writes_reaches_no_other_record_and_not_the_engine(lane: Lane) -> None:
    originals = mixed_tensors()
    expected = [repr(as_bytes(tensor)) for tensor in originals]
    kept: list[tuple[int, Any]] = []
    for round_index in range(6):
        for tensor in originals:
            lane.publish(tensor)
        headers, batch = lane.take()
        for index in range(len(batch)):
            restored = rebuild(headers[index], batch.copy(index))
            assert repr(as_bytes(restored)) == expected[index]
            if (round_index + index) % 3:
                overwrite(restored)
            else:
                kept.append((index, restored))
        lane.reader.finish(batch)
    assert [repr(as_bytes(tensor)) for tensor in originals] == expected
    assert all(repr(as_bytes(tensor)) == expected[index] for index, tensor in kept)


def test_a_view_is_read_only_and_in_place(lane: Lane) -> None:
    lane.publish(np.arange(6, dtype=np.int32).reshape(2, 3))
    headers, batch = lane.take()
    seen = rebuild_view(headers[0], batch.view(0))
    assert seen.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not seen.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        seen[0, 0] = 1
    del seen
    lane.reader.finish(batch)


def test_a_torch_record_is_never_seen_in_place(lane: Lane) -> None:
    torch = pytest.importorskip("torch")
    lane.publish(torch.zeros(3))
    headers, batch = lane.take()
    copied = rebuild_view(headers[0], batch.view(0))
    copied.fill_(1)
    assert rebuild(headers[0], batch.copy(0)).tolist() == [0, 0, 0]
    lane.reader.finish(batch)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i8", "?", "c8", "M8[s]"])
def test_a_stack_has_all_rows_of_a_batch(lane: Lane, dtype: str) -> None:
    rows = np.arange(12).reshape(3, 2, 2).astype(dtype)
    for row in rows:
        lane.publish(row)
    _, batch = lane.take()
    stacked = stack(batch)
    lane.reader.finish(batch)
    assert stacked.dtype == rows.dtype
    np.testing.assert_array_equal(stacked, rows)
    assert stacked.flags.writeable


def test_a_stack_of_bfloat16_is_widened_without_loss(lane: Lane) -> None:
    torch = pytest.importorskip("torch")
    rows = torch.randn(4, 5).to(torch.bfloat16)
    rows[1, 1] = float("-inf")
    for row in rows:
        lane.publish(row)
    _, batch = lane.take()
    stacked = stack(batch)
    lane.reader.finish(batch)
    np.testing.assert_array_equal(stacked, rows.float().numpy())


@pytest.mark.parametrize("name", ["float32", "float8_e5m2"])
def test_a_stack_of_torch_rows_is_a_numpy_array(lane: Lane, name: str) -> None:
    torch = pytest.importorskip("torch")
    rows = torch.ones(3, 2).to(getattr(torch, name))
    for row in rows:
        lane.publish(row)
    _, batch = lane.take()
    stacked = stack(batch)
    lane.reader.finish(batch)
    assert stacked.dtype == np.float32
    assert stacked.tolist() == [[1, 1]] * 3


@pytest.mark.parametrize("rows", [[[0.5, 1.5], [2.0, 3.0]], [[1, 2], [3, 4]], [[1, 2.5], [True, 4]], [(1, 2), [3, 4]]])
def test_a_stack_of_lists_has_their_numbers(lane: Lane, rows: list[Any]) -> None:
    for row in rows:
        lane.publish(row)
    _, batch = lane.take()
    stacked = stack(batch)
    lane.reader.finish(batch)
    np.testing.assert_array_equal(stacked, np.array([list(row) for row in rows]))


def test_rows_of_different_shape_have_no_stack(lane: Lane) -> None:
    lane.publish(np.zeros(2))
    lane.publish(np.zeros(3))
    _, batch = lane.take()
    with pytest.raises(ProbingValueError, match="one shape") as caught:
        stack(batch)
    lane.reader.finish(batch)
    assert isinstance(caught.value, UndercurrentError)
