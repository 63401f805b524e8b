"""How often and how long executors try."""

from __future__ import annotations

import math
from dataclasses import dataclass

from undercurrent.runtime.errors import RuntimeValueError

__all__ = ["ExecutorLimits", "require_at_least_one"]


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """Limits as an executor was given them.

    Raises:
        RuntimeValueError: one is out of range.
    """

    attempts: int
    start_timeout_s: float
    batch_timeout_s: float
    close_timeout_s: float
    idle_timeout_s: float = 900.0
    """Of actors with a name that nobody asks; processes end with their parent."""

    def __post_init__(self) -> None:
        require_at_least_one("attempts", self.attempts)
        for name in ("start_timeout_s", "batch_timeout_s", "close_timeout_s", "idle_timeout_s"):
            limit_s = getattr(self, name)
            if not (limit_s > 0 and math.isfinite(limit_s)):
                raise RuntimeValueError(f"`{name}` must be a finite number above 0, got {limit_s!r}")


def require_at_least_one(name: str, count: int) -> None:
    """Refuses a count below 1.

    Raises:
        RuntimeValueError: it is.
    """
    if count < 1:
        raise RuntimeValueError(f"`{name}` must be >= 1, got {count!r}")
