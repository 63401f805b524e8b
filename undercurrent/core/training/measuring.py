"""What a probe is worth on texts it was not trained on: plain numbers, with intervals."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from undercurrent.core.training.intervals import Estimate, Rate, area_under_curve, bootstrap_groups
from undercurrent.core.training.libraries import load_library
from undercurrent.errors import ProbingValueError

__all__ = ["Evaluation", "ReliabilityBin", "RocCurve", "evaluate", "threshold_at_false_positive_rate"]

Array = np.ndarray[Any, Any]

BIN_COUNT = 10
RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class RocCurve:
    """Points from (0, 0) to (1, 1), one per threshold that changes something."""

    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]
    thresholds: tuple[float, ...]
    """Items that score at least this count as positive; the first is infinite."""


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """The items whose score lies in `[low, high)`."""

    low: float
    high: float
    mean_score: float
    positives: Rate


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one probe on held-out items. Intervals are 95 %."""

    count: int
    group_count: int
    base_rate: Rate
    """The share of positives: what guessing has to go by."""
    threshold: float
    accuracy: Rate
    accuracy_of_groups: Estimate | None
    """The accuracy with an interval that draws whole groups; None where every item is a group of its own."""
    true_positives: Rate
    """Of the positives, those at or above the threshold."""
    false_positives: Rate
    """Of the negatives, those at or above the threshold."""
    auc: Estimate
    auc_of_groups: Estimate | None
    roc: RocCurve
    calibration_error: Estimate | None
    """Expected calibration error; None where scores are no chances."""
    calibration_error_floor: float | None
    """What a perfectly calibrated probe with these scores would get on average: so few items never look perfect."""
    bins: tuple[ReliabilityBin, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists; each rate with its value and interval. An infinite threshold becomes None."""
        return _plain(self)  # type: ignore[no-any-return]


def evaluate(
    scores: Any,
    is_positive: Any,
    *,
    threshold: float,
    groups: Any = None,
    is_probability: bool = True,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Evaluation:
    """Measures scores `(n,)` against truth `(n,)`; `groups` names items that resemble each other.

    Expected calibration error: the mean distance between score and share of positives over 10 bins of equal width,
    weighted by items. See: Guo, Pleiss, Sun, Weinberger (2017), On calibration of modern neural networks, ICML.

    Raises:
        ProbingValueError: lengths differ, a score is NaN, or a class is missing.
        MissingDependencyError: the extra `train` is not installed.
    """
    found, truth = np.asarray(scores, np.float64), np.asarray(is_positive, bool)
    if found.ndim != 1 or found.shape != truth.shape:
        raise ProbingValueError(f"expected one score per item, got shapes {found.shape} and {truth.shape}")
    if np.isnan(found).any():
        raise ProbingValueError(f"{int(np.isnan(found).sum())} of {len(found)} scores are NaN; look at the activations")
    own = np.arange(len(found)) if groups is None else np.asarray(groups)
    is_grouped = len(np.unique(own)) < len(own)
    auc = area_under_curve(found, truth)
    is_right = (found >= threshold) == truth
    accuracy = Rate(int(is_right.sum()), len(found))

    def draw(measure: Any, value: float) -> Estimate:
        return bootstrap_groups(measure, own, value=value, resamples=resamples, seed=seed)

    def area_of(chosen: Array) -> float:
        if truth[chosen].all() or not truth[chosen].any():
            return math.nan
        return area_under_curve(found[chosen], truth[chosen]).value

    is_chance = is_probability and bool(((found >= 0) & (found <= 1)).all())
    error = _calibration_error(found, truth) if is_chance else 0.0
    rates, hits, thresholds = load_library("sklearn.metrics").roc_curve(truth, found)
    return Evaluation(
        count=len(found),
        group_count=len(np.unique(own)),
        base_rate=Rate(int(truth.sum()), len(truth)),
        threshold=float(threshold),
        accuracy=accuracy,
        accuracy_of_groups=draw(lambda chosen: float(is_right[chosen].mean()), accuracy.rate) if is_grouped else None,
        true_positives=Rate(int((found[truth] >= threshold).sum()), int(truth.sum())),
        false_positives=Rate(int((found[~truth] >= threshold).sum()), int((~truth).sum())),
        auc=auc,
        auc_of_groups=draw(area_of, auc.value) if is_grouped else None,
        roc=RocCurve(tuple(rates.tolist()), tuple(hits.tolist()), tuple(thresholds.tolist())),
        calibration_error=(
            draw(lambda chosen: _calibration_error(found[chosen], truth[chosen]), error) if is_chance else None
        ),
        calibration_error_floor=_error_floor(found, resamples, seed) if is_chance else None,
        bins=_bins(found, truth) if is_chance else (),
    )


def threshold_at_false_positive_rate(scores: Any, is_positive: Any, rate: float) -> float:
    """The lowest threshold at which at most `rate` of the negatives are flagged.

    Choose it on items that are neither trained on nor reported on.

    >>> threshold_at_false_positive_rate([0.1, 0.2, 0.3, 0.9], [False, False, False, True], 1 / 3) > 0.2
    True

    Raises:
        ProbingValueError: no negatives, or a rate outside of 0 to 1.
    """
    if not 0 <= rate <= 1:
        raise ProbingValueError(f"a false positive rate lies between 0 and 1, got {rate!r}")
    negatives = np.sort(np.asarray(scores, np.float64)[~np.asarray(is_positive, bool)])[::-1]
    if not len(negatives):
        raise ProbingValueError("a false positive rate needs negative items, got none")
    allowed = int(rate * len(negatives) + 1e-9)
    if allowed == len(negatives):
        return float(negatives[-1])
    return float(np.nextafter(negatives[allowed], np.inf))


def _bin_of(scores: Array) -> Array:
    return np.minimum((scores * BIN_COUNT).astype(np.int64), BIN_COUNT - 1)


def _calibration_error(scores: Array, truth: Array) -> float:
    gaps = np.bincount(_bin_of(scores), weights=scores - truth, minlength=BIN_COUNT)
    return float(np.abs(gaps).sum() / len(scores))


def _error_floor(scores: Array, resamples: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    drawn = [_calibration_error(scores, rng.random(len(scores)) < scores) for _ in range(min(resamples, 200))]
    return float(np.mean(drawn))


def _bins(scores: Array, truth: Array) -> tuple[ReliabilityBin, ...]:
    places = _bin_of(scores)
    return tuple(
        ReliabilityBin(
            low=index / BIN_COUNT,
            high=(index + 1) / BIN_COUNT,
            mean_score=float(scores[places == index].mean()),
            positives=Rate(int(truth[places == index].sum()), int((places == index).sum())),
        )
        for index in range(BIN_COUNT)
        if (places == index).any()
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Rate):
        low, high = value.interval
        return {"rate": value.rate, "low": low, "high": high, "hits": value.hits, "count": value.count}
    if isinstance(value, Estimate):
        return asdict(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
