"""`from_sklearn`: a fitted scikit-learn estimator as a saved probe.

Estimators are known by what they have, not by their class, so that scikit-learn need not be installed where this runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from undercurrent.core.calibration import Calibration, CalibrationInput, Isotonic, Platt, Raw, Temperature
from undercurrent.core.saved import SavedProbe
from undercurrent.errors import ProbingTypeError, ProbingValueError

__all__ = ["from_sklearn"]

Array = np.ndarray[Any, Any]

_MLP_ACTIVATIONS = {"relu": "relu", "tanh": "tanh", "logistic": "logistic", "identity": "identity"}


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an estimator comes to: layers `(weight (outputs, inputs), bias (outputs,))` in float64."""

    layers: list[tuple[Array, Array]]
    classes: Array
    activation: str | None = None
    calibration: Calibration | None = None
    knots: Mapping[str, Array] = field(default_factory=dict)
    gives_logits: bool = True
    """Whether scikit-learn calibrates what this gives as a decision function; else as a chance."""


def from_sklearn(
    estimator: Any,
    *,
    layer: int,
    tensor_type: str,
    model: str | None = None,
    labels: tuple[str, ...] | list[str] | None = None,
    threshold: float | None = None,
    aggregation: Any = None,
    training: Mapping[str, Any] | None = None,
) -> SavedProbe:
    """A probe that scores as `estimator.predict_proba` does (`decision_function` for a bare LinearSVC).

    Takes LogisticRegression, LinearSVC, SGDClassifier and other linear classifiers, MLPClassifier, a Pipeline of
    StandardScaler and one of them, which is folded into the weights, and CalibratedClassifierCV with one calibrated
    classifier (`ensemble=False`). `labels` replaces the names of the classes. The score of a binary estimator is that
    of `classes_[1]`. Weights become float32.

    Raises:
        ProbingTypeError: an estimator that is not fitted, or of another kind.
        ProbingValueError: one that cannot be said by one probe, such as an ensemble.
    """
    parts = _read(estimator)
    names = [str(name) for name in parts.classes] if labels is None else list(labels)
    facts = {"estimator": type(estimator).__name__, **(training or {})}
    if parts.activation is None:
        weight, bias = parts.layers[0]
        weights = {"weight": weight[0], "bias": bias[0]} if len(weight) == 1 else {"weight": weight, "bias": bias}
    else:
        weights = {
            f"layers.{index}.{name}": array
            for index, pair in enumerate(parts.layers)
            for name, array in zip(("weight", "bias"), pair, strict=True)
        }
    return SavedProbe(
        "linear" if parts.activation is None else "mlp",
        {**weights, **parts.knots},
        layer=layer,
        tensor_type=tensor_type,
        model=model,
        labels=tuple(names),
        threshold=0.0 if threshold is None and isinstance(parts.calibration, Raw) else threshold,
        calibration=parts.calibration,
        aggregation=aggregation,
        training=facts,
        settings={} if parts.activation is None else {"activation": parts.activation},
    )


def _read(estimator: Any) -> _Parts:
    if isinstance(estimator, type):
        raise ProbingTypeError(f"expected a fitted estimator, got the class {estimator.__name__}")
    if hasattr(estimator, "steps"):
        return _read_pipeline(estimator)
    if hasattr(estimator, "calibrated_classifiers_"):
        return _read_calibrated(estimator)
    if type(estimator).__name__ == "FrozenEstimator":
        return _read(estimator.estimator)
    if hasattr(estimator, "coefs_"):
        return _read_mlp(estimator)
    if hasattr(estimator, "coef_") and hasattr(estimator, "classes_"):
        return _read_linear(estimator)
    if hasattr(estimator, "fit") and not any(
        name.endswith("_") and not name.startswith("_") for name in vars(estimator)
    ):
        raise ProbingTypeError(f"the {type(estimator).__name__} is not fitted; call its `fit` first")
    raise ProbingTypeError(
        f"no saved probe says what a {type(estimator).__name__} does; use a linear classifier, an MLPClassifier, a"
        " Pipeline of StandardScaler and one of them, or a CalibratedClassifierCV around one"
    )


