"""Two small probes to read, to try the router with, and to start from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Real
from typing import TYPE_CHECKING, Any

from undercurrent.core.arrays import as_array
from undercurrent.core.base import Probe
from undercurrent.core.batch import ActivationBatch
from undercurrent.core.signals import ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import ProbingTypeError, ProbingValueError
from undercurrent.spec import ActivationRecord, ProbeKind

if TYPE_CHECKING:
    import numpy as np

__all__ = ["MLPClassifierProbe", "TrajectoryScoreProbe"]


class TrajectoryScoreProbe(Probe):
    """Keeps the running mean of activation means and asks to abort when it first reaches `threshold`.

    A mean that is not a number asks to abort too: a score that cannot be compared must not pass as harmless.
    """

    probe_kind = ProbeKind.TRAJECTORY.value
    reads_in_place = True

    def __init__(self, threshold: float = 0.8) -> None:
        self._threshold = _require_threshold(threshold)
        self._running_sum = 0.0
        self._count = 0
        self._aborted = False
        self._signal_history: list[ProbeSignal] = []

    def on_start(self, request_ctx: RequestContext) -> None:
        """Forgets everything, so that an instance can watch again."""
        self._running_sum = 0.0
        self._count = 0
        self._aborted = False
        self._signal_history = []

    @property
    def running_mean(self) -> float:
        """The mean of the means so far, 0.0 before the first record."""
        return self._running_sum / self._count if self._count else 0.0

    def check_intervention(self) -> ProbeSignal | None:
        """The one abort, when the running mean has reached the threshold and it was not sent yet."""
        running_mean = self.running_mean
        # Written so that NaN, which compares false with everything, takes the same way as a high score.
        if self._aborted or not self._count or running_mean < self._threshold:
            return None
        metadata: dict[str, Any] = {"running_mean": running_mean, "count": self._count}
        if math.isnan(running_mean):
            metadata["nan"] = True
        self._aborted = True
        signal = ProbeSignal(ProbeAction.ABORT, metadata, confidence=running_mean)
        self._signal_history.append(signal)
        return signal

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        """Adds the mean of the tensor."""
        return self._add(_mean(record.tensor))

    def on_activations(self, batch: ActivationBatch) -> list[ProbeSignal | None]:
        """Adds the means of all tensors, with one reduction where they have one shape."""
        try:
            rows = batch.stack().reshape(len(batch), -1)
        except (ProbingValueError, TypeError, ValueError):
            return [self.on_activation(record) for record in batch]
        if not rows.shape[1]:
            return [self._add(0.0) for _ in range(len(batch))]
        return [self._add(mean) for mean in _row_means(rows)]

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        """The final mean, how many records it is of, and whether an abort was sent."""
        return ProbeResult(
            self.request_id,
            self.extraction_point_name,
            {"final_mean": self.running_mean, "count": self._count, "aborted": self._aborted},
            signal_history=list(self._signal_history),
            metadata={"threshold": self._threshold},
        )

    def _add(self, mean: float) -> ProbeSignal | None:
        self._running_sum += mean
        self._count += 1
        return self.check_intervention()


class MLPClassifierProbe(Probe):
    """Shows the form of a classifier: logits per record, the last of them as verdict, and never an intervention.

    It has no trained weights: logit i is the mean of the tensor times i + 1.
    """

    probe_kind = ProbeKind.SINGLE_SHOT.value
    reads_in_place = True

    def __init__(self, num_classes: int = 2) -> None:
        if type(num_classes) is not int or num_classes < 1:
            raise ProbingValueError(f"`num_classes` must be an int >= 1, got {num_classes!r}")
        self._num_classes = num_classes
        self._verdict: dict[str, Any] | None = None
        self._signal_history: list[ProbeSignal] = []

    def on_start(self, request_ctx: RequestContext) -> None:
        """Forgets everything, so that an instance can watch again."""
        self._verdict = None
        self._signal_history = []

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        """Classifies one tensor; NaN is marked in the metadata."""
        mean = _mean(record.tensor)
        logits = [mean * (index + 1) for index in range(self._num_classes)]
        predicted_class = max(range(self._num_classes), key=logits.__getitem__)
        self._verdict = {"predicted_class": predicted_class, "logits": logits}
        metadata: dict[str, Any] = {"predicted_class": predicted_class}
        if math.isnan(mean):
            metadata["nan"] = True
        signal = ProbeSignal(ProbeAction.CONTINUE, metadata, confidence=logits[predicted_class])
        self._signal_history.append(signal)
        return signal

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        """The class and logits of the last record, or None when there was none."""
        return ProbeResult(
            self.request_id,
            self.extraction_point_name,
            self._verdict,
            signal_history=list(self._signal_history),
            metadata={"num_classes": self._num_classes},
        )


def _mean(tensor: Any) -> float:
    """The mean of all numbers in `tensor`, 0.0 where there are none; arrays are never turned into lists."""
    if isinstance(tensor, (int, float)):
        return float(tensor)
    if isinstance(tensor, (list, tuple)):
        numbers = tensor if all(type(item) is float for item in tensor) else list(_flatten(tensor))
        return sum(numbers) / len(numbers) if numbers else 0.0
    if isinstance(tensor, str):
        raise ProbingTypeError("`tensor` must hold numbers, got a str")
    array = as_array(tensor)
    return float(array.mean()) if array.size else 0.0


def _row_means(rows: np.ndarray[Any, Any]) -> list[float]:
    """The mean of each row of `(n, width)`; float32 and float64 go through one matrix product."""
    if rows.dtype.char not in "fd":
        means: list[float] = rows.mean(axis=1).tolist()
        return means
    width = rows.shape[1]
    sums: list[float] = (rows @ rows.dtype.type(1).repeat(width)).tolist()
    return [row_sum / width for row_sum in sums]


def _flatten(items: list[Any] | tuple[Any, ...]) -> Iterator[float]:
    for item in items:
        if isinstance(item, (list, tuple)):
            yield from _flatten(item)
        else:
            yield float(item)


def _require_threshold(threshold: object) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, Real):
        raise ProbingTypeError(f"`threshold` must be a number, got {threshold!r}")
    return float(threshold)
