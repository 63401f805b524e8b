"""Which arrays a saved probe of each kind holds, and whether the ones at hand fit together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from undercurrent.errors import ProbingValueError, did_you_mean, one_of

__all__ = ["ACTIVATIONS", "KNOTS", "PROBE_KINDS", "SAE_ACTIVATIONS", "check_weights", "layer_count"]

Arrays = Mapping[str, np.ndarray[Any, Any]]

PROBE_KINDS = ("linear", "mlp", "mean_difference", "sae_feature")
"""The kinds of saved probe; each is the registered name of the probe that runs it."""

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "logistic", "identity")
"""What may stand between the layers of an `mlp`; `gelu` is the exact one."""

SAE_ACTIVATIONS = ("relu", "jumprelu", "topk")

KNOTS = ("calibration_x", "calibration_y")
"""The float64 arrays of an isotonic calibration; all other arrays are float32."""

_LAYER = re.compile(r"layers\.(\d+)\.(weight|bias)")
_LAYERS_MAX = 64
_NAMES = {
    "linear": ("weight", "bias"),
    "mean_difference": ("direction", "offset", "scale"),
    "sae_feature": ("W_enc", "b_enc"),
}
_OPTIONAL = {"sae_feature": ("b_dec", "jump")}


def check_weights(kind: str, weights: Arrays, settings: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Returns `(hidden size, outputs)`; outputs is 1 for a probe with one margin per record.

    Raises:
        ProbingValueError: an array is missing, unknown, of the wrong shape, empty or not finite, or a setting is wrong.
    """
    if kind not in PROBE_KINDS:
        raise ProbingValueError(f"{where}: `kind` must be {one_of(PROBE_KINDS)}, got {kind!r}{_hint(kind)}")
    names = [name for name in weights if name not in KNOTS]
    _check_names(kind, names, where)
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise ProbingValueError(
                f"{where}: {name!r} holds NaN or infinity; a probe with such weights judges nothing"
            )
    hidden_size, outputs = _CHECKS[kind](weights, settings, where)
    if hidden_size < 1:
        raise ProbingValueError(f"{where}: the hidden size must be >= 1, got {hidden_size}")
    return hidden_size, outputs


def layer_count(weights: Arrays) -> int:
    """The number of layers of an `mlp`."""
    return sum(1 for name in weights if _LAYER.fullmatch(name)) // 2


def _hint(kind: object) -> str:
    return did_you_mean(str(kind), PROBE_KINDS)


def _check_names(kind: str, names: list[str], where: str) -> None:
    if kind == "mlp":
        count = max(1, (sum(1 for name in names if _LAYER.fullmatch(name)) + 1) // 2)
        if count > _LAYERS_MAX:
            raise ProbingValueError(f"{where}: an mlp has at most {_LAYERS_MAX} layers, got {count}")
        required = [f"layers.{index}.{part}" for index in range(count) for part in ("weight", "bias")]
    else:
        required = list(_NAMES[kind])
    known = [*required, *_OPTIONAL.get(kind, ())]
    for name in required:
        if name not in names:
            raise ProbingValueError(
                f"{where}: a probe of kind {kind!r} needs the tensor {name!r}; it has {_listed(names)}"
            )
    for name in names:
        if name not in known:
            raise ProbingValueError(
                f"{where}: a probe of kind {kind!r} has no tensor {name!r}{did_you_mean(name, known) or ';'}"
                f" it has {_listed(known)}"
            )


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, sorted(names)[:12])) or "none"


def _expect(weights: Arrays, name: str, shape: tuple[int, ...], where: str) -> None:
    if weights[name].shape != shape:
        raise ProbingValueError(f"{where}: {name!r} must have the shape {shape}, got {weights[name].shape}")


