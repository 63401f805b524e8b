"""Model states are found by the longest prefix of tokens, croppable ones by any they share; the least used goes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercurrent.runtime import CroppableCache, PrefixCacheManager, build_snapshot_prefix_hash

TOKENS = st.lists(st.integers(0, 2), max_size=12)


class Cropped:
    """A state that can be cut."""

    def crop(self, max_length: int) -> None:
        self.length = max_length


class Plain:
    """A state that cannot."""


def test_a_plain_state_stands_for_its_own_tokens_only() -> None:
    cache, state = PrefixCacheManager(), Plain()
    cache.store([1, 2, 3], state)
    assert cache.longest_prefix([1, 2, 3, 4]) == (state, 3)
    assert cache.longest_prefix([1, 2, 4]) == (None, 0)
    assert cache.longest_prefix([1, 2, 3]) == (None, 0)
    assert (cache.hits, cache.misses) == (1, 2)


def test_a_croppable_state_is_matched_on_any_shared_leading_tokens() -> None:
    cache, state = PrefixCacheManager(), Cropped()
    assert isinstance(state, CroppableCache)
    assert not isinstance(Plain(), CroppableCache)
    cache.store([1, 2, 3, 4], state)
    assert cache.longest_prefix([1, 2, 9, 9]) == (state, 2)
    assert cache.longest_prefix([1, 2, 3, 4]) == (state, 3)
    assert cache.longest_prefix([9]) == (None, 0)


def test_the_longest_prefix_wins() -> None:
    cache = PrefixCacheManager()
    short, long = Plain(), Plain()
    cache.store([1], short)
    cache.store([1, 2], long)
    assert cache.longest_prefix([1, 2, 3]) == (long, 2)
    assert cache.longest_prefix([1, 3]) == (short, 1)


def test_beyond_max_entries_the_least_recently_used_goes() -> None:
    cache = PrefixCacheManager(max_entries=2)
    first, second, third = Plain(), Plain(), Plain()
    cache.store([1], first)
    cache.store([2], second)
    assert cache.longest_prefix([1, 0]) == (first, 1)
    cache.store([3], third)
    assert len(cache) == 2
    assert cache.longest_prefix([2, 0]) == (None, 0)
    assert cache.longest_prefix([1, 0]) == (first, 1)
    assert PrefixCacheManager().max_entries == 8


def test_a_state_stored_again_replaces_the_old_one() -> None:
    cache, new = PrefixCacheManager(), Plain()
    cache.store([1], Plain())
    cache.store([1], new)
    assert len(cache) == 1
    assert cache.longest_prefix([1, 2]) == (new, 1)


def test_reset_forgets_states_and_counts() -> None:
    cache = PrefixCacheManager()
    cache.store([1], Plain())
    cache.longest_prefix([1, 2])
    cache.reset()
    assert (len(cache), cache.hits, cache.misses) == (0, 0, 0)
    assert cache.longest_prefix([1, 2]) == (None, 0)


@given(st.lists(st.tuples(TOKENS, st.booleans()), max_size=6), TOKENS)
def test_the_answer_is_the_one_a_plain_search_gives(known: list[tuple[list[int], bool]], wanted: list[int]) -> None:
    cache = PrefixCacheManager(max_entries=6)
    for tokens, is_croppable in known:
        cache.store(tokens, Cropped() if is_croppable else Plain())

    def covered(tokens: list[int], is_croppable: bool) -> int:
        shared = 0
        while shared < min(len(tokens), len(wanted) - 1) and tokens[shared] == wanted[shared]:
            shared += 1
        return shared if is_croppable or shared == len(tokens) else 0

    latest = {tuple(tokens): is_croppable for tokens, is_croppable in known}
    best = max((covered(list(tokens), is_croppable) for tokens, is_croppable in latest.items()), default=0)
    assert cache.longest_prefix(wanted)[1] == best


def test_a_cache_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="`max_entries` must be >= 1"):
        PrefixCacheManager(max_entries=0)


def prefix_hash(present: tuple[bool, ...], players: tuple[str, ...] = ("a", "b", "c"), snapshot: str = "s") -> str:
    return build_snapshot_prefix_hash(
        SimpleNamespace(snapshot_id=snapshot), SimpleNamespace(player_ids=players), SimpleNamespace(present=present)
    )


def test_the_prefix_hash_leaves_the_last_player_out() -> None:
    assert prefix_hash((True, False, True)) == prefix_hash((True, False, False))
    assert prefix_hash((True, False, True)) != prefix_hash((True, True, True))
    assert prefix_hash((True, False, True)) != prefix_hash((True, False, True), snapshot="t")
    assert prefix_hash((True, False, True)) != prefix_hash((True, False, True), players=("a", "d", "c"))
    assert prefix_hash((True,), ("a",)) == prefix_hash((False,), ("a",))
    assert len(prefix_hash((True, False, True))) == 16


def test_a_mask_of_other_players_is_refused() -> None:
    with pytest.raises(ValueError, match="a mask of 3 players was expected, got one of 2"):
        prefix_hash((True, False))
