"""`publish_rows`: rows of one payload to many rings, in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ipc_rig import Rig, attach, headers_of, payloads_of, rig

from undercurrent.ipc import ConsumerRing, ProducerRing, RingStatistics, layout, publish_rows

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
LONG_ROWS = np.arange(40 * 1024, dtype=np.float32).reshape(40, 1024)  # long enough for streaming stores


def publish(rows: object, targets: dict[Any, Any], entries: Sequence[Any]) -> list[int]:
    """Publishes with keys of (first, second)."""
    return publish_rows(rows, 5, 2, 1.5, targets, (), entries)


def target(both: Rig, ring: ProducerRing | None = None) -> tuple[Any, ...]:
    """Where a ring's rows go."""
    return both.lane, ring or both.ring, "more fields"


def open_rings(both: Rig, count: int, **options: int) -> list[tuple[ProducerRing, ConsumerRing]]:
    """More rings of the lane, with their readers."""
    options = {"queue_depth": 4, "policy": layout.DROP_OLDEST, **options}
    rings = [both.lane.open_ring(generation=100 + index, **options) for index in range(count)]
    return [(ring, attach(both.consumer, ring)) for ring in rings]


def taken(reader: ConsumerRing, limit: int = 16) -> list[bytes]:
    """What waits in a ring."""
    batch = reader.take(limit)
    payloads = [] if batch is None else payloads_of(batch)
    if batch is not None:
        reader.finish(batch)
    return payloads


def test_rows_go_to_their_rings_in_one_call() -> None:
    with rig(depth=8) as both:
        ((other, reader),) = open_rings(both, 1, policy=layout.DROP_NEWEST)
        targets = {("r", "p", 2, "mlp"): target(both), ("s", "p", 2, "mlp"): target(both, other)}
        entries = [("r", "p", 10, False), ("s", "p", 11, True, 3), ["r", "p", 12, False, 1], ("s", "q", 0, False)]
        assert publish_rows(ROWS, 5, 2, 1.5, targets, (2, "mlp"), entries) == [3]
        assert both.take() == [ROWS[0].tobytes(), ROWS[1].tobytes()]
        batch = reader.take(4)
        assert batch is not None
        assert bytes(batch.view(0)) == ROWS[3].tobytes()
        (header,) = headers_of(batch)
        expected = {"kind": 5, "layer": 2, "token_pos": 11, "flags": 1, "timestamp": 1.5, "ndim": 1, "shape0": 3}
        assert expected.items() <= header.items()
        assert 0 < header["monotonic_ns"] <= time.monotonic_ns()


def test_more_rings_than_one_fence_covers_get_their_rows_in_order() -> None:
    with rig() as both:
        rings = open_rings(both, 40)
        targets = {(index, "p"): target(both, ring) for index, (ring, _) in enumerate(rings)}
        entries = [(index, "p", lap, True, index) for lap in range(3) for index in range(40)]
        for _ in range(2):  # the first call gets every ring its slots, one by one
            assert publish(LONG_ROWS, targets, tuple(entries)) == []
        for index, (ring, reader) in enumerate(rings):
            assert taken(reader) == [LONG_ROWS[index].tobytes()] * 4
            counts: RingStatistics = ring.statistics()
            assert (counts.produced, counts.consumed, counts.dropped_oldest) == (6, 4, 2)


def test_one_ring_takes_every_row_of_a_call() -> None:
    with rig(depth=64) as both:
        assert publish(LONG_ROWS, {("r", "p"): target(both)}, [("r", "p", index, True) for index in range(40)]) == []
        assert both.take() == [row.tobytes() for row in LONG_ROWS[:16]]
        assert both.take() == [row.tobytes() for row in LONG_ROWS[16:32]]


def test_full_ring_drops_what_is_newest_and_that_is_an_answer() -> None:
    with rig(depth=1, policy=layout.DROP_NEWEST) as both:
        assert publish(ROWS, {("r", "p"): target(both)}, [("r", "p", 0, False), ("r", "p", 1, False)]) == []
        counts = both.ring.statistics()
        assert (counts.produced, counts.dropped_newest) == (2, 1)


@pytest.mark.parametrize("kind", ["unsupported", "closed ring", "closed lane", "no lane", "no target", "no memory"])
def test_what_no_ring_takes_is_named(kind: str) -> None:
    with rig(record_bytes_max=8 if kind == "no memory" else 1 << 20) as both:
        targets = {("r", "p"): target(both), ("s", "p"): (None, both.ring)}
        rows: Any = ROWS.T if kind == "unsupported" else ROWS
        name = {"no lane": "s", "no target": "t"}.get(kind, "r")
        if kind == "closed ring":
            both.ring.close()
        if kind == "closed lane":
            both.lane.close()
        assert publish(rows, targets, [(name, "p", 0, False), (name, "p", 0, False)]) == [0, 1]
        assert both.ring.statistics().produced == 0


@pytest.mark.parametrize(
    "entry",
    [
        ("r", "p", 0, False, 4),
        ("r", "p", 0, False, -1),
        ("r", "p", 0, False, 1 << 70),
        ("r", "p", 0, False, "1"),
        ("r", "p", "0", False),
        ("r", "p", 1 << 63, False),
        ("r", "p", 0),
        ("r", "p", 0, False, 0, 0),
        ([], "p", 0, False),
        ("wrong", "p", 0, False),
        ("short", "p", 0, False),
        7,
    ],
)
def test_nothing_is_published_when_an_entry_is_wrong(entry: Any) -> None:
    with rig() as both:
        targets = {("r", "p"): target(both), ("wrong", "p"): (both.lane, "no ring"), ("short", "p"): (both.lane,)}
        with pytest.raises((ValueError, IndexError, TypeError, OverflowError)):
            publish(ROWS, targets, [("r", "p", 0, False), entry])
        assert both.ring.statistics().produced == 0


@pytest.mark.parametrize("rows", [np.zeros(4), np.zeros((1, 2, 3))])
def test_rows_have_two_dimensions(rows: object) -> None:
    with rig() as both, pytest.raises(ValueError, match="expected two dimensions"):
        publish(rows, {("r", "p"): target(both)}, [("r", "p", 0, False)])


@pytest.mark.parametrize("layer", [1 << 31, "4"])
def test_layer_is_a_number_of_32_bits(layer: Any) -> None:
    with rig() as both, pytest.raises((ValueError, TypeError)):
        publish_rows(ROWS, 0, layer, 0.0, {("r", "p"): target(both)}, (), [("r", "p", 0, False)])


def test_arguments_of_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="dict of targets"):
        publish_rows(ROWS, 0, 0, 0.0, [], (), [])  # type: ignore[arg-type]


def test_list_that_shrinks_while_it_is_read_raises() -> None:
    entries: list[Any] = []

    class Emptying:
        def __bool__(self) -> bool:
            entries.clear()
            return True

    entries += [("r", "p", 0, Emptying()), ("r", "p", 1, True)]
    with rig() as both:
        with pytest.raises(IndexError):
            publish(ROWS, {("r", "p"): target(both)}, entries)
        assert both.ring.statistics().produced == 0


def test_rows_inside_a_step_wake_at_its_end() -> None:
    with rig() as both:
        both.lane.begin_step()
        assert publish(ROWS, {("r", "p"): target(both)}, [("r", "p", 0, False)]) == []
        both.lane.end_step()
        assert both.consumer.take_ready() == [both.ring.ring_index]
