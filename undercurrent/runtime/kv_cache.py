"""Prompt prefixes whose state a model can go on from."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from undercurrent.runtime.errors import RuntimeValueError

__all__ = ["CroppableCache", "PrefixCacheManager", "build_snapshot_prefix_hash"]

PREFIX_HASH_CHARS = 16


@runtime_checkable
class CroppableCache(Protocol):
    """A model's state that can be cut back to its first tokens."""

    def crop(self, max_length: int) -> object:
        """Keeps the first `max_length` tokens."""


class PrefixCacheManager:
    """Model states by the tokens they stand for; beyond `max_entries` the least recently used goes.

    Belongs to one thread. The state handed out is the one stored: who crops or extends it stores it again.
    """

    def __init__(self, max_entries: int = 8) -> None:
        """Holds up to `max_entries` states.

        Raises:
            RuntimeValueError: `max_entries` is below 1.
        """
        if max_entries < 1:
            raise RuntimeValueError(f"`max_entries` must be >= 1, got {max_entries!r}")
        self.max_entries = max_entries
        self.hits = 0
        """Calls of `longest_prefix` that found a state."""
        self.misses = 0
        """Calls of `longest_prefix` that found none."""
        self._states: OrderedDict[tuple[int, ...], object] = OrderedDict()

    def store(self, token_ids: Sequence[int], state: object) -> None:
        """Keeps the state after exactly these tokens, as the most recently used."""
        tokens = tuple(token_ids)
        self._states[tokens] = state
        self._states.move_to_end(tokens)
        if len(self._states) > self.max_entries:
            self._states.popitem(last=False)

    def longest_prefix(self, token_ids: Sequence[int]) -> tuple[object | None, int]:
        """The state that covers most leading tokens, and how many: `(None, 0)` where none covers any.

        A state that cannot be cropped covers its own tokens only; a croppable one, any run of leading tokens it shares,
        and the caller crops it to the length. At least one token is always left to compute.
        """
        tokens = tuple(token_ids)
        best: tuple[int, ...] | None = None
        best_length = 0
        for known, state in self._states.items():
            shared = _shared_length(known, tokens, len(tokens) - 1)
            if shared < len(known) and not isinstance(state, CroppableCache):
                continue
            if shared > best_length:
                best, best_length = known, shared
        if best is None:
            self.misses += 1
            return None, 0
        self.hits += 1
        self._states.move_to_end(best)
        return self._states[best], best_length

    def reset(self) -> None:
        """Forgets all states and counts."""
        self._states.clear()
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._states)


def _shared_length(known: tuple[int, ...], tokens: tuple[int, ...], limit: int) -> int:
    """How many leading tokens both have, at most `limit`. Slices compare in C, so halving beats a loop."""
    low, high = 0, max(0, min(len(known), limit))
    if known[:high] == tokens[:high]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if known[low:middle] == tokens[low:middle]:
            low = middle
        else:
            high = middle
    return low


class _HasSnapshotId(Protocol):
    @property
    def snapshot_id(self) -> str: ...


class _HasPlayers(Protocol):
    @property
    def player_ids(self) -> Sequence[str]: ...


class _HasPresence(Protocol):
    @property
    def present(self) -> Sequence[bool]: ...


def build_snapshot_prefix_hash(snapshot: _HasSnapshotId, player_set: _HasPlayers, mask: _HasPresence) -> str:
    """A hash of which players are present, the last one left out: jobs with one hash share the prompt before it.

    Raises:
        RuntimeValueError: the mask is not of these players.
    """
    players, present = player_set.player_ids, mask.present
    if len(players) != len(present):
        raise RuntimeValueError(f"a mask of {len(players)} players was expected, got one of {len(present)}")
    digest = hashlib.sha256()
    for field in (snapshot.snapshot_id, *players[:-1]):
        encoded = field.encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    digest.update(bytes([1 if is_present else 0 for is_present in present[:-1]]))
    return digest.hexdigest()[:PREFIX_HASH_CHARS]