def _read_linear(estimator: Any) -> _Parts:
    weight = np.atleast_2d(
        np.asarray(estimator.coef_.toarray() if hasattr(estimator.coef_, "toarray") else estimator.coef_)
    )
    bias = np.broadcast_to(np.asarray(estimator.intercept_, np.float64), (len(weight),)).copy()
    parts = _Parts([(weight.astype(np.float64), bias)], np.asarray(estimator.classes_))
    if not hasattr(estimator, "predict_proba"):
        # A margin of its own unit: only a calibration around it makes a chance of it.
        if len(weight) > 1:
            raise ProbingValueError(
                f"a {type(estimator).__name__} of {len(weight)} classes has margins that are no log odds; use"
                " LogisticRegression"
            )
        return replace(parts, calibration=Raw())
    if len(weight) > 1 and (getattr(estimator, "multi_class", "") == "ovr" or hasattr(estimator, "loss")):
        raise ProbingValueError(
            f"a {type(estimator).__name__} of {len(weight)} classes, one against the rest, is no softmax; use"
            " LogisticRegression without `multi_class='ovr'`"
        )
    return parts


def _read_mlp(estimator: Any) -> _Parts:
    activation = _MLP_ACTIVATIONS.get(estimator.activation)
    if activation is None or getattr(estimator, "out_activation_", "") not in ("logistic", "softmax"):
        raise ProbingValueError(
            f"a {type(estimator).__name__} with the activation {estimator.activation!r} and the output"
            f" {getattr(estimator, 'out_activation_', None)!r} is no classifier of one label per row"
        )
    if estimator.out_activation_ == "logistic" and len(estimator.intercepts_[-1]) > 1:
        raise ProbingValueError("an MLPClassifier of several labels per row is several probes; train one per label")
    layers = [
        (np.asarray(weight, np.float64).T, np.asarray(bias, np.float64))
        for weight, bias in zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ]
    return _Parts(layers, np.asarray(estimator.classes_), activation=activation, gives_logits=False)


def _read_pipeline(pipeline: Any) -> _Parts:
    steps = [step for _, step in pipeline.steps if step not in (None, "passthrough")]
    if not steps:
        raise ProbingTypeError("the Pipeline has no steps")
    parts = _read(steps[-1])
    for step in reversed(steps[:-1]):
        if not (hasattr(step, "scale_") and hasattr(step, "with_mean") and hasattr(step, "with_std")):
            raise ProbingTypeError(
                f"a Pipeline's {type(step).__name__} cannot be folded into the weights; only StandardScaler can"
            )
        parts = _fold_scaler(parts, step)
    return parts


def _fold_scaler(parts: _Parts, scaler: Any) -> _Parts:
    """`W ((x - mean) / scale) + b = (W / scale) x + (b - (W / scale) mean)`."""
    (weight, bias), *rest = parts.layers
    if scaler.with_std and scaler.scale_ is not None:
        weight = weight / np.asarray(scaler.scale_, np.float64)
    if scaler.with_mean and scaler.mean_ is not None:
        bias = bias - weight @ np.asarray(scaler.mean_, np.float64)
    return replace(parts, layers=[(weight, bias), *rest])


def _read_calibrated(estimator: Any) -> _Parts:
    fitted = estimator.calibrated_classifiers_
    if len(fitted) != 1:
        raise ProbingValueError(
            f"a CalibratedClassifierCV that averages {len(fitted)} classifiers is no single probe; fit it with"
            " `ensemble=False`, or around a FrozenEstimator"
        )
    calibrated = fitted[0]
    parts = _read(calibrated.estimator)
    if parts.calibration is not None and not isinstance(parts.calibration, Raw):
        raise ProbingValueError("an estimator that is calibrated twice cannot be said by one probe")
    if len(calibrated.calibrators) != 1 or len(calibrated.classes) != 2:
        raise ProbingValueError(
            f"a CalibratedClassifierCV of {len(calibrated.classes)} classes cannot be said by one probe; calibrate a"
            " binary one, or a softmax with `undercurrent.core.training`"
        )
    of = CalibrationInput.LOGIT if parts.gives_logits else CalibrationInput.PROBABILITY
    calibrator, method = calibrated.calibrators[0], calibrated.method
    classes = np.asarray(calibrated.classes)
    if method == "sigmoid":
        platt = Platt(slope=-float(calibrator.a_), intercept=-float(calibrator.b_), of=of)
        return replace(parts, classes=classes, calibration=platt)
    if method == "isotonic":
        knots = {
            "calibration_x": np.asarray(calibrator.X_thresholds_, np.float64),
            "calibration_y": np.asarray(calibrator.y_thresholds_, np.float64),
        }
        return replace(parts, classes=classes, calibration=Isotonic(of=of), knots=knots)
    if method == "temperature":
        # scikit-learn spreads a binary decision x over the logits (-x, x), which are 2 x apart; chances stay chances.
        spread = 2.0 if parts.gives_logits else 1.0
        return replace(parts, classes=classes, calibration=Temperature(1.0 / (spread * float(calibrator.beta_))))
    raise ProbingValueError(f"a CalibratedClassifierCV of the method {method!r} is not known; use sigmoid or isotonic")
