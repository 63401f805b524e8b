"""What a router uses where the caller says nothing."""

from __future__ import annotations

import os
from typing import Final

__all__ = [
    "DEFAULT_CIRCUIT_BREAKER_THRESHOLD",
    "DEFAULT_DRAIN_TIMEOUT",
    "DEFAULT_QUEUE_DEPTH",
    "default_worker_pool_size",
]

DEFAULT_QUEUE_DEPTH: Final = 32
"""Records that may wait in an async binding's ring."""
DEFAULT_DRAIN_TIMEOUT: Final = 30.0
"""Seconds that `end_request` gives all async bindings of one request together."""
DEFAULT_CIRCUIT_BREAKER_THRESHOLD: Final = 5
"""Consecutive failures of a bounded inline point that open its breaker."""

PROBE_TIMEOUT_S: Final = 30.0
"""How long one call of a probe may take in a worker before the worker is ended."""

GUARD_START_S: Final = 10.0
"""How long a registration waits for the guards of its bounded points."""
_HUNG_S_MIN: Final = 1.0
_HUNG_TIMEOUTS: Final = 10


def default_guard_timeout_s(timeout_s: float) -> float:
    """How long one call of a bounded point's probe may take before its guard is ended: ten times its bound, at least
    a second. Until then the other requests of the point wait for the guard in vain."""
    return max(_HUNG_S_MIN, _HUNG_TIMEOUTS * timeout_s)


_WORKER_POOL_SIZE_MAX = 8


def default_worker_pool_size() -> int:
    """The default `worker_pool_size`: the CPUs this process may use, at most 8.

    Workers compute; more of them than CPUs would only take turns. 0.1.0 answered `min(32, 4 * cpus)` threads, because
    each of its bindings held one for the length of a request.
    """
    has_affinity = hasattr(os, "sched_getaffinity")  # Linux only
    cpu_count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(cpu_count, _WORKER_POOL_SIZE_MAX))
