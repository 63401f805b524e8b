"""Budget, extents and slots."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercurrent.errors import RingMemoryError
from undercurrent.ipc import layout
from undercurrent.ipc.memory import ExtentAllocator, LaneMemory, MemoryBudget, SlotStore, default_memory_limit


def test_budget_counts_and_refuses() -> None:
    budget = MemoryBudget(100)
    assert budget.reserve(60)
    assert not budget.reserve(41)
    assert budget.used_bytes == 60
    budget.release(60)
    assert budget.reserve(100)


def test_budget_is_a_quarter_of_memory_unless_told() -> None:
    assert MemoryBudget().limit_bytes == default_memory_limit() > 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_extents_never_overlap_and_all_come_back(steps: list[tuple[bool, int]]) -> None:
    allocator = ExtentAllocator(40)
    out: list[tuple[int, int]] = []
    for is_release, count in steps:
        if is_release and out:
            allocator.release(*out.pop(count % len(out)))
        elif (first := allocator.allocate(count)) is not None:
            out.append((first, count))
        numbers = [n for first, count in out for n in range(first, first + count)]
        assert len(numbers) == len(set(numbers))
        assert all(0 <= n < 40 for n in numbers)
    for extent in out:
        allocator.release(*extent)
    assert allocator.allocate(40) == 0


class Table:
    """Records the runs that a store enters."""

    def __init__(self) -> None:
        self.runs: dict[int, tuple[int, int]] = {}

    def _commit_run(self, first_block: int, run_blocks: int, class_index: int) -> None:
        if class_index == layout.CLASS_COUNT:
            del self.runs[first_block]
        else:
            self.runs[first_block] = (run_blocks, class_index)


@pytest.fixture
def store() -> Iterator[SlotStore]:
    """A store over eight blocks within a budget of six."""
    memory = LaneMemory(MemoryBudget(6 << 20), control_bytes=4096, payload_bytes=8 << 20)
    yield SlotStore(memory, Table(), 8)
    memory.close()


def test_slots_are_apart_and_inside_their_run(store: SlotStore) -> None:
    for class_index in (0, 32, 70, 100):
        size = layout.class_bytes(class_index)
        slots = sorted(slot * layout.UNIT_BYTES for slot in store.take(class_index, 5, "a test"))
        assert all(b - a >= size for a, b in itertools.pairwise(slots))
        assert slots[-1] + size <= 8 << 20


def test_refused_slots_leave_nothing_taken(store: SlotStore) -> None:
    before = store.issued()
    with pytest.raises(RingMemoryError, match="a test needs"):
        store.take(layout.class_of(1 << 19), 20, "a test")
    assert {index: slots for index, slots in store.issued().items() if slots} == before


def test_slots_of_a_peer_s_making_are_ignored(store: SlotStore) -> None:
    slots = store.take(10, 3, "a test")
    free = store.free_count
    store.give([slots[0], slots[0], slots[1] + 1, 5 << 20, layout.CLASS_COUNT])
    assert store.free_count == free + 1
    assert store.issued()[10] == set(slots[1:])


def test_class_sizes_waste_at_most_an_eighth() -> None:
    sizes = [layout.class_bytes(index) for index in range(layout.CLASS_COUNT)]
    assert sizes == sorted(set(sizes))
    for index, size in enumerate(sizes):
        assert size % layout.UNIT_BYTES == 0
        assert layout.class_of(size) == index
        assert layout.class_of(size + 1) == index + 1
        run = layout.class_run_blocks(index) * layout.BLOCK_BYTES
        assert run >= size
        assert (run % size) * 8 <= run
        if index > 64:
            assert size <= sizes[index - 1] * 9 / 8
