"""When a failed generation is tried again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec

from undercurrent.runtime.errors import GenerationTypeError, RuntimeValueError

__all__ = ["RetryPolicy"]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and after what pauses, a failed generation is tried again.

    The pause doubles with each attempt and is shortened at random by up to `jitter`, so that jobs that failed together
    do not come back together.
    """

    attempts: int = 1
    """Calls of the generator for one job, the first one included."""
    first_pause_s: float = 0.5
    """Pause before the second attempt."""
    longest_pause_s: float = 30.0
    jitter: float = 0.5
    """Share of a pause that chance may take away, 0 to 1."""
    attempt_timeout_s: float | None = None
    """Longest attempt; a longer one is cancelled and counts as failed. None is no limit."""
    retry_on: tuple[type[Exception], ...] = (Exception,)
    """What is tried again. What a model returned in a wrong type never is: it would come again."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise RuntimeValueError(f"`attempts` must be >= 1, got {self.attempts!r}")
        for name in ("first_pause_s", "longest_pause_s"):
            pause_s = getattr(self, name)
            if not (math.isfinite(pause_s) and pause_s >= 0):
                raise RuntimeValueError(f"`{name}` must be a finite number >= 0, got {pause_s!r}")
        if not 0 <= self.jitter <= 1:
            raise RuntimeValueError(f"`jitter` must be from 0 to 1, got {self.jitter!r}")
        if self.attempt_timeout_s is not None and not self.attempt_timeout_s > 0:
            raise RuntimeValueError(f"`attempt_timeout_s` must be above 0, got {self.attempt_timeout_s!r}")

    def is_retried(self, error: BaseException, attempt: int) -> bool:
        """Tells whether attempt number `attempt` (the first is 1), which failed with `error`, is tried again."""
        if attempt >= self.attempts or isinstance(error, GenerationTypeError):
            return False
        return isinstance(error, self.retry_on)

    def pause_s(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after attempt number `attempt`; `chance` gives numbers from 0 to 1."""
        # The exponent is bounded: 2.0 ** 1024 raises.
        longest_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(attempt - 1, 62))
        return longest_s * (1 - self.jitter * chance())
