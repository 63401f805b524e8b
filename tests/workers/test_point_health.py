"""When a point is suspended, for how long, and what ends that; how long the next worker of a lane is waited for."""

from __future__ import annotations

from collections import deque

import pytest

from undercurrent.workers.health import (
    DEATH_WINDOW_S,
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
