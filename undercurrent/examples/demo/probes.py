"""The demo's probes: a line through the activations, read as "how much is this about medicine"."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from undercurrent.core import (
    ActivationBatch,
    ActivationRecord,
    Probe,
    ProbeAction,
    ProbeResult,
    ProbeSignal,
    RequestContext,
)

__all__ = ["SlowTopicProbe", "TopicProbe", "spend"]


class TopicProbe(Probe):
    """Averages the score of the last few tokens; aborts (inline) or flags (async) once it is above the threshold."""

    probe_kind = "trajectory"

    def __init__(
        self, *, weights: np.ndarray, bias: float, threshold: float, window: int = 4, action: str = "flag"
    ) -> None:
        """`weights` is `(hidden,)`; a score is the logit of "medicine"."""
        self._weights = weights
        self._bias = bias
        self._threshold = threshold
        self._action = ProbeAction(action)
        self._recent: deque[float] = deque(maxlen=window)
        self._count = 0
        self._above = 0
        self._highest = -math.inf

    def on_start(self, request_ctx: RequestContext) -> None:
        """Nothing to prepare."""

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        """Scores one token."""
        return self.on_activations(ActivationBatch.from_records([record]))[0]

    def on_activations(self, batch: ActivationBatch) -> Sequence[ProbeSignal | None]:
        """Scores a batch with one matrix product."""
        scores = batch.stack().astype(np.float32, copy=False) @ self._weights + self._bias
        return [
            self._judge(int(position), float(score)) for position, score in zip(batch.positions, scores, strict=True)
        ]

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        """Says how many tokens were scored, and how many windows lay above the threshold."""
        verdict = {"tokens": self._count, "above_threshold": self._above, "highest": round(self._highest, 3)}
        return ProbeResult(self.request_id, self.extraction_point_name, verdict)

    def _judge(self, position: int, score: float) -> ProbeSignal:
        self._count += 1
        self._recent.append(score)
        mean = sum(self._recent) / len(self._recent)
        is_full = len(self._recent) == self._recent.maxlen
        self._highest = max(self._highest, mean) if is_full else self._highest
        is_above = is_full and mean > self._threshold
        self._above += is_above
        return ProbeSignal(
            self._action if is_above else ProbeAction.CONTINUE,
            metadata={"token_pos": position, "score": round(score, 3), "mean": round(mean, 3)},
            confidence=1 / (1 + math.exp(-max(-60.0, min(60.0, mean)))),
        )


class SlowTopicProbe(TopicProbe):
    """The same, with `turns` of pure Python per token on top: what an unhurried probe costs."""

    def __init__(self, *, turns: int, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        self._turns = turns

    def on_activations(self, batch: ActivationBatch) -> Sequence[ProbeSignal | None]:
        """Takes its time with every token."""
        for _ in range(len(batch)):
            spend(self._turns)
        return super().on_activations(batch)


def spend(turns: int) -> int:
    """Pure Python work in proportion to `turns`; it holds the GIL wherever it runs."""
    total = 0
    for number in range(turns):
        total = (total + number * number) & 0xFFFF
    return total


def measure_turn_s() -> float:
    """CPU seconds of one turn; the best of several runs, as interruptions only add."""
    turns = 200_000
    best = math.inf
    for _ in range(5):
        begin = time.thread_time()
        spend(turns)
        best = min(best, time.thread_time() - begin)
    return best / turns
