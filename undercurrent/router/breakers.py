"""Breakers: a bounded inline point that fails again and again is not asked for a while, and its policy answers.

One breaker per point name, for all requests of a router. It never makes a point unbounded: while it is open, each
record gets what `on_timeout` says, at once.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final, Literal

from undercurrent.errors import RouterError, did_you_mean
from undercurrent.router.tally import Tally

__all__ = ["Breaker", "BreakerCounts", "BreakerStatus", "Breakers"]

PAUSE_S: Final = 5.0
"""How long a breaker stays open before it lets one record through; doubles with each failed try."""
PAUSE_S_MAX: Final = 300.0

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class BreakerCounts:
    """What happened at a breaker since its router was made; no count ever falls."""

    answered: int = 0
    """Records that the probe answered in time."""
    timeouts: int = 0
    """Records whose answer did not come in time."""
    failures: int = 0
    """Records that got no answer for another reason: the probe raised, or its guard died or could not be had."""
    short_circuited: int = 0
    """Records that the policy answered because the breaker was open."""
    trips: int = 0
    """How often it opened, failed tries included."""


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """One breaker as it is now."""

    point: str
    state: BreakerState
    failures: int
    """Consecutive ones; `circuit_breaker_threshold` of them open the breaker."""
    trips: int
    opened_at: float | None
    """Seconds since the epoch; None while it is closed."""
    retry_at: float | None
    """When the next record is let through, seconds since the epoch; None while it is closed."""
    counts: BreakerCounts


class Breaker:
    """The breaker of one point. Thread-safe."""

    def __init__(self, point: str, threshold: int) -> None:
        self.point = point
        self._threshold = threshold
        self._lock = threading.Lock()
        self._state: BreakerState = "closed"  # guarded by _lock, as is all below
        self._failures = 0
        self._pause_s = PAUSE_S
        self._opened_at = 0.0  # the three are monotonic
        self._retry_at = 0.0
        self._is_trial_out = False
        self._answered = Tally()
        self._timeouts = self._failed = self._short_circuited = self._trips = 0

    @property
    def is_closed(self) -> bool:
        """Whether the point is asked as usual."""
        return self._state == "closed"

    def admit(self) -> bool:
        """Whether the next record may be sent; exactly one of `note_answer`, `note_failure`, `note_unsent` follows."""
        if self._state == "closed":
            return True
        with self._lock:
            if self._state == "open" and time.monotonic() >= self._retry_at:
                self._state = "half_open"
            if self._state == "half_open" and self._is_trial_out:
                self._short_circuited += 1
                return False
            if self._state == "open":
                self._short_circuited += 1
                return False
            self._is_trial_out = self._state == "half_open"
            return True

    def note_answer(self) -> None:
        """The probe answered in time; closes a half-open breaker."""
        self._answered.bump()
        # Without the lock, as this is said once per record: a failure that is noted at the same time on another thread
        # comes behind the answer.
        if self._failures == 0 and self._state == "closed":
            return
        with self._lock:
            if self._state == "open":  # sent before it opened
                return
            self._failures = 0
            if self._state == "half_open":
                self._close()

    def note_failure(self, *, is_timeout: bool) -> int:
        """There was no answer. Returns the number of consecutive failures when that opens a closed breaker, else 0."""
        with self._lock:
            if is_timeout:
                self._timeouts += 1
            else:
                self._failed += 1
            if self._state == "open":
                return 0
            self._failures += 1
            if self._state == "half_open":
                self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
                self._open()
                return 0
            if self._failures < self._threshold:
                return 0
            self._open()
            return self._failures

    def note_unsent(self) -> None:
        """What `admit` let through was not sent, so that nothing is known about the point."""
        with self._lock:
            self._is_trial_out = False

    def reset(self) -> None:
        """Closes the breaker and forgets its failures; its counts stay."""
        with self._lock:
            self._failures = 0
            self._close()

    def status(self) -> BreakerStatus:
        """The breaker as it is now."""
        with self._lock:
            is_closed = self._state == "closed"
            to_wall_s = time.time() - time.monotonic()
            return BreakerStatus(
                point=self.point,
                state=self._state,
                failures=self._failures,
                trips=self._trips,
                opened_at=None if is_closed else self._opened_at + to_wall_s,
                retry_at=None if is_closed else self._retry_at + to_wall_s,
                counts=BreakerCounts(
                    self._answered.value, self._timeouts, self._failed, self._short_circuited, self._trips
                ),
            )

    def _open(self) -> None:
        now = time.monotonic()
        if self._state == "closed":
            self._opened_at = now
        self._state = "open"
        self._is_trial_out = False
        self._trips += 1
        self._retry_at = now + self._pause_s

    def _close(self) -> None:
        self._state = "closed"
        self._is_trial_out = False
        self._pause_s = PAUSE_S


class Breakers:
    """The breakers of one router, made when their points are first registered. Thread-safe."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._lock = threading.Lock()
        # As many as there are guards, whose number is bounded.
        self._by_point: dict[str, Breaker] = {}  # guarded by _lock

    def of(self, point_name: str) -> Breaker:
        """The breaker of a point."""
        with self._lock:
            return self._by_point.setdefault(point_name, Breaker(point_name, self._threshold))

    def statuses(self) -> dict[str, BreakerStatus]:
        """Every breaker as it is now, by point name."""
        with self._lock:
            breakers = list(self._by_point.values())
        return {breaker.point: breaker.status() for breaker in breakers}

    def reset(self, point_name: str) -> None:
        """Closes one breaker.

        Raises:
            RouterError: no bounded point of that name was registered.
        """
        with self._lock:
            breaker = self._by_point.get(point_name)
            known = list(self._by_point)
        if breaker is None:
            listing = ", ".join(map(repr, known)) or "none"
            raise RouterError(
                f"no bounded inline point {point_name!r} was registered{did_you_mean(str(point_name), known)}; points "
                f"with a breaker: {listing}"
            )
        breaker.reset()

    def renew_after_fork(self) -> None:
        """In a forked child: new breakers, as locks may have been held and no guard is the child's."""
        self._lock = threading.Lock()
        self._by_point = {}
