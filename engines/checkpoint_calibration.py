"""Temperatures that make a checkpoint's probabilities as often right as they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from undercurrent.predict.errors import PredictValueError

__all__ = ["Calibration", "expected_calibration_error", "fit_temperature", "tempered"]

_BINS = 15
_TEMPERATURE_MIN, _TEMPERATURE_MAX = 0.02, 50.0
_SEARCH_STEPS = 80


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A temperature by type of question."""

    temperatures: Mapping[str, float] = {}
    """`choice`, `score`, `noul`; 1 where there is none."""

    def apply(self, question_type: str, probabilities: Sequence[float]) -> list[float]:
        """The calibrated probabilities."""
        return tempered(probabilities, self.temperatures.get(question_type, 1.0))


def tempered(probabilities: Sequence[float], temperature: float) -> list[float]:
    """Probabilities whose logits were divided by a temperature: above 1 they are nearer to each other.

    See: Guo et al., "On calibration of modern neural networks" (ICML 2017).
    """
    logits = np.log(np.maximum(np.asarray(probabilities, dtype=np.float64), 1e-300)) / temperature
    weights = np.exp(logits - logits.max())
    found: list[float] = (weights / weights.sum()).tolist()
    return found


def fit_temperature(probabilities: Sequence[Sequence[float]], answers: Sequence[int]) -> float:
    """The temperature under which the right answers are likeliest, by golden-section search on its logarithm.

    Args:
        probabilities: one row per item, one number per option; rows may differ in length.
        answers: the index of each item's right option.

    Raises:
        PredictValueError: there is nothing to fit to, or an answer names no option.
    """
    if not len(probabilities) or len(probabilities) != len(answers):
        raise PredictValueError(
            f"one answer per row of probabilities was expected, got {len(answers)} for {len(probabilities)}"
        )
    for row, answer in zip(probabilities, answers, strict=True):
        if not 0 <= answer < len(row):
            raise PredictValueError(f"an answer from 0 to {len(row) - 1} was expected, got {answer!r}")

    def loss(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        pairs = zip(probabilities, answers, strict=True)
        return -sum(math.log(max(tempered(row, temperature)[answer], 1e-300)) for row, answer in pairs)

    low, high = math.log(_TEMPERATURE_MIN), math.log(_TEMPERATURE_MAX)
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    left_loss, right_loss = loss(left), loss(right)
    for _ in range(_SEARCH_STEPS):
        if high - low < 1e-4:
            break
        if left_loss < right_loss:
            high, right, right_loss = right, left, left_loss
            left = high - ratio * (high - low)
            left_loss = loss(left)
        else:
            low, left, left_loss = left, right, right_loss
            right = low + ratio * (high - low)
            right_loss = loss(right)
    return math.exp((low + high) / 2)


def expected_calibration_error(confidences: Sequence[float], is_right: Sequence[bool]) -> float:
    """How far confidence and accuracy lie apart, weighted over 15 bins of equal width, 0 to 1.

    See: Guo et al. 2017, equation 3.
    """
    confidence, right = np.asarray(confidences, dtype=np.float64), np.asarray(is_right, dtype=np.float64)
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [
        abs(confidence[bins == index].mean() - right[bins == index].mean()) * (bins == index).mean()
        for index in np.unique(bins)
    ]
    return float(sum(gaps))
