"""Saved probes of each kind, small and untrained, and what feeds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from undercurrent.core import ActivationBatch, SavedProbe
from undercurrent.spec import ActivationRecord

HIDDEN = 16
LAYER = 4
TENSOR_TYPE = "residual_stream"
PLACE: dict[str, Any] = {"layer": LAYER, "tensor_type": TENSOR_TYPE, "model": "small-model"}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make_saved(kind: str = "linear", **fields: Any) -> SavedProbe:
    """A probe of `kind` over 16 values per token."""
    arrays: dict[str, Any]
    settings: dict[str, Any] = {}
    if kind == "linear":
        arrays = {"weight": draw(HIDDEN), "bias": 0.25}
    elif kind == "softmax":
        kind, arrays = "linear", {"weight": draw(3, HIDDEN), "bias": draw(3, seed=1)}
    elif kind == "mlp":
        arrays = {"layers.0.weight": draw(5, HIDDEN), "layers.0.bias": draw(5, seed=1)}
        arrays |= {"layers.1.weight": draw(1, 5, seed=2), "layers.1.bias": draw(1, seed=3)}
        settings = {"activation": "relu"}
    elif kind == "mean_difference":
        arrays = {"direction": draw(HIDDEN), "offset": 0.5, "scale": 2.0}
    else:
        arrays = {"W_enc": draw(6, HIDDEN), "b_enc": draw(6, seed=1), "b_dec": draw(HIDDEN, seed=2)}
        settings = {"activation": "relu"}
    weights = {**arrays, **fields.pop("weights", {})}
    return SavedProbe(kind, weights, **{**PLACE, "settings": settings, **fields})


def make_line(**fields: Any) -> SavedProbe:
    """A linear probe whose margin is the first value of an activation."""
    return make_saved("linear", weights={"weight": np.eye(HIDDEN)[0], "bias": 0.0}, **fields)


def record(tensor: Any, position: int = 0, **fields: Any) -> ActivationRecord:
    """A record of the place the probes were trained on."""
    values = {"layer": LAYER, "tensor_type": TENSOR_TYPE, "is_generated": True, **fields}
    return ActivationRecord("req-1", "guard", token_pos=position, tensor=tensor, **values)


def batch_of(rows: Any) -> ActivationBatch:
    """Rows as a batch, at positions 0, 1, 2 …"""
    return ActivationBatch.from_records([record(row, position) for position, row in enumerate(rows)])


def tokens(*margins: float) -> np.ndarray:
    """Activations `(n, 16)` that `make_line` gives these margins."""
    rows = np.zeros((len(margins), HIDDEN), np.float32)
    rows[:, 0] = margins
    return rows
