"""The demo's texts, the probe trained on them, and how far to trust it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from undercurrent.core import SavedProbe
from undercurrent.core.training import Rate, fit_probe

__all__ = ["Text", "base_rate", "evaluate", "fit", "load_texts", "logits"]

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Text:
    """One labelled text."""

    text: str
    is_medicine: bool
    is_held_out: bool
    template: str


def load_texts(path: Path) -> list[Text]:
    """Reads the texts that `tests/texts/make_texts.py` writes."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Text(row["text"], row["topic"] == "medicine", row["split"] == "held_out", row["template"]) for row in rows]


def fit(
    activations: Sequence[Array], texts: Sequence[Text], *, layer: int, tail: int, penalty: float = 1000.0
) -> SavedProbe:
    """Logistic regression over the last `tail` tokens of each training text.

    The penalty is strong because a text gives many rows that say the same.
    """
    chosen = [(rows[-tail:], text) for rows, text in zip(activations, texts, strict=True) if not text.is_held_out]
    labels = np.concatenate([np.full(len(rows), text.is_medicine) for rows, text in chosen])
    return fit_probe(
        np.concatenate([rows for rows, _ in chosen]),
        labels,
        layer=layer,
        tensor_type="residual_stream",
        label_names=("cooking", "medicine"),
        penalty=penalty,
    )


def logits(probe: SavedProbe, rows: Array) -> np.ndarray[Any, Any]:
    """One logit of "medicine" per row."""
    return probe.scorer().margins(rows).margins


def evaluate(probe: SavedProbe, activations: Sequence[Array], texts: Sequence[Text], *, tail: int) -> tuple[Rate, Rate]:
    """Accuracy on held-out templates: by text (mean of its last `tail` tokens), and by single token."""
    held_out = [(logits(probe, rows), text) for rows, text in zip(activations, texts, strict=True) if text.is_held_out]
    right_texts = sum((scores[-tail:].mean() > 0) == text.is_medicine for scores, text in held_out)
    right_tokens = sum(int(((scores > 0) == text.is_medicine).sum()) for scores, text in held_out)
    return Rate(int(right_texts), len(held_out)), Rate(right_tokens, sum(len(scores) for scores, _ in held_out))


def base_rate(texts: Sequence[Text]) -> Rate:
    """The share of the more frequent answer among held-out texts: what guessing would reach."""
    held_out = [text.is_medicine for text in texts if text.is_held_out]
    return Rate(max(sum(held_out), len(held_out) - sum(held_out)), len(held_out))
