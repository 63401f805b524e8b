"""One ring, both ends: what each policy does when it is full, how it ends, what it counts."""

from __future__ import annotations

import threading

import pytest
from ipc_rig import headers_of, payloads_of, rig

from undercurrent.errors import RingCorruptError, RingError, RingMemoryError
from undercurrent.ipc import layout


def test_full_ring_drops_the_oldest_record() -> None:
    with rig(depth=3) as both:
        assert [both.publish(bytes([i])) for i in range(5)] == [layout.OK] * 5
        assert both.take() == [b"\2", b"\3", b"\4"]
        assert both.ring.statistics().dropped_oldest == 2


def test_full_ring_refuses_the_newest_record() -> None:
    with rig(depth=3, policy=layout.DROP_NEWEST) as both:
        assert [both.publish(bytes([i])) for i in range(5)] == [layout.OK] * 3 + [layout.FULL] * 2
        assert both.take() == [b"\0", b"\1", b"\2"]
        assert both.ring.statistics().dropped_newest == 2


def test_full_ring_under_block_answers_full_and_counts_nothing() -> None:
    with rig(depth=2, policy=layout.BLOCK) as both:
        assert [both.publish(b"x") for _ in range(3)] == [layout.OK, layout.OK, layout.FULL]
        assert both.ring.statistics().dropped == 0
        assert both.ring.statistics().produced == 2


def test_depth_is_exact_and_more_are_in_hand() -> None:
    with rig(depth=20) as both:
        for i in range(20):
            both.publish(bytes([i]))
        batch = both.reader.take(99)
        assert batch is not None
        assert len(batch) == layout.HAND_COUNT
        for i in range(20):
            both.publish(bytes([100 + i]))
        statistics = both.ring.statistics()
        assert (statistics.waiting, statistics.in_hand, statistics.dropped_oldest) == (20, 16, 4)
        assert payloads_of(batch) == [bytes([i]) for i in range(16)], "overwriting must not touch what is in hand"


def test_taking_with_a_full_hand_is_our_mistake_and_named() -> None:
    with rig(depth=1) as both:
        both.publish(b"a")
        batch = both.reader.take(1)
        assert batch is not None
        both.publish(b"b")
        with pytest.raises(RingError, match="finish an earlier batch"):
            both.reader.take(1)
        both.reader.finish(batch)
        assert both.take() == [b"b"]


def test_closed_ring_is_drained_and_then_at_its_end() -> None:
    with rig() as both:
        both.publish(b"last")
        both.ring.close()
        both.ring.close()
        assert both.publish(b"late") == layout.CLOSED
        assert not both.reader.at_end
        assert both.take() == [b"last"]
        assert both.reader.take(1) is None
        assert both.reader.at_end


def test_ring_of_a_dead_producer_is_drained_and_then_at_its_end() -> None:
    with rig() as both:
        both.publish(b"last")
        both.consumer.take_ready()
        both.consumer.producer_gone()
        assert both.consumer.take_ready() == [both.ring.ring_index]
        assert both.take() == [b"last"]
        assert both.reader.take(1) is None
        assert both.reader.at_end


def test_header_says_what_was_published() -> None:
    with rig() as both:
        both.ring.trace = bytes(range(16))
        both.ring.publish(memoryview(bytes(12)).cast("f", (1, 3)), 9, -3, 2**40, 1, 1.25)
        batch = both.reader.take(1)
        assert batch is not None
        (header,) = headers_of(batch)
        assert header.pop("monotonic_ns") > 0
        assert header == {
            "seq": 4, "generation": 7, "length": 12, "kind": 9, "dtype_code": 2, "dtype_bits": 32, "ndim": 2,
            "shape0": 1, "shape1": 3, "shape2": 0, "shape3": 0, "token_pos": 2**40, "layer": -3, "flags": 1,
            "timestamp": 1.25, "trace": bytes(range(16)),
        }  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [(256, 0, 0, 0), (-1, 0, 0, 0), (0, 2**31, 0, 0), (0, 0, 2**63, 0), (0, 0, 0, 2**32)]
)
def test_numbers_that_do_not_fit_the_header_are_refused(arguments: tuple[int, int, int, int]) -> None:
    with rig() as both:
        with pytest.raises((ValueError, OverflowError)):
            both.ring.publish(b"x", *arguments, 0.0)
        assert both.ring.statistics().produced == 0


def test_larger_record_takes_a_larger_slot_and_small_ones_follow() -> None:
    with rig(depth=2) as both:
        sizes = [10, 5000, 10, 200_000, 3_000_000, 10]
        for size in sizes:
            assert both.publish(bytes([size % 251]) * size) == layout.OK
            assert both.take() == [bytes([size % 251]) * size]


def test_record_longer_than_the_maximum_is_too_large() -> None:
    with rig(record_bytes_max=1000) as both:
        assert both.publish(bytes(1000)) == layout.OK
        assert both.publish(bytes(1001)) == layout.TOO_LARGE
        assert both.publish(bytes(100 << 20)) == layout.TOO_LARGE


def test_memory_limit_refuses_the_record_and_says_the_sum() -> None:
    with rig(depth=4, limit_bytes=3 << 20) as both:
        assert both.publish(bytes(1 << 20)) == layout.NO_SLOT
        both.ring.count_refused("no_memory")
        assert "MiB are in use by all lanes together" in (both.lane.last_refusal or "")
        assert both.publish(b"small") == layout.OK
        statistics = both.ring.statistics()
        assert (statistics.no_memory, statistics.produced) == (1, 2)


