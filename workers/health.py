"""When a point's workers die too often: suspension with back-off, half-open. Pure bookkeeping, no thread."""

from __future__ import annotations

import threading
import time
from collections import deque

DEATHS_TO_SUSPEND = 3
DEATH_WINDOW_S = 60.0
SUSPENSION_S = 5.0
SUSPENSION_S_MAX = 300.0
RESTART_BACKOFF_S = 0.1
RESTART_BACKOFF_S_MAX = 5.0
KEY_COUNT_MAX = 1024
"""Keys whose deaths are remembered. More only while that many are suspended at once, each after three deaths of a
process within a minute."""


class PointHealth:
    """Deaths of the workers of one (probe class, arguments, point name). Guarded by the lock of `PointHealths`."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque(maxlen=DEATHS_TO_SUSPEND)
        self._suspended_until = 0.0
        self._suspension_s = SUSPENSION_S
        self.is_half_open = False
        self.quiet_since = 0.0
        """When it died last, or when its pause ends: monotonic seconds."""

    @property
    def is_proven(self) -> bool:
        """Whether a binding came to its end since the last suspension, or there was none."""
        return self._suspended_until == 0.0 and not self.is_half_open

    def note_death(self, now: float) -> bool:
        """Counts a death; True when it suspends the point."""
        self._deaths.append(now)
        self.quiet_since = now
        is_often = len(self._deaths) == DEATHS_TO_SUSPEND and now - self._deaths[0] <= DEATH_WINDOW_S
        if not is_often and not self.is_half_open:
            return False
        self._suspended_until = self.quiet_since = now + self._suspension_s
        self._suspension_s = min(2 * self._suspension_s, SUSPENSION_S_MAX)
        self.is_half_open = False
        self._deaths.clear()
        return True

    def note_result(self) -> None:
        """A binding came to its end: a half-open point is healthy again."""
        if self.is_half_open:
            self.is_half_open = False
            self._suspension_s = SUSPENSION_S

    def is_suspended(self, now: float | None = None) -> bool:
        """Whether new bindings are refused service now; the first one after the pause goes through half-open."""
        if self._suspended_until == 0.0:
            return False
        if (time.monotonic() if now is None else now) < self._suspended_until:
            return True
        self._suspended_until = 0.0
        self.is_half_open = True
        return False


class PointHealths:
    """The health of up to `KEY_COUNT_MAX` keys whose workers have died. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[bytes, PointHealth] = {}  # guarded by _lock

    def note_death(self, worker_key: bytes, now: float) -> bool:
        """Counts a death; True when it suspends the key."""
        with self._lock:
            if worker_key not in self._by_key:
                self._make_room(now)
                self._by_key[worker_key] = PointHealth()
            return self._by_key[worker_key].note_death(now)

    def note_result(self, worker_key: bytes) -> None:
        """A binding of the key came to its end."""
        if self._by_key:
            with self._lock:
                if worker_key in self._by_key:
                    self._by_key[worker_key].note_result()

    def is_suspended(self, worker_key: bytes) -> bool:
        """Whether new bindings of the key are refused service now; see `PointHealth.is_suspended`."""
        if not self._by_key:
            return False
        with self._lock:
            health = self._by_key.get(worker_key)
            return health is not None and health.is_suspended()

    def _make_room(self, now: float) -> None:
        """Forgets what has been healthy longest, what is to be tried again only after that, and nothing suspended."""
        excess_count = len(self._by_key) + 1 - KEY_COUNT_MAX
        if excess_count <= 0:
            return
        quiet = [item for item in self._by_key.items() if item[1].quiet_since <= now]
        quiet.sort(key=lambda item: (not item[1].is_proven, item[1].quiet_since))
        for key, _ in quiet[:excess_count]:
            del self._by_key[key]


def restart_delay_s(deaths: deque[float], now: float) -> float:
    """Returns how long to wait before the next worker: none after the first death, then doubling."""
    recent = sum(1 for death in deaths if now - death <= DEATH_WINDOW_S)
    return 0.0 if recent <= 1 else min(RESTART_BACKOFF_S * 2 ** (recent - 2), RESTART_BACKOFF_S_MAX)
