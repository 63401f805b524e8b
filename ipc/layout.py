"""The numbers of the lane's format: what `csrc/layout.h` says, for Python.

`README.md` describes the format in words. Nothing here touches shared memory or the extension, so it can be read on
any system.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ANSWER_BYTES_MAX",
    "BLOCK",
    "BLOCK_BYTES",
    "CLASS_COUNT",
    "CLOSED",
    "CORRUPT",
    "DROP_NEWEST",
    "DROP_OLDEST",
    "DTYPE_OPAQUE",
    "FLAG_IS_GENERATED",
    "FULL",
    "HAND_COUNT",
    "HEADER_BYTES",
    "HEADER_FIELDS",
    "HEADER_FORMAT",
    "NDIM_MAX",
    "NO_SLOT",
    "OK",
    "PAYLOAD_BYTES_MAX",
    "PEER_DIED",
    "QUEUE_DEPTH_MAX",
    "RECORD_BYTES_MAX",
    "RING_CAPACITY_MAX",
    "SEQUENCE_END",
    "STATUS_NAMES",
    "TIMEOUT",
    "TOO_LARGE",
    "UNIT_BYTES",
    "UNSUPPORTED",
    "OverflowCode",
    "class_bytes",
    "class_hand_count",
    "class_of",
    "class_run_blocks",
]

# Answers of ProducerRing.publish and ProducerRing.await_answer.
OK: Final = 0
FULL: Final = 1
TIMEOUT: Final = 3
CLOSED: Final = 4
PEER_DIED: Final = 6
CORRUPT: Final = 8
NO_SLOT: Final = 16
TOO_LARGE: Final = 17
UNSUPPORTED: Final = 18

STATUS_NAMES: Final = {
    OK: "ok",
    FULL: "full",
    TIMEOUT: "timeout",
    CLOSED: "closed",
    PEER_DIED: "peer died",
    CORRUPT: "corrupt",
    NO_SLOT: "no slot",
    TOO_LARGE: "too large",
    UNSUPPORTED: "unsupported",
}

# What a full ring does.
DROP_OLDEST: Final = 0
DROP_NEWEST: Final = 1
BLOCK: Final = 2


class OverflowCode:
    """The overflow policies as the plain numbers that stand in a ring's block."""

    DROP_OLDEST = DROP_OLDEST
    DROP_NEWEST = DROP_NEWEST
    BLOCK = BLOCK


UNIT_BYTES: Final = 256
BLOCK_BYTES: Final = 1 << 20
CLASS_COUNT: Final = 160
HAND_COUNT: Final = 16
HAND_BYTES: Final = 4 << 20
NDIM_MAX: Final = 4
QUEUE_DEPTH_MAX: Final = 1 << 20
RING_CAPACITY_MAX: Final = 65536
HEADER_BYTES: Final = 128
RECORD_BYTES_MAX: Final = (64 << 20) - HEADER_BYTES
PAYLOAD_BYTES_MAX: Final = 1 << 34
ANSWER_BYTES_MAX: Final = 768
SEQUENCE_END: Final = (1 << 64) - 1  # the end of a stream, where a record's position would stand

FLAG_IS_GENERATED: Final = 1
DTYPE_OPAQUE: Final = 255  # dtype_code of bytes without a type

# One record's header, as `struct` reads it. Meaning of the fields: HEADER_FIELDS.
HEADER_FORMAT: Final = "<QQIBBBB4IqiIdQ16s40x"

# The same for `numpy.dtype(HEADER_FIELDS)`.
HEADER_FIELDS: Final[list[tuple[str, str] | tuple[str, str, tuple[int, ...]]]] = [
    ("seq", "<u8"),  # position of the record in its ring, from `start` on
    ("generation", "<u8"),  # of the ring
    ("length", "<u4"),  # payload bytes
    ("kind", "u1"),  # what to rebuild; means nothing to ipc
    ("dtype_code", "u1"),  # DLPack's: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 7.. float8; 255 opaque
    ("dtype_bits", "u1"),  # bits of one element
    ("ndim", "u1"),  # 0 to 4
    ("shape", "<u4", (NDIM_MAX,)),  # unused dimensions are 0
    ("token_pos", "<i8"),
    ("layer", "<i4"),
    ("flags", "<u4"),  # bit 0: is_generated
    ("timestamp", "<f8"),  # wall clock, seconds
    ("monotonic_ns", "<u8"),  # CLOCK_MONOTONIC when published
    ("trace", "V16"),
    ("reserved", "V40"),
]

_LINEAR_CLASSES = 64


def class_bytes(class_index: int) -> int:
    """Returns the slot size of a class, header included: 256 B steps to 16 KiB, then eight steps an octave."""
    if class_index < _LINEAR_CLASSES:
        return (class_index + 1) * UNIT_BYTES
    octave, step = divmod(class_index - _LINEAR_CLASSES, 8)
    return (2048 << octave) * (9 + step)


_CLASS_SIZES = [class_bytes(index) for index in range(CLASS_COUNT)]


def class_of(slot_bytes: int) -> int:
    """Returns the smallest class whose slots hold `slot_bytes`, header included; CLASS_COUNT if none does."""
    if slot_bytes <= _LINEAR_CLASSES * UNIT_BYTES:
        return max(0, (slot_bytes - 1) // UNIT_BYTES)
    return next((i for i in range(_LINEAR_CLASSES, CLASS_COUNT) if _CLASS_SIZES[i] >= slot_bytes), CLASS_COUNT)


def class_run_blocks(class_index: int) -> int:
    """Returns how many blocks one run of a class has: the fewest that waste at most an eighth."""
    slot_bytes = _CLASS_SIZES[class_index]
    blocks = -(-slot_bytes // BLOCK_BYTES)
    while (blocks * BLOCK_BYTES % slot_bytes) * 8 > blocks * BLOCK_BYTES:
        blocks += 1
    return blocks


def class_hand_count(class_index: int) -> int:
    """Returns how many slots of a class the consumer holds in its hand, at most."""
    return min(HAND_COUNT, max(2, HAND_BYTES // _CLASS_SIZES[class_index]))
