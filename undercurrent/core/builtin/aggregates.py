"""What each aggregation computes, record by record: one small object per probe instance."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque

from undercurrent.core.aggregation import Aggregation, Cusum, Each, ExponentialMean, Highest, KOfN, Mean
from undercurrent.errors import ProbingValueError

__all__ = ["Aggregate", "make_aggregate"]


class Aggregate(ABC):
    """Keeps what it needs of the records so far."""

    limit: float | None = None
    """Values from here on are flagged; None where the value is a margin, whose score is held against the threshold."""
    min_records: int = 1

    @abstractmethod
    def push(self, margin: float, score: float) -> float:
        """Takes one finite record and returns the value after it."""


def make_aggregate(form: Aggregation, threshold: float | None) -> Aggregate:
    """A fresh aggregate.

    Raises:
        ProbingValueError: `k_of_n` without a threshold to count by.
    """
    if isinstance(form, Each):
        return _Each()
    if isinstance(form, Mean):
        return _Mean(form.min_records) if form.window is None else _WindowMean(form.window, form.min_records)
    if isinstance(form, Highest):
        return _Highest()
    if isinstance(form, ExponentialMean):
        return _ExponentialMean(form.alpha, form.min_records)
    if isinstance(form, Cusum):
        return _Cusum(form.limit, form.drift)
    if threshold is None:
        raise ProbingValueError("`aggregate`: 'k_of_n' counts records that reach the threshold; give a `threshold`")
    return _KOfN(form, threshold)


class _Each(Aggregate):
    def push(self, margin: float, score: float) -> float:
        return margin


class _Mean(Aggregate):
    def __init__(self, min_records: int) -> None:
        self.min_records = min_records
        self._count = 0
        self._mean = 0.0

    def push(self, margin: float, score: float) -> float:
        self._count += 1
        self._mean += (margin - self._mean) / self._count
        return self._mean


class _WindowMean(Aggregate):
    def __init__(self, window: int, min_records: int) -> None:
        self.min_records = min_records
        self._margins: deque[float] = deque(maxlen=window)

    def push(self, margin: float, score: float) -> float:
        self._margins.append(margin)
        # Not a running sum: what is subtracted again would leave its rounding behind for the rest of a generation.
        return math.fsum(self._margins) / len(self._margins)


class _Highest(Aggregate):
    def __init__(self) -> None:
        self._highest = -math.inf

    def push(self, margin: float, score: float) -> float:
        self._highest = max(self._highest, margin)
        return self._highest


class _ExponentialMean(Aggregate):
    def __init__(self, alpha: float, min_records: int) -> None:
        self.min_records = min_records
        self._alpha = alpha
        self._mean: float | None = None

    def push(self, margin: float, score: float) -> float:
        self._mean = margin if self._mean is None else self._mean + self._alpha * (margin - self._mean)
        return self._mean


class _KOfN(Aggregate):
    def __init__(self, form: KOfN, threshold: float) -> None:
        self.limit = form.k
        self._threshold = threshold
        self._hits: deque[bool] = deque(maxlen=form.n)

    def push(self, margin: float, score: float) -> float:
        self._hits.append(score >= self._threshold)
        return sum(self._hits)


class _Cusum(Aggregate):
    def __init__(self, limit: float, drift: float) -> None:
        self.limit = limit
        self._drift = drift
        self._sum = 0.0

    def push(self, margin: float, score: float) -> float:
        self._sum = max(0.0, self._sum + margin - self._drift)
        return self._sum