def test_every_refusal_is_counted_as_produced_and_dropped() -> None:
    with rig() as both:
        for reason in ("no_memory", "unsupported", "too_large", "block_timeout"):
            both.ring.count_refused(reason)
        statistics = both.ring.statistics()
        assert statistics.produced == statistics.dropped == 4
        with pytest.raises(KeyError):
            both.ring.count_refused("bad luck")


def test_new_consumer_goes_on_behind_the_last_record_taken() -> None:
    with rig(depth=8) as both:
        for i in range(6):
            both.publish(bytes([i]))
        batch = both.reader.take(2)
        both.attach_again()
        assert both.take() == [b"\2", b"\3", b"\4", b"\5"]
        statistics = both.ring.statistics()
        assert (statistics.lost, statistics.in_hand, statistics.consumed) == (2, 0, 4)
        del batch
        assert both.ring.statistics() == statistics, "the dead one's batch counts nothing afterwards"


def test_ring_survives_any_number_of_consumer_deaths() -> None:
    with rig(depth=3) as both:
        for _ in range(40):
            for i in range(3):
                assert both.publish(bytes([i]) * 400) == layout.OK
            keep = both.reader.take(3)
            assert keep is not None
            both.attach_again()
        statistics = both.ring.statistics()
        assert (statistics.lost, statistics.dropped, statistics.balanced) == (120, 0, True)


def test_consumer_that_was_taken_for_dead_is_told() -> None:
    with rig() as both:
        both.lane.recover_consumer()
        with pytest.raises(RingError, match="took this lane over"):
            both.reader.take(1)


def test_attaching_to_another_ring_than_expected_is_refused() -> None:
    with rig(depth=4) as both:
        good = {"queue_depth": 4, "policy": layout.DROP_OLDEST, "generation": 7}
        for wrong in ({"queue_depth": 5}, {"policy": layout.BLOCK}, {"generation": 8}):
            with pytest.raises(RingCorruptError):
                both.consumer.attach_ring(0, **(good | wrong))
        for index in (1, 63, 64, 2**31):
            with pytest.raises(RingCorruptError):
                both.consumer.attach_ring(index, **good)


def test_waiting_for_room_returns_when_the_consumer_takes() -> None:
    with rig(depth=1, policy=layout.BLOCK) as both:
        both.publish(b"a")
        assert not both.ring.wait_room(0.01)
        taker = threading.Timer(0.02, both.take)
        taker.start()
        assert both.ring.wait_room(30)
        taker.join()
        assert both.publish(b"b") == layout.OK


@pytest.mark.parametrize("ender", ["interrupt", "close"])
def test_waiting_for_room_is_ended_from_another_thread(ender: str) -> None:
    with rig(depth=1, policy=layout.BLOCK) as both:
        both.publish(b"a")
        ending = threading.Timer(0.02, getattr(both.ring, ender))
        ending.start()
        assert not both.ring.wait_room(30)
        ending.join()


def test_interruption_before_the_wait_is_not_lost() -> None:
    with rig(depth=1, policy=layout.BLOCK) as both:
        both.publish(b"a")
        both.ring.interrupt()
        assert not both.ring.wait_room(30)
        assert not both.ring.wait_room(0)


def test_release_waits_for_the_consumer_to_let_go() -> None:
    with rig(depth=2) as both:
        both.publish(b"kept in the counters")
        with pytest.raises(RingError, match="has a consumer still"):
            both.ring.release()
        both.reader.detach()
        both.ring.release()
        both.ring.release()
        assert both.ring.statistics().waiting == 1
        assert both.publish(b"late") == layout.CLOSED
        assert both.lane.statistics().rings == 0


def test_released_ring_block_is_used_again_by_another_generation() -> None:
    with rig(depth=2) as both:
        both.publish(b"old")
        both.reader.detach()
        both.ring.release()
        again = both.lane.open_ring(queue_depth=2, policy=layout.DROP_OLDEST, generation=8)
        assert again.ring_index == both.ring.ring_index
        reader = both.consumer.attach_ring(again.ring_index, queue_depth=2, policy=layout.DROP_OLDEST, generation=8)
        assert reader.take(1) is None
        assert both.ring.statistics().produced == 1
        assert again.statistics().produced == 0
        assert again.publish(b"new", 0, 0, 0, 0, 0.0) == layout.OK
        assert len(reader.take(1) or []) == 1


def test_released_rings_of_one_depth_make_room_for_another() -> None:
    with rig(depth=2) as both:
        for depth in (3, 4, 3):
            rings = [
                both.lane.open_ring(queue_depth=depth, policy=layout.DROP_OLDEST, generation=8 + index)
                for index in range(63)
            ]
            assert len({ring.ring_index for ring in rings}) == 63
            with pytest.raises(RingMemoryError, match="the lane is full"):
                both.lane.open_ring(queue_depth=1, policy=layout.DROP_OLDEST, generation=99)
            for ring in rings:
                ring.release()


def test_user_counters_cross_and_start_at_zero() -> None:
    with rig() as both:
        assert both.ring.statistics().user == (0, 0, 0, 0)
        both.reader.set_user(3, 2**64 - 1)
        assert both.ring.statistics().user == (0, 0, 0, 2**64 - 1)
        with pytest.raises(IndexError):
            both.reader.set_user(4, 1)
