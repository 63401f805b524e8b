"""Temperatures that make a checkpoint's probabilities as often right as they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from undercurrent.predict.errors import PredictValueError

__all__ = ["Calibration", "bucket_of", "expected_calibration_error", "fit_temperature", "softened", "tempered"]

_BINS = 15
_TEMPERATURE_MIN, _TEMPERATURE_MAX = 0.02, 50.0
_SEARCH_STEPS = 80
_SMALLEST = 1e-300


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Temperatures by type of question, and by type and number of options where they are known more closely."""

    temperatures: Mapping[str, float] = {}
    """Keys are `choice`, `score`, `noul`, or a bucket like `choice:3-5`, which wins; 1 where there is neither."""

    def __post_init__(self) -> None:
        for key, value in self.temperatures.items():
            if not math.isfinite(value) or value <= 0.0:
                raise PredictValueError(f"a temperature above 0 was expected for {key!r}, got {value!r}")

    def temperature(self, question_type: str, option_count: int) -> float:
        """What logits of such a question are divided by."""
        by_type = self.temperatures.get(question_type, 1.0)
        return self.temperatures.get(bucket_of(question_type, option_count), by_type)

    def apply(self, question_type: str, probabilities: Sequence[float]) -> list[float]:
        """The calibrated probabilities."""
        return tempered(probabilities, self.temperature(question_type, len(probabilities)))


def bucket_of(question_type: str, option_count: int) -> str:
    """The bucket of a question, as thresholds of `min_confidence` name it too: `choice:3-5`."""
    size = "2" if option_count <= 2 else "3-5" if option_count <= 5 else "6-10" if option_count <= 10 else "11+"
    return f"{question_type}:{size}"


def softened(logits: Sequence[float], temperature: float) -> list[float]:
    """The softmax of logits divided by a temperature, in float64."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    found: list[float] = (weights / weights.sum()).tolist()
    return found


def tempered(probabilities: Sequence[float], temperature: float) -> list[float]:
    """Probabilities whose logits were divided by a temperature: above 1 they are nearer to each other.

    See: Guo et al., "On calibration of modern neural networks" (ICML 2017).
    """
    logits = np.log(np.maximum(np.asarray(probabilities, dtype=np.float64), _SMALLEST))
    return softened(logits.tolist(), temperature)


def fit_temperature(probabilities: Sequence[Sequence[float]], answers: Sequence[int]) -> float:
    """The temperature under which the right answers are likeliest, by golden-section search on its logarithm.

    Args:
        probabilities: one row per item, one number per option, uncalibrated; rows may differ in length.
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
        return -sum(math.log(max(tempered(row, temperature)[answer], _SMALLEST)) for row, answer in pairs)

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

    Raises:
        PredictValueError: there is nothing to measure, or the two differ in length.
    """
    if not len(confidences) or len(confidences) != len(is_right):
        raise PredictValueError(
            f"one confidence per answer was expected, at least one, got {len(confidences)} for {len(is_right)}"
        )
    confidence, right = np.asarray(confidences, dtype=np.float64), np.asarray(is_right, dtype=np.float64)
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [
        abs(confidence[bins == index].mean() - right[bins == index].mean()) * (bins == index).mean()
        for index in np.unique(bins)
    ]
    return float(sum(gaps))
