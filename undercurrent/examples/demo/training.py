"""Trains a linear probe and says how far to trust it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["LinearProbe", "Share", "Text", "base_rate", "evaluate", "fit", "load_texts", "wilson_interval"]

Array = np.ndarray[Any, np.dtype[np.float32]]

_NEWTON_STEPS_MAX = 25
_CONVERGED = 1e-6
_Z_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Text:
    """One labelled text."""

    text: str
    is_medicine: bool
    is_held_out: bool
    template: str


@dataclass(frozen=True, slots=True)
class LinearProbe:
    """A logit over activations: `activations @ weights + bias`."""

    weights: Array
    bias: float

    def score(self, activations: Array) -> Array:
        """One logit per row."""
        scores: Array = activations @ self.weights + np.float32(self.bias)
        return scores


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many."""

    hits: int
    count: int

    @property
    def rate(self) -> float:
        """Between 0 and 1."""
        return self.hits / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate (Wilson)."""
        return wilson_interval(self.hits, self.count)


def load_texts(path: Path) -> list[Text]:
    """Reads the texts that `tests/texts/make_texts.py` writes."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Text(row["text"], row["topic"] == "medicine", row["split"] == "held_out", row["template"]) for row in rows]


def fit(activations: Sequence[Array], texts: Sequence[Text], *, tail: int, penalty: float = 1000.0) -> LinearProbe:
    """Logistic regression over the last `tail` tokens of each training text, by Newton's method.

    Each dimension is scaled to unit variance first; the scale is folded into the weights, so that using the probe is
    one dot product. The penalty is strong because a text gives many rows that say the same.
    """
    chosen = [(rows[-tail:], text) for rows, text in zip(activations, texts, strict=True) if not text.is_held_out]
    inputs = np.concatenate([rows for rows, _ in chosen]).astype(np.float64)
    labels = np.concatenate([np.full(len(rows), text.is_medicine, np.float64) for rows, text in chosen])
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
    design = np.column_stack([(inputs - mean) / scale, np.ones(len(inputs))])
    weights = _newton(design, labels, penalty)
    folded = weights[:-1] / scale
    return LinearProbe(folded.astype(np.float32), float(weights[-1] - mean @ folded))


def evaluate(
    probe: LinearProbe, activations: Sequence[Array], texts: Sequence[Text], *, tail: int
) -> tuple[Share, Share]:
    """Accuracy on held-out templates: by text (mean of its last `tail` tokens), and by single token."""
    held_out = [(probe.score(rows), text) for rows, text in zip(activations, texts, strict=True) if text.is_held_out]
    right_texts = sum((scores[-tail:].mean() > 0) == text.is_medicine for scores, text in held_out)
    right_tokens = sum(int(((scores > 0) == text.is_medicine).sum()) for scores, text in held_out)
    return Share(int(right_texts), len(held_out)), Share(right_tokens, sum(len(scores) for scores, _ in held_out))


def base_rate(texts: Sequence[Text]) -> Share:
    """The share of the more frequent answer among held-out texts: what guessing would reach."""
    held_out = [text.is_medicine for text in texts if text.is_held_out]
    return Share(max(sum(held_out), len(held_out) - sum(held_out)), len(held_out))


def wilson_interval(hits: int, count: int, z: float = _Z_95) -> tuple[float, float]:
    """The Wilson score interval of a rate; unlike the usual one it is right at 0 and at 1.

    >>> tuple(round(bound, 3) for bound in wilson_interval(10, 10))
    (0.722, 1.0)
    """
    rate, weight = hits / count, z * z / count
    centre = (rate + weight / 2) / (1 + weight)
    half = z * math.sqrt(rate * (1 - rate) / count + weight / (4 * count)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


def _newton(design: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], penalty: float) -> np.ndarray[Any, Any]:
    weights = np.zeros(design.shape[1])
    # The bias is not shrunk.
    ridge = np.full(design.shape[1], penalty)
    ridge[-1] = 1e-6
    for _ in range(_NEWTON_STEPS_MAX):
        chances = 1 / (1 + np.exp(-np.clip(design @ weights, -60, 60)))
        gradient = design.T @ (chances - labels) + ridge * weights
        spread = chances * (1 - chances) + 1e-9
        step = np.linalg.solve((design * spread[:, None]).T @ design + np.diag(ridge), gradient)
        weights -= step
        if np.abs(step).max() < _CONVERGED:
            break
    return weights