def _check_linear(weights: Arrays, settings: Mapping[str, Any], where: str) -> tuple[int, int]:
    weight = weights["weight"]
    if weight.ndim == 1:
        _expect(weights, "bias", (), where)
        return weight.shape[0], 1
    if weight.ndim != 2 or weight.shape[0] < 2:
        raise ProbingValueError(
            f"{where}: 'weight' must have the shape (hidden,), or (classes, hidden) with 2 classes or more, got"
            f" {weight.shape}"
        )
    _expect(weights, "bias", (weight.shape[0],), where)
    return weight.shape[1], weight.shape[0]


def _check_mlp(weights: Arrays, settings: Mapping[str, Any], where: str) -> tuple[int, int]:
    _expect_word(settings, "activation", ACTIVATIONS, where)
    count = layer_count(weights)
    width = -1
    for index in range(count):
        name = f"layers.{index}.weight"
        weight = weights[name]
        if weight.ndim != 2 or not weight.shape[0] or width not in (-1, weight.shape[1]):
            expected = "(outputs, inputs)" if width < 0 else f"(outputs, {width}), as the layer before it gives {width}"
            raise ProbingValueError(f"{where}: {name!r} must have the shape {expected}, got {weight.shape}")
        _expect(weights, f"layers.{index}.bias", (weight.shape[0],), where)
        width = weight.shape[0]
    return weights["layers.0.weight"].shape[1], width


def _check_direction(weights: Arrays, settings: Mapping[str, Any], where: str) -> tuple[int, int]:
    direction = weights["direction"]
    if direction.ndim != 1:
        raise ProbingValueError(f"{where}: 'direction' must have the shape (hidden,), got {direction.shape}")
    _expect(weights, "offset", (), where)
    _expect(weights, "scale", (), where)
    if not np.any(direction) or not weights["scale"] > 0:
        raise ProbingValueError(f"{where}: 'direction' must not be zero and 'scale' must be above 0")
    return direction.shape[0], 1


def _check_sae(weights: Arrays, settings: Mapping[str, Any], where: str) -> tuple[int, int]:
    encoder = weights["W_enc"]
    if encoder.ndim != 2 or not encoder.shape[0]:
        raise ProbingValueError(
            f"{where}: 'W_enc' must have the shape (features, hidden), a row per feature, got {encoder.shape}"
        )
    count, hidden_size = encoder.shape
    _expect(weights, "b_enc", (count,), where)
    if "b_dec" in weights:
        _expect(weights, "b_dec", (hidden_size,), where)
    activation = _expect_word(settings, "activation", SAE_ACTIVATIONS, where)
    if (activation == "jumprelu") != ("jump" in weights):
        raise ProbingValueError(f"{where}: the tensor 'jump', a threshold per feature, goes with 'jumprelu' only")
    if "jump" in weights:
        _expect(weights, "jump", (count,), where)
    k = settings.get("k")
    if activation == "topk" and not (type(k) is int and 1 <= k <= count):
        raise ProbingValueError(f"{where}: `settings['k']` must be an int from 1 to {count} for 'topk', got {k!r}")
    features = settings.get("features")
    if features is not None:
        _check_features(features, count, where)
    return hidden_size, 1


def _check_features(features: Any, count: int, where: str) -> None:
    rows = list(features) if isinstance(features, (list, tuple)) else []
    if not rows or any(type(row) is not int or not 0 <= row < count for row in rows) or len(set(rows)) != len(rows):
        raise ProbingValueError(
            f"{where}: `settings['features']` must list different rows of 'W_enc', from 0 to {count - 1}, got"
            f" {features!r}"
        )


def _expect_word(settings: Mapping[str, Any], name: str, words: tuple[str, ...], where: str) -> str:
    word = settings.get(name)
    if word not in words:
        raise ProbingValueError(
            f"{where}: `settings[{name!r}]` must be {one_of(words)}, got {word!r}{did_you_mean(str(word), words)}"
        )
    return str(word)


_CHECKS = {
    "linear": _check_linear,
    "mlp": _check_mlp,
    "mean_difference": _check_direction,
    "sae_feature": _check_sae,
}
