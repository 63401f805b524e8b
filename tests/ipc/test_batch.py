"""What a batch hands out, and when a slot goes back."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from ipc_rig import Rig, headers_of, payloads_of, rig

from undercurrent.errors import RingError
from undercurrent.ipc import Batch


def taken(both: Rig, *payloads: bytes) -> Batch:
    """Publishes and takes records as one batch."""
    for payload in payloads:
        both.publish(payload)
    batch = both.reader.take(16)
    assert batch is not None
    return batch


def test_view_is_read_only_and_in_place() -> None:
    with rig() as both:
        batch = taken(both, b"abc")
        view = batch.view(0)
        assert view.readonly
        assert bytes(view) == b"abc"
        with pytest.raises(TypeError):
            view[0] = 1
        view.release()


def test_copy_is_owned_and_writable() -> None:
    with rig() as both:
        batch = taken(both, b"abc", b"def")
        copy = batch.copy(1)
        copy[0] = 0
        assert bytes(batch.copy(1)) == b"def"


def test_copy_into_fills_a_buffer_and_refuses_a_small_one() -> None:
    with rig() as both:
        batch = taken(both, b"abc")
        target = bytearray(5)
        assert batch.copy_into(0, target) == 3
        assert target == b"abc\0\0"
        with pytest.raises(ValueError, match="3 bytes, the buffer 2"):
            batch.copy_into(0, bytearray(2))
        with pytest.raises((TypeError, BufferError)):
            batch.copy_into(0, b"read-only")


def test_gather_lays_records_end_to_end() -> None:
    with rig() as both:
        batch = taken(both, b"abc", b"def")
        target = bytearray(6)
        assert batch.gather(target) == 6
        assert target == b"abcdef"
        with pytest.raises(ValueError, match="6 bytes, the buffer 5"):
            batch.gather(bytearray(5))


def test_gather_refuses_records_of_different_lengths() -> None:
    with rig() as both:
        batch = taken(both, b"abc", b"de")
        with pytest.raises(ValueError, match="one length, got 3 and 2 bytes"):
            batch.gather(bytearray(10))


def test_index_outside_of_the_batch_is_refused() -> None:
    with rig() as both:
        batch = taken(both, b"abc")
        for index in (1, -1, 16, 2**40):
            with pytest.raises(IndexError):
                batch.view(index)


def test_finished_batch_gives_nothing_out() -> None:
    with rig() as both:
        batch = taken(both, b"abc")
        both.reader.finish(batch)
        both.reader.finish(batch)
        assert both.ring.statistics().consumed == 1
        for call in (lambda: batch.view(0), lambda: batch.copy(0), lambda: batch.gather(bytearray(3))):
            with pytest.raises(RingError, match="finished"):
                call()
        assert len(batch.headers) == 128, "headers are copies and stay"


def test_batch_of_another_ring_is_refused() -> None:
    with rig() as both, rig() as other:
        batch = taken(both, b"abc")
        with pytest.raises(TypeError, match="taken from this ring"):
            other.reader.finish(batch)


def test_slot_with_a_living_view_stays_out_of_the_hand() -> None:
    with rig(depth=16) as both:
        batch = taken(both, b"keep", b"go")
        view = batch.view(0)
        both.reader.finish(batch)
        assert batch.held == 1
        for i in range(200):
            both.publish(bytes([i]) * 4)
            both.take()
        assert bytes(view) == b"keep"
        assert bytes(view[1:3]) == b"ee"


def test_slice_of_a_view_keeps_the_slot_as_the_view_does() -> None:
    with rig() as both:
        batch = taken(both, b"keep")
        part = batch.view(0)[1:3]
        both.reader.finish(batch)
        assert batch.held == 1
        for i in range(50):
            both.publish(bytes([i]) * 4)
            both.take()
        assert bytes(part) == b"ee"


def test_whoever_can_reach_the_slot_keeps_it() -> None:
    with rig() as both:
        batch = taken(both, b"kept")
        view = batch.view(0)
        exporter = view.obj  # what an array made over the view keeps, with a bare pointer into the slot
        view.release()
        both.reader.finish(batch)
        assert batch.held == 1
        for i in range(50):
            both.publish(bytes([i]) * 4)
            both.take()
        assert bytes(memoryview(exporter)) == b"kept"


def test_an_array_over_a_view_keeps_the_slot() -> None:
    with rig() as both:
        batch = taken(both, b"kept")
        array = np.ndarray((4,), np.uint8, batch.view(0))
        both.reader.finish(batch)
        assert batch.held == 1
        for i in range(50):
            both.publish(bytes([i]) * 4)
            both.take()
        assert array.tobytes() == b"kept"


def test_records_are_copied_when_views_hold_the_whole_hand() -> None:
    with rig(depth=20) as both:
        views = []
        for i in range(16):
            batch = taken(both, bytes([i]) * 100)
            views.append(batch.view(0))
            both.reader.finish(batch)
        batch = taken(both, b"copied" * 30)
        own = batch.view(0)
        both.reader.finish(batch)
        assert bytes(own) == b"copied" * 30
        assert [bytes(view[:1]) for view in views] == [bytes([i]) for i in range(16)]
        assert both.ring.statistics().balanced
        del views, batch
        gc.collect()
        assert payloads_of(taken(both, b"x", b"y")) == [b"x", b"y"]


def test_batch_dropped_on_the_floor_does_not_empty_the_hand() -> None:
    with rig(depth=16) as both:
        for i in range(40):
            assert len(taken(both, bytes([i]))) == 1
        assert both.ring.statistics().consumed == 40


def test_view_keeps_the_memory_after_the_lane_is_closed() -> None:
    with rig() as both:
        batch = taken(both, b"kept")
        view = batch.view(0)
        both.reader.finish(batch)
        both.consumer.close()
        assert bytes(view) == b"kept"
        view.release()


def test_closed_lane_refuses_batches_and_takes() -> None:
    with rig() as both:
        batch = taken(both, b"kept")
        both.consumer.close()
        for call in (lambda: batch.view(0), lambda: both.reader.take(1), lambda: both.consumer.wait(0)):
            with pytest.raises(RingError):
                call()


def test_facts_are_what_the_header_says_and_outlive_the_batch() -> None:
    with rig() as both:
        batch = taken(both, b"abc", b"de")
        both.reader.finish(batch)
        headers = headers_of(batch)
        for index, header in enumerate(headers):
            form, *rest = batch.facts(index)
            assert form == batch.headers[index * 128 + 16 : index * 128 + 40]
            assert rest == [header[name] for name in ("seq", "layer", "token_pos", "flags", "timestamp")]
            assert 0 <= batch.age_ns(index) <= time.monotonic_ns() - header["monotonic_ns"]
        for call in (batch.facts, batch.age_ns):
            for index in (-1, 2):
                with pytest.raises(IndexError, match="outside of a batch of 2"):
                    call(index)
            with pytest.raises(TypeError):
                call("0")  # type: ignore[arg-type]


def test_a_batch_has_a_form_where_its_records_are_alike() -> None:
    with rig() as both:
        alike = taken(both, b"abc", b"def")
        assert alike.form == alike.facts(0)[0] == alike.facts(1)[0]
        both.reader.finish(alike)
        assert taken(both, b"abc", b"de").form is None


@pytest.mark.parametrize("count", [1, 3, 4, 7, 8, 9, 16])
@pytest.mark.parametrize("length", [0, 1, 1535, 1536, 8191, 8256, 30001])
def test_gather_copies_every_byte_of_every_record(count: int, length: int) -> None:
    payloads = [np.random.default_rng(index).bytes(length) for index in range(count)]
    with rig(depth=16) as both:
        batch = taken(both, *payloads)
        target = bytearray(b"x" * (count * length + 7))
        assert batch.gather(target) == count * length
        assert target == b"".join(payloads) + b"x" * 7
