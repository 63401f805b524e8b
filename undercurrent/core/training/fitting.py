"""From activations and labels to saved probes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from undercurrent.core.aggregation import Each
from undercurrent.core.builtin.aggregates import make_aggregate
from undercurrent.core.calibration import CalibrationInput, Isotonic, Temperature
from undercurrent.core.estimators import from_sklearn
from undercurrent.core.saved import SavedProbe
from undercurrent.core.training.libraries import load_library
from undercurrent.core.weights import KNOTS
from undercurrent.errors import ProbingTypeError, ProbingValueError, did_you_mean, one_of

__all__ = ["CALIBRATIONS", "TRAINED_KINDS", "calibrate", "fit_probe", "last_values"]

Array = np.ndarray[Any, Any]

TRAINED_KINDS = ("linear", "mean_difference", "mlp")
CALIBRATIONS = ("temperature", "isotonic", "none")
_ITERATIONS_MAX = 1000


def fit_probe(
    activations: Any,
    labels: Any,
    *,
    layer: int,
    tensor_type: str,
    kind: str = "linear",
    label_names: Sequence[str] | None = None,
    model: str | None = None,
    penalty: float = 100.0,
    hidden_sizes: Sequence[int] = (64,),
    activation: str = "relu",
    aggregation: Any = None,
    training: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> SavedProbe:
    """Trains a probe on `(n, hidden)` activations and `(n,)` class numbers 0, 1, 2 …

    Each dimension is scaled to unit variance first, and the scale folded into the weights. `linear` is logistic
    regression (softmax for more than two classes) with an L2 `penalty` on the sum of losses, by L-BFGS; `mlp` has
    hidden layers of `hidden_sizes` and the same penalty; `mean_difference` has two classes and nothing to choose, and
    its score is 0 at the mean of the first and 1 at that of the second.

    Raises:
        ProbingTypeError, ProbingValueError: data that nothing can be learnt from, or a wrong argument.
        MissingDependencyError: the extra `train` is not installed.
    """
    rows, truth, names = _read_examples(activations, labels, label_names)
    facts = {"rows": len(rows), "rows_per_label": np.bincount(truth, minlength=len(names)).tolist(), **(training or {})}
    place: dict[str, Any] = {"layer": layer, "tensor_type": tensor_type, "model": model, "labels": names}
    if kind == "mean_difference":
        if len(names) != 2:
            raise ProbingValueError(f"a mean_difference probe tells two classes apart, got {len(names)}")
        return SavedProbe(
            kind,
            _mean_difference(rows, truth),
            **place,
            threshold=0.5,
            aggregation=aggregation,
            training=facts,
        )
    if kind not in TRAINED_KINDS:
        raise ProbingValueError(
            f"`kind` must be {one_of(TRAINED_KINDS)}, got {kind!r}{did_you_mean(str(kind), TRAINED_KINDS)}"
        )
    if not 0 < penalty < float("inf"):
        raise ProbingValueError(f"`penalty` must be a number above 0, got {penalty!r}")
    estimator = _make_estimator(kind, penalty, tuple(hidden_sizes), activation, seed)
    scaler = load_library("sklearn.preprocessing").StandardScaler()
    pipeline = load_library("sklearn.pipeline").make_pipeline(scaler, estimator)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pipeline.fit(rows, truth)
    is_converged = not any("Convergence" in warning.category.__name__ for warning in said)
    facts = {"penalty": penalty, "is_converged": is_converged, **facts}
    return from_sklearn(pipeline, **place, aggregation=aggregation, training=facts)


def _make_estimator(kind: str, penalty: float, hidden_sizes: tuple[int, ...], activation: str, seed: int) -> Any:
    if kind == "linear":
        return load_library("sklearn.linear_model").LogisticRegression(C=1 / penalty, max_iter=_ITERATIONS_MAX)
    return load_library("sklearn.neural_network").MLPClassifier(
        hidden_sizes, activation, alpha=penalty, max_iter=_ITERATIONS_MAX, random_state=seed
    )


def calibrate(probe: SavedProbe, margins: Any, labels: Any, *, method: str = "temperature") -> SavedProbe:
    """`probe` with a calibration that suits `margins` of items it was not trained on.

    `margins` is `(n,)` with labels 0 and 1, as `last_values` gives them; or `(n, classes)` log chances of a softmax,
    for `temperature`. `none` returns the probe as it is. Temperature minimises the log loss and keeps the order and
    the sign of margins; isotonic follows any rising curve and wants a few hundred items.

    Raises:
        ProbingValueError: an unknown method, or a probe that is not calibrated so.
        MissingDependencyError: the extra `train` is not installed.
    """
    if method not in CALIBRATIONS:
        raise ProbingValueError(
            f"`method` must be {one_of(CALIBRATIONS)}, got {method!r}{did_you_mean(method, CALIBRATIONS)}"
        )
    if method == "none":
        return probe
    if probe.kind not in ("linear", "mlp") or probe.calibration is not None:
        raise ProbingValueError(f"a {probe.kind} probe with the calibration {probe.calibration!r} takes no other one")
    found, truth = np.asarray(margins, np.float64), np.asarray(labels).astype(np.int64)
    if len(found) != len(truth) or not len(found) or not np.isfinite(found).all():
        raise ProbingValueError(f"expected one finite margin per label, got {found.shape} for {truth.shape}")
    if method == "isotonic":
        if found.ndim != 1:
            raise ProbingValueError("isotonic calibration is for binary probes; use temperature for a softmax")
        regression = load_library("sklearn.isotonic").IsotonicRegression(y_min=0.0, y_max=1.0).fit(found, truth)
        knots = dict(zip(KNOTS, (regression.X_thresholds_, regression.y_thresholds_), strict=True))
        return replace(probe, weights={**probe.weights, **knots}, calibration=Isotonic(CalibrationInput.LOGIT))
    logits = np.column_stack([np.zeros(len(found)), found]) if found.ndim == 1 else found
    return replace(probe, calibration=Temperature(_best_temperature(logits, truth)))


def last_values(probe: SavedProbe, sequences: Sequence[Any], *, aggregation: Any = None) -> Array:
    """What the probe's aggregate comes to over each text's `(tokens, hidden)` activations, `(n,)`, as it is served.

    A margin, which `probe.scorer().link` makes a score of; the highest under `each`; a count for `k_of_n`, a sum for
    `cusum`. NaN where an activation is not finite.
    """
    form = aggregation or probe.aggregation or Each()
    scorer = probe.scorer()
    values = []
    for rows in sequences:
        found = scorer.margins(np.asarray(rows))
        if not found.is_finite.all() or not len(found.margins):
            values.append(np.nan)
        elif isinstance(form, Each):
            values.append(float(found.margins.max()))
        else:
            aggregate = make_aggregate(form, probe.threshold if probe.threshold is not None else 0.5)
            scores = scorer.link(found.margins)
            pushed = [aggregate.push(*pair) for pair in zip(found.margins.tolist(), scores.tolist(), strict=True)]
            values.append(pushed[-1])
    return np.array(values, np.float64)


def _read_examples(activations: Any, labels: Any, names: Sequence[str] | None) -> tuple[Array, Array, tuple[str, ...]]:
    rows, truth = np.asarray(activations), np.asarray(labels)
    if rows.ndim != 2 or rows.dtype.kind != "f" or truth.shape != (len(rows),):
        raise ProbingTypeError(
            "expected activations (n, hidden) of floats and n labels, got"
            f" {rows.dtype} {rows.shape} and labels of shape {truth.shape}"
        )
    broken = int((~np.isfinite(rows).all(axis=1)).sum())
    if broken:
        raise ProbingValueError(
            f"{broken} of {len(rows)} activations hold NaN or infinity; nothing is learnt from them"
        )
    if truth.dtype.kind not in "biu" or (len(truth) and truth.min() < 0):
        raise ProbingTypeError(f"labels must be class numbers 0, 1, 2 …, got dtype {truth.dtype}")
    truth = truth.astype(np.int64)
    count = len(names) if names is not None else int(truth.max(initial=0)) + 1
    per_class = np.bincount(truth, minlength=count)
    if count < 2 or len(per_class) > count or per_class.min() < 2:
        raise ProbingValueError(
            f"every class needs at least 2 rows, and two classes are the least; got {per_class.tolist()}"
        )
    default = ("negative", "positive") if count == 2 else tuple(f"class_{index}" for index in range(count))
    return rows, truth, default if names is None else tuple(names)


def _mean_difference(rows: Array, truth: Array) -> dict[str, Array]:
    first, second = (rows[truth == label].mean(axis=0, dtype=np.float64) for label in (0, 1))
    scale = float(np.linalg.norm(second - first))
    if not scale:
        raise ProbingValueError("the two classes have the same mean, so there is no direction between them")
    direction = (second - first) / scale
    return {"direction": direction, "offset": np.array(first @ direction), "scale": np.array(scale)}


def _best_temperature(logits: Array, truth: Array) -> float:
    """The temperature of the least log loss.

    Targets are (n + 1) / (n + 2) of a class with n items instead of 1, as in Platt (1999), section 2.2: otherwise items
    without a single error would ask for a temperature of 0, and every score would be 0 or 1.
    """
    count = logits.shape[1]
    per_class = np.bincount(truth, minlength=count)
    sure = ((per_class + 1) / (per_class + 2))[truth]
    targets = np.repeat(((1 - sure) / (count - 1))[:, None], count, axis=1)
    targets[np.arange(len(truth)), truth] = sure

    def loss(log_temperature: float) -> float:
        scaled = logits * np.exp(-log_temperature)
        losses = np.logaddexp.reduce(scaled, axis=1) - (targets * scaled).sum(axis=1)
        return float(losses.mean())

    found = load_library("scipy.optimize").minimize_scalar(loss, bounds=(-10, 10), method="bounded")
    return float(np.exp(found.x))
