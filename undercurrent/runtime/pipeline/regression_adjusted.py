"""Shapley values by sampling, with the error of a linear fit sampled instead of the values themselves.

See: Witter, Liu and Musco, "Regression-adjusted Monte Carlo estimators for Shapley values and probabilistic values"
(2025): for any fit f the Shapley value of v is that of f plus that of v - f. A linear f has its slopes for Shapley
values, and what is sampled is small where f is good. Each part is corrected with a fit to the others, which keeps the
estimate unbiased.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from undercurrent.runtime.pipeline.game import CoalitionGame

__all__ = ["RegressionAdjusted"]

_FOLDS = 5


class _Found(msgspec.Struct, frozen=True):
    """Values by players, in the form of `shapiq`."""

    dict_values: dict[tuple[int, ...], float]


class RegressionAdjusted:
    """One run of the estimator."""

    def __init__(self, n: int, random_state: int) -> None:
        self._count = n
        self._random = np.random.default_rng(random_state)

    def approximate(self, budget: int, game: CoalitionGame) -> _Found:
        """Measures `budget` coalitions at most, in one batch; pairs of a coalition and its complement."""
        count = self._count
        sizes = self._random.integers(0, count + 1, size=budget // 2)
        ranks = self._random.random((len(sizes), count)).argsort(axis=1).argsort(axis=1)
        half = ranks < sizes[:, None]
        masks = np.vstack([half, ~half])
        pair_folds = self._random.permutation(len(half)) % _FOLDS
        folds = np.concatenate([pair_folds, pair_folds])
        measured = game(masks)
        values = np.zeros(count)
        for fold in range(_FOLDS):
            is_held = folds == fold
            slopes, residuals = _fit(masks, measured, is_held)
            values += (slopes + _sampled(masks[is_held], residuals)) * is_held.mean()
        return _Found({(player,): float(value) for player, value in enumerate(values)})


def _fit(
    masks: np.ndarray[Any, Any], measured: np.ndarray[Any, Any], is_held: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Slopes of a linear fit to what is not held out, and its errors on what is."""
    design = np.hstack([masks.astype(np.float64), np.ones((len(masks), 1))])
    solved, *_ = np.linalg.lstsq(design[~is_held], measured[~is_held], rcond=None)
    return solved[:-1], measured[is_held] - design[is_held] @ solved


def _sampled(masks: np.ndarray[Any, Any], residuals: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The Shapley values of the residuals, from coalitions of uniform size: every one counts for every player.

    A coalition of size s is drawn with probability 1 / ((n + 1) C(n, s)); its weight in a Shapley value, 1 / (n C(n-1,
    s-1)) for those present and -1 / (n C(n-1, s)) for the others, over that probability is (n + 1) / s and
    -(n + 1) / (n - s).
    """
    count = masks.shape[1]
    sizes = masks.sum(axis=1, keepdims=True)
    weights = np.where(masks, (count + 1) / np.maximum(sizes, 1), -(count + 1) / np.maximum(count - sizes, 1))
    found: np.ndarray[Any, Any] = (weights * residuals[:, None]).mean(axis=0)
    return found
