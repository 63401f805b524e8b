"""Shared memory that no honest peer wrote: a clean error or valid records, on both sides, and always an end."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from ipc_rig import Rig, attach, payloads_of, rig

from undercurrent.errors import RingCorruptError, RingError
from undercurrent.ipc import Batch, ConsumerLane, ProducerLane, layout

HEADER_USED_BYTES = 168
RING_BLOCK_BYTES = 512
DOORBELL_OFFSET, DOORBELL_BYTES = 4096, 384
PAYLOADS = [bytes([i]) * (100 + i) for i in range(12)]
ENTRY_STRIDE = 64


def flip(lane: ProducerLane, offset: int, bit: int) -> None:
    """Flips one bit of control memory."""
    lane._memory.control.map[offset] ^= 1 << bit


def check(batch: Batch) -> None:
    """Whatever comes out was published."""
    for payload in payloads_of(batch):
        assert payload in PAYLOADS


def use_both_ends(both: Rig, *, attach_anew: bool) -> None:
    """Publishes, takes, counts, recovers and closes. Errors of ours are allowed, anything else is not."""
    if attach_anew:
        with suppress(RingError):
            both.consumer = ConsumerLane(both.lane.control_fd, both.lane.payload_fd)
            both.reader = attach(both.consumer, both.ring)
    for payload in PAYLOADS[4:8]:
        assert both.publish(payload) in (layout.OK, layout.FULL, layout.CORRUPT)
    both.ring.wait_room(0)
    with suppress(RingError):
        for _ in range(8):
            if (batch := both.reader.take(3)) is not None:
                check(batch)
                both.reader.finish(batch)
    both.consumer.wait(0)
    both.consumer.take_ready()
    both.reader.statistics()
    both.ring.statistics()
    both.lane.activity()
    assert both.lane.consumer_state in ("awake", "napping", "parked")
    both.lane.recover_consumer()
    assert both.publish(PAYLOADS[8]) in (layout.OK, layout.FULL, layout.CORRUPT)
    both.ring.close()


def filled(policy: int) -> Iterator[Rig]:
    """A ring of two words with records waiting and one in hand."""
    with rig(depth=2, policy=policy) as both:
        for payload in PAYLOADS[:3]:
            both.publish(payload)
        batch = both.reader.take(1)
        both.publish(PAYLOADS[3])
        yield both
        del batch


def experiment(policy: int, offset: int, bit: int, *, attach_anew: bool) -> None:
    """Flips one bit under a filled ring, then uses both ends."""
    for both in filled(policy):
        flip(both.lane, offset, bit)
        use_both_ends(both, attach_anew=attach_anew)


def test_every_flipped_bit_of_the_header_is_noticed() -> None:
    with rig() as both:
        for offset in range(HEADER_USED_BYTES):
            for bit in range(8):
                flip(both.lane, offset, bit)
                with pytest.raises(RingCorruptError):
                    ConsumerLane(both.lane.control_fd, both.lane.payload_fd)
                flip(both.lane, offset, bit)
        ConsumerLane(both.lane.control_fd, both.lane.payload_fd).close()


@pytest.mark.parametrize("policy", [layout.DROP_OLDEST, layout.BLOCK])
@pytest.mark.parametrize("attach_anew", [False, True])
def test_every_flipped_bit_of_a_ring_block_is_survived(policy: int, attach_anew: bool) -> None:
    with rig() as both:
        first = both.lane._rings_offset
    for offset in range(RING_BLOCK_BYTES):
        if offset % 128 >= 64:
            continue  # padding, that no code reads
        for bit in range(8):
            experiment(policy, first + offset, bit, attach_anew=attach_anew)


@pytest.mark.parametrize("policy", [layout.DROP_OLDEST, layout.DROP_NEWEST, layout.BLOCK])
@pytest.mark.parametrize("attach_anew", [False, True])
def test_every_flipped_bit_of_an_entry_word_is_survived(policy: int, attach_anew: bool) -> None:
    with rig() as both:
        first = both.lane._entries_offset
    for index in range(2):
        for bit in range(64):
            experiment(policy, first + index * ENTRY_STRIDE + bit // 8, bit % 8, attach_anew=attach_anew)


def test_every_flipped_bit_of_doorbell_hand_and_block_table_is_survived() -> None:
    with rig() as both:
        offsets = struct.unpack_from("<5Q", both.lane._memory.control.map, 56)
    doorbell, ticks, hands, blocks, _rings = offsets
    assert doorbell == DOORBELL_OFFSET
    slot_class = layout.class_of(100 + layout.HEADER_BYTES)
    row = hands + 128 * slot_class
    ranges = [range(doorbell, doorbell + 20), range(doorbell + 128, doorbell + 140), range(ticks, ticks + 4)]
    ranges += [range(doorbell + 256, doorbell + 272), range(row, row + 128), range(blocks, blocks + 8)]
    for offset in (offset for part in ranges for offset in part):
        for bit in range(8):
            experiment(layout.DROP_OLDEST, offset, bit, attach_anew=offset % 2 == 0)


def test_every_flipped_bit_of_a_slot_header_is_noticed_or_means_nothing() -> None:
    meaningless = range(40, 128)  # position, layer, flags, times, trace, reserved: any value is one
    with rig(depth=1) as both:
        both.publish(PAYLOADS[0])
    for offset in range(layout.HEADER_BYTES):
        for bit in range(8):
            with rig(depth=1) as both:
                both.publish(PAYLOADS[0])
                word = struct.unpack_from("<Q", both.lane._memory.control.map, both.lane._entries_offset)[0]
                slot = (word & (1 << 26) - 1) * layout.UNIT_BYTES
                both.lane._memory.payload.map[slot + offset] ^= 1 << bit
                try:
                    batch = both.reader.take(1)
                except RingCorruptError:
                    assert offset not in meaningless
                    continue
                assert batch is not None
                assert offset in meaningless or offset in (20, 21), "kind and dtype code are the caller's to judge"


def test_consumer_that_met_nonsense_stays_corrupt_and_the_waiter_hears_it() -> None:
    with rig(depth=2, policy=layout.BLOCK) as both:
        both.publish(PAYLOADS[0])
        both.publish(PAYLOADS[1])
        flip(both.lane, both.lane._entries_offset + 6, 3)
        flip(both.lane, both.lane._entries_offset + ENTRY_STRIDE + 6, 3)
        for _ in range(2):
            with pytest.raises(RingCorruptError, match="no honest producer"):
                both.reader.take(1)
        assert not both.ring.wait_room(30)


def test_producer_that_met_nonsense_answers_corrupt_for_good() -> None:
    with rig(depth=1) as both:
        flip(both.lane, both.lane._entries_offset + 6, 3)
        assert both.publish(b"x") == layout.CORRUPT
        flip(both.lane, both.lane._entries_offset + 6, 3)
        assert both.publish(b"x") == layout.CORRUPT
        with pytest.raises(RingCorruptError):
            attach(both.consumer, both.ring)


@pytest.mark.parametrize("seed", range(3))
def test_random_garbage_in_control_memory_is_survived(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(150):
        for both in filled(chance.randrange(3)):
            control = both.lane._memory.control.map
            end = both.lane._entries_offset + 2 * ENTRY_STRIDE
            for _ in range(chance.choice([1, 3, 200])):
                offset = chance.choice([chance.randrange(160, end), end - 1 - chance.randrange(128)])
                length = chance.choice([1, 4, 8, 64])
                control[offset : offset + length] = chance.randbytes(length)
            use_both_ends(both, attach_anew=chance.random() < 0.5)
