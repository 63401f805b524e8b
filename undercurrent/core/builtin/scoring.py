"""From activations to scores: one matrix product per batch, and a verdict on every row that holds no numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from undercurrent.core.calibration import CalibrationInput, Isotonic, Platt, Raw, Temperature
from undercurrent.core.saved import SavedProbe
from undercurrent.core.weights import layer_count
from undercurrent.errors import ProbingTypeError, ProbingValueError, did_you_mean, one_of

__all__ = ["Scorer", "Scores", "make_scorer"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Scores:
    """What a scorer says about the rows of one batch."""

    margins: Array
    """`(n,)` float64: log odds for linear and mlp, the score itself for the other kinds."""
    is_finite: Array
    """`(n,)` bool; a row with NaN or infinity, in it or on the way to its margin, is not."""
    classes: Array | None
    """`(n, outputs)` float64: per class its chance, or per SAE feature its activation; None with one margin per row."""


class Scorer:
    """Made once per saved probe and target, then shared: it holds no state of a request."""

    def __init__(
        self, probe: SavedProbe, score_rows: Callable[[Array], Scores], link: Callable[[Array], Array]
    ) -> None:
        self.hidden_size = probe.hidden_size
        self._score_rows = score_rows
        self._link = link

    def margins(self, rows: Array) -> Scores:
        """Scores `(n, hidden)` of any float dtype; products are float32.

        Raises:
            ProbingValueError: the rows are of another width.
        """
        if rows.ndim != 2 or rows.shape[1] != self.hidden_size:
            raise ProbingValueError(
                f"activations must have the shape (n, {self.hidden_size}), got {rows.shape}: the probe was trained on"
                f" {self.hidden_size} values per token"
            )
        with np.errstate(all="ignore"):  # NaN and infinity are looked for, and reported, below
            return self._score_rows(rows.astype(np.float32, copy=False))

    def link(self, margins: Array) -> Array:
        """The score of each margin."""
        with np.errstate(over="ignore"):
            return self._link(margins)

    def score(self, activations: Any) -> Array:
        """See `SavedProbe.score`."""
        found = self.margins(np.asarray(activations))
        return np.where(found.is_finite, self.link(np.where(found.is_finite, found.margins, 0.0)), np.nan)


def make_scorer(probe: SavedProbe, target: str | None) -> Scorer:
    """See `SavedProbe.scorer`."""
    if target is not None and target not in probe.labels:
        raise ProbingValueError(
            f"`target` must be {one_of(probe.labels)}, a label of the probe, got {target!r}"
            + did_you_mean(str(target), probe.labels)
        )
    if probe.kind == "sae_feature":
        return Scorer(probe, _sae_rows(probe, target), _itself)
    if probe.kind == "mean_difference":
        if target not in (None, probe.labels[1]):
            raise ProbingTypeError(f"a mean_difference probe scores {probe.labels[1]!r} only, got `target` {target!r}")
        return Scorer(probe, _direction_rows(probe), _itself)
    to_logits = _logits_of_linear(probe) if probe.kind == "linear" else _logits_of_mlp(probe)
    if probe.output_count > 1:
        return Scorer(probe, _softmax_rows(probe, to_logits, target), _sigmoid)
    return Scorer(probe, _binary_rows(to_logits), _binary_link(probe, is_first=target == probe.labels[0]))


# ---- products ------------------------------------------------------------------------------------------------------

LogitsOf = Callable[[Array], tuple[Array, Array]]


def _with_sum(weight: Array) -> Array:
    """`(outputs, hidden)` as `(hidden, outputs + 1)`; the last column sums a row, and so meets its every value.

    A product of a weight that is 0 may skip a NaN; one with 1 may not.
    """
    return np.ascontiguousarray(np.vstack([weight, np.ones((1, weight.shape[1]), np.float32)]).T)


def _product(rows: Array, weight_and_sum: Array) -> tuple[Array, Array]:
    """The products and which rows are finite."""
    products = rows @ weight_and_sum
    is_finite = np.isfinite(products[:, -1])
    if not is_finite.all():
        # The sum of huge finite values overflows too; such a row is judged by its own values.
        is_finite = np.isfinite(rows).all(axis=1)
    return products[:, :-1], is_finite


def _logits_of_linear(probe: SavedProbe) -> LogitsOf:
    matrix = _with_sum(np.atleast_2d(probe.weights["weight"]))
    bias = np.atleast_1d(probe.weights["bias"])

    def to_logits(rows: Array) -> tuple[Array, Array]:
        products, is_finite = _product(rows, matrix)
        return products + bias, is_finite

    return to_logits


def _logits_of_mlp(probe: SavedProbe) -> LogitsOf:
    first = _with_sum(probe.weights["layers.0.weight"])
    first_bias = probe.weights["layers.0.bias"]
    rest = [
        (np.ascontiguousarray(probe.weights[f"layers.{index}.weight"].T), probe.weights[f"layers.{index}.bias"])
        for index in range(1, layer_count(probe.weights))
    ]
    activation = _ACTIVATIONS[probe.settings["activation"]]

    def to_logits(rows: Array) -> tuple[Array, Array]:
        hidden, is_finite = _product(rows, first)
        hidden = hidden + first_bias
        for weight, bias in rest:
            # An infinity that a layer made may be gone behind the next one.
            is_finite &= np.isfinite(hidden).all(axis=1)
            hidden = activation(hidden) @ weight + bias
        return hidden, is_finite

    return to_logits


def _binary_rows(to_logits: LogitsOf) -> Callable[[Array], Scores]:
    def score_rows(rows: Array) -> Scores:
        logits, is_finite = to_logits(rows)
        margins = logits[:, 0].astype(np.float64)
        return Scores(margins, is_finite & np.isfinite(margins), None)

    return score_rows


def _softmax_rows(probe: SavedProbe, to_logits: LogitsOf, target: str | None) -> Callable[[Array], Scores]:
    """The margin is the log odds of the target, or of anything but the first class."""
    is_wanted = np.array([label == target for label in probe.labels])
    if target is None:
        is_wanted = np.arange(probe.output_count) > 0
    temperature = probe.calibration.temperature if isinstance(probe.calibration, Temperature) else 1.0

    def score_rows(rows: Array) -> Scores:
        logits, is_finite = to_logits(rows)
        scaled = logits.astype(np.float64) / temperature
        is_finite = is_finite & np.isfinite(scaled).all(axis=1)
        shares = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        margins = _log_sum(scaled[:, is_wanted]) - _log_sum(scaled[:, ~is_wanted])
        return Scores(margins, is_finite, shares / shares.sum(axis=1, keepdims=True))

    return score_rows


def _direction_rows(probe: SavedProbe) -> Callable[[Array], Scores]:
    direction = probe.weights["direction"]
    matrix = _with_sum(direction[None] / np.linalg.norm(direction.astype(np.float64)).astype(np.float32))
    offset, scale = float(probe.weights["offset"]), float(probe.weights["scale"])

    def score_rows(rows: Array) -> Scores:
        products, is_finite = _product(rows, matrix)
        margins = (products[:, 0].astype(np.float64) - offset) / scale
        return Scores(margins, is_finite & np.isfinite(margins), None)

    return score_rows


def _sae_rows(probe: SavedProbe, target: str | None) -> Callable[[Array], Scores]:
    encoder, bias = probe.weights["W_enc"], probe.weights["b_enc"]
    if "b_dec" in probe.weights:
        # Once here, instead of a subtraction from every activation.
        bias = bias - encoder @ probe.weights["b_dec"]
    activation = probe.settings["activation"]
    chosen = np.array(probe.settings.get("features") or range(len(encoder)))
    if target is not None:
        chosen = chosen[[probe.labels.index(target)]]
    jump = probe.weights["jump"] if activation == "jumprelu" else np.zeros(len(encoder), np.float32)
    k = probe.settings["k"] if activation == "topk" else 0
    # Which features are among the k highest is known only with all of them at hand.
    needed = np.arange(len(encoder)) if k else chosen
    matrix, bias, jump = _with_sum(encoder[needed]), bias[needed], jump[needed]

    def score_rows(rows: Array) -> Scores:
        products, is_finite = _product(rows, matrix)
        values = products + bias
        is_finite = is_finite & np.isfinite(values).all(axis=1)
        active = np.where(values > jump, values, np.float32(0))
        if k:
            lowest = np.partition(values, -k, axis=1)[:, -k]
            active = np.where(values >= lowest[:, None], active, np.float32(0))[:, chosen]
        features = active.astype(np.float64)
        return Scores(features.max(axis=1), is_finite, features)

    return score_rows


# ---- links ---------------------------------------------------------------------------------------------------------


def _binary_link(probe: SavedProbe, *, is_first: bool) -> Callable[[Array], Array]:
    calibration = probe.calibration
    if isinstance(calibration, Raw):
        return np.negative if is_first else _itself
    link: Callable[[Array], Array] = _sigmoid
    if isinstance(calibration, Temperature):
        temperature = calibration.temperature
        link = lambda margins: _sigmoid(margins / temperature)  # noqa: E731
    elif isinstance(calibration, Platt):
        platt = calibration
        link = lambda margins: _sigmoid(platt.slope * _input_of(margins, platt.of) + platt.intercept)  # noqa: E731
    elif isinstance(calibration, Isotonic):
        isotonic, x, y = calibration, probe.weights["calibration_x"], probe.weights["calibration_y"]
        link = lambda margins: np.interp(_input_of(margins, isotonic.of), x, y)  # noqa: E731
    return (lambda margins: 1.0 - link(margins)) if is_first else link


def _input_of(margins: Array, of: CalibrationInput) -> Array:
    return margins if of is CalibrationInput.LOGIT else _sigmoid(margins)


def _itself(margins: Array) -> Array:
    return margins


def _sigmoid(values: Array) -> Array:
    # Of a large negative value `exp` overflows to infinity, and 1 / infinity is the 0 that is meant.
    return 1 / (1 + np.exp(-values))


def _log_sum(logits: Array) -> Array:
    highest = logits.max(axis=1, keepdims=True)
    total: Array = np.log(np.exp(logits - highest).sum(axis=1)) + highest[:, 0]
    return total


def _erf(values: Array) -> Array:
    """See: Abramowitz, Stegun (1964), Handbook of Mathematical Functions, 7.1.26; |error| <= 1.5e-7."""
    size = np.abs(values)
    t = 1 / (1 + np.float32(0.3275911) * size)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    result: Array = np.sign(values) * (1 - series * np.exp(-size * size))
    return result


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "gelu": lambda x: x * np.float32(0.5) * (1 + _erf(x * np.float32(0.5**0.5))),
    "gelu_tanh": lambda x: (
        x * np.float32(0.5) * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)))
    ),
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "logistic": _sigmoid,
    "identity": _itself,
}
