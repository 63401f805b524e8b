"""How a coalition's mask is packed into bytes: bit i of byte i // 8, counted from the lowest, is player i."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from undercurrent.runtime.errors import RuntimeValueError

__all__ = ["PackedMask", "pack_mask", "unpack_mask"]


class PackedMask(msgspec.Struct, frozen=True):
    """Which players are present, one bit each."""

    words: bytes
    """`(n_bits + 7) // 8` bytes; the bits above `n_bits` are 0."""
    n_bits: int
    """Number of players."""


def pack_mask(present: Sequence[bool]) -> PackedMask:
    """Packs one bool per player.

    >>> pack_mask([True, False, True])
    PackedMask(words=b'\\x05', n_bits=3)
    """
    number = 0
    for player, is_present in enumerate(present):
        if is_present:
            number |= 1 << player
    return PackedMask(number.to_bytes((len(present) + 7) // 8, "little"), len(present))


def unpack_mask(mask: PackedMask) -> tuple[bool, ...]:
    """Returns one bool per player.

    Raises:
        RuntimeValueError: `words` has not the length that `n_bits` asks for, or bits above it.
    """
    size_bytes = (mask.n_bits + 7) // 8
    number = int.from_bytes(mask.words, "little")
    if len(mask.words) != size_bytes or number >> mask.n_bits:
        raise RuntimeValueError(
            f"a mask of {mask.n_bits} players was expected in {size_bytes} bytes with no bit above them, "
            f"got {mask.words!r}"
        )
    return tuple(bool(number >> player & 1) for player in range(mask.n_bits))
