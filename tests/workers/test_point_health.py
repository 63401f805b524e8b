"""When a point is suspended, for how long, and what ends that; how long the next worker of a lane is waited for."""

from __future__ import annotations

from collections import deque

import pytest

from undercurrent.workers.health import (
    DEATH_WINDOW_S,
    KEY_COUNT_MAX,
    RESTART_BACKOFF_S,
    RESTART_BACKOFF_S_MAX,
    SUSPENSION_S,
    SUSPENSION_S_MAX,
    PointHealth,
    PointHealths,
    restart_delay_s,
)


def suspended(now: float = 0.0) -> PointHealth:
    """A point that three deaths at one moment have suspended."""
    health = PointHealth()
    assert [health.note_death(now) for _ in range(3)] == [False, False, True]
    return health


def test_three_deaths_within_a_minute_suspend() -> None:
    health = PointHealth()
    assert [health.note_death(now) for now in (0.0, 30.0, DEATH_WINDOW_S)] == [False, False, True]
    assert health.is_suspended(DEATH_WINDOW_S)


def test_three_deaths_in_more_than_a_minute_do_not() -> None:
    health = PointHealth()
    moments = [n * (DEATH_WINDOW_S / 2 + 0.1) for n in range(10)]
    assert not any(health.note_death(now) for now in moments)
    assert not health.is_suspended(moments[-1])


def test_after_the_pause_the_point_is_tried_again() -> None:
    health = suspended()
    assert health.is_suspended(SUSPENSION_S - 0.1)
    assert not health.is_half_open
    assert not health.is_suspended(SUSPENSION_S)
    assert health.is_half_open


def test_one_death_of_a_point_that_is_tried_suspends_it_for_twice_as_long_up_to_a_limit() -> None:
    health = suspended()
    now, pause_s = 0.0, SUSPENSION_S
    for _ in range(10):
        now += pause_s
        assert not health.is_suspended(now)
        assert health.note_death(now)
        pause_s = min(2 * pause_s, SUSPENSION_S_MAX)
        assert health.is_suspended(now + pause_s - 0.1)
    assert pause_s == SUSPENSION_S_MAX


def test_a_result_of_a_point_that_is_tried_makes_it_healthy() -> None:
    health = suspended()
    assert not health.is_suspended(SUSPENSION_S)
    health.note_result()
    assert not health.note_death(SUSPENSION_S + 1)
    assert [health.note_death(SUSPENSION_S + 2) for _ in range(2)] == [False, True]
    assert not health.is_suspended(2 * SUSPENSION_S + 2)


def test_a_result_before_the_pause_is_over_ends_nothing() -> None:
    health = suspended()
    health.note_result()
    assert health.is_suspended(SUSPENSION_S - 0.1)


def test_points_are_suspended_each_for_itself() -> None:
    healths = PointHealths()
    assert not healths.is_suspended(b"a")
    healths.note_result(b"a")
    assert [healths.note_death(b"a", 1e12) for _ in range(3)] == [False, False, True]
    assert healths.is_suspended(b"a")
    assert not healths.is_suspended(b"b")


def full(now: float = 0.0) -> PointHealths:
    """As many keys as are remembered, `key(0)` healthy longest; each died once."""
    healths = PointHealths()
    for n in range(KEY_COUNT_MAX):
        healths.note_death(key(n), now + n / KEY_COUNT_MAX)
    return healths


def key(n: int) -> bytes:
    return f"point-{n}".encode()


def keys_of(healths: PointHealths) -> set[bytes]:
    return set(healths._by_key)


def test_what_has_been_healthy_longest_is_forgotten_for_a_new_key() -> None:
    healths = full()
    healths.note_death(key(0), 1.0)  # it died again: the next one has been healthy longest
    healths.note_death(b"new", 2.0)
    assert keys_of(healths) == {key(n) for n in range(KEY_COUNT_MAX) if n != 1} | {b"new"}


def test_a_key_that_is_remembered_dies_again_at_the_cost_of_no_other() -> None:
    healths = full()
    before = keys_of(healths)
    assert [healths.note_death(key(0), 1.0) for _ in range(2)] == [False, True]
    assert keys_of(healths) == before


def test_however_many_points_die_a_bounded_number_is_remembered_and_no_suspension_forgotten() -> None:
    healths = PointHealths()
    assert [healths.note_death(b"bad", 1e12) for _ in range(3)] == [False, False, True]
    for n in range(3 * KEY_COUNT_MAX):
        healths.note_death(key(n), 1e12 + n / (3 * KEY_COUNT_MAX))
    assert len(keys_of(healths)) == KEY_COUNT_MAX
    assert healths.is_suspended(b"bad")


def test_a_key_that_is_tried_again_is_forgotten_after_the_healthy_ones_only() -> None:
    healths = PointHealths()
    for _ in range(3):
        healths.note_death(b"tried", -2 * SUSPENSION_S)  # its pause is over in every reading of the clock
    assert not healths.is_suspended(b"tried")
    for n in range(2 * KEY_COUNT_MAX):
        healths.note_death(key(n), float(n))
    assert b"tried" in keys_of(healths)
    assert healths.note_death(b"tried", 2.0 * KEY_COUNT_MAX)


def test_suspended_keys_stay_above_the_limit_and_go_when_their_pause_is_over() -> None:
    healths = PointHealths()
    for n in range(KEY_COUNT_MAX + 10):
        assert [healths.note_death(key(n), 0.0) for _ in range(3)][2]
    assert len(keys_of(healths)) == KEY_COUNT_MAX + 10
    healths.note_death(b"new", SUSPENSION_S)
    assert len(keys_of(healths)) == KEY_COUNT_MAX
    assert b"new" in keys_of(healths)


@pytest.mark.parametrize(
    ("deaths", "delay_s"),
    [
        ([], 0.0),
        ([0.0], 0.0),
        ([0.0, 0.0], RESTART_BACKOFF_S),
        ([0.0] * 4, 4 * RESTART_BACKOFF_S),
        ([0.0] * 30, RESTART_BACKOFF_S_MAX),
        ([-DEATH_WINDOW_S - 1] * 30 + [0.0], 0.0),
    ],
)
def test_the_next_worker_comes_at_once_after_the_first_death_and_later_after_each_further_one(
    deaths: list[float], delay_s: float
) -> None:
    assert restart_delay_s(deque(deaths), 0.0) == delay_s
