"""Rates and areas with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from undercurrent.core.training.libraries import load_library
from undercurrent.errors import ProbingValueError

__all__ = ["Estimate", "Rate", "area_under_curve", "bootstrap_groups"]

Array = np.ndarray[Any, Any]

_Z = 1.959964
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """So many of so many."""

    hits: int
    count: int

    @property
    def rate(self) -> float:
        """Between 0 and 1; NaN of nothing."""
        return self.hits / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate (Wilson): unlike the usual one it is right at 0 and at 1.

        >>> tuple(round(bound, 3) for bound in Rate(10, 10).interval)
        (0.722, 1.0)
        """
        if not self.count:
            return 0.0, 1.0
        test = load_library("scipy.stats").binomtest(self.hits, self.count)
        bounds = test.proportion_ci(_LEVEL, method="wilson")
        return float(bounds.low), float(bounds.high)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float
    method: str
    """How the interval was found."""


def area_under_curve(scores: Array, is_positive: Array) -> Estimate:
    """The area under the ROC curve: the chance that a positive scores above a negative, ties counting half.

    The interval is DeLong's, and Newcombe's where DeLong's variance is 0 because the two classes are fully apart.

    See: DeLong, DeLong, Clarke-Pearson (1988), Comparing the areas under two or more correlated receiver operating
    characteristic curves, Biometrics 44, 837-845; Newcombe (2006), Confidence intervals for an effect size measure
    based on the Mann-Whitney statistic, part 2, Statistics in Medicine 25, 559-573 (method 5).
    """
    positives, negatives = scores[is_positive], scores[~is_positive]
    m, n = len(positives), len(negatives)
    if not m or not n:
        raise ProbingValueError(f"a ROC curve needs both classes, got {m} positive and {n} negative items")
    rank = load_library("scipy.stats").rankdata
    among_all = rank(np.concatenate([positives, negatives]))
    over_negatives = (among_all[:m] - rank(positives)) / n
    over_positives = 1 - (among_all[m:] - rank(negatives)) / m
    area = float(over_negatives.mean())
    variance = 0.0
    if m > 1 and n > 1:
        variance = float(over_negatives.var(ddof=1)) / m + float(over_positives.var(ddof=1)) / n
    if variance <= 0:
        low, high = _newcombe_bounds(area, m, n)
        return Estimate(area, low, high, "Newcombe")
    half = _Z * math.sqrt(variance)
    return Estimate(area, max(0.0, area - half), min(1.0, area + half), "DeLong")


def _newcombe_bounds(area: float, m: int, n: int) -> tuple[float, float]:
    """The areas that lie just as far from the observed one as their own standard error allows."""

    def is_within(candidate: float) -> bool:
        share = (m + n) / 2 - 1
        spread = (1 - candidate) / (2 - candidate) + candidate / (1 + candidate)
        variance = candidate * (1 - candidate) * (1 + share * spread) / (m * n)
        return abs(area - candidate) <= _Z * math.sqrt(variance)

    def find_bound(end: float) -> float:
        inside, outside = area, end
        for _ in range(60):  # halves the distance each time: beyond the precision of a float
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if is_within(middle) else (inside, middle)
        return inside

    return find_bound(0.0), find_bound(1.0)


def bootstrap_groups(
    measure: Callable[[Array], float], groups: Array, *, value: float, resamples: int, seed: int
) -> Estimate:
    """The percentile interval of `measure(indices)` when whole groups are drawn with replacement.

    Items of one group resemble each other; drawing items would count them as so many witnesses.

    See: Efron, Tibshirani (1993), An introduction to the bootstrap, chapters 8 and 13.
    """
    _, codes = np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(codes == code) for code in range(int(codes.max()) + 1)]
    rng = np.random.default_rng(seed)
    found = np.empty(resamples)
    for index in range(resamples):
        drawn = rng.integers(0, len(members), len(members))
        found[index] = measure(np.concatenate([members[code] for code in drawn]))
    low, high = np.nanquantile(found, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Estimate(value, float(low), float(high), f"bootstrap of {len(members)} groups")
