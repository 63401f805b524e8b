"""`SavedProbe`: a trained probe as a value, whatever made it and wherever it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from undercurrent.core.aggregation import Aggregation, read_aggregation
from undercurrent.core.calibration import Calibration, Isotonic, Raw, read_calibration
from undercurrent.core.function_probe import read_threshold
from undercurrent.core.weights import KNOTS, check_weights
from undercurrent.errors import ProbingTypeError, ProbingValueError, did_you_mean, one_of
from undercurrent.spec import TensorType

if TYPE_CHECKING:
    from undercurrent.core.base import ProbeFactory
    from undercurrent.core.builtin.scoring import Scorer

__all__ = ["SavedProbe"]

Array = np.ndarray[Any, Any]

_TENSOR_TYPES = tuple(member.value for member in TensorType)


@dataclass(frozen=True, slots=True, eq=False)
class SavedProbe:
    """The weights of a trained probe with what is needed to use it rightly.

    Everything is checked when it is made: shapes, dtypes, ranges, that no weight is NaN. Arrays are copied where they
    have to be converted, and read-only afterwards, so that one probe can serve any number of requests and threads.

    >>> probe = SavedProbe("linear", {"weight": [1.0, -1.0], "bias": 0.5}, layer=4, tensor_type="residual_stream")
    >>> probe.hidden_size, probe.score([[2.0, 1.0]]).round(2).tolist()
    (2, [0.82])

    Raises:
        ProbingTypeError, ProbingValueError: something does not fit; the message names the field.
    """

    kind: str
    """`linear`, `mlp`, `mean_difference` or `sae_feature`."""
    weights: Mapping[str, Array]
    """By name, float32; the knots of an isotonic calibration are float64. See the README of `core.builtin`."""
    layer: int
    """The layer it was trained on; `final_norm` has the number of layers."""
    tensor_type: str
    model: str | None = None
    """The model it was trained on, as engines tell it in `prompt_metadata`."""
    labels: tuple[str, ...] = ()
    """One per class: the first is the one that asks for nothing. Of a binary probe two, of an SAE one per feature."""
    threshold: float | None = None
    """Scores from here on are flagged; None only records them."""
    calibration: Calibration | None = None
    aggregation: Aggregation | None = None
    """How the records of a generation are brought together, unless the point says otherwise; None is `each`."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the training, as JSON has them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the kind needs besides arrays: `activation` (mlp, sae_feature), `k` and `features` (sae_feature)."""
    hidden_size: int = field(init=False)
    output_count: int = field(init=False)
    """1, or the number of classes of a softmax."""

    def __post_init__(self) -> None:
        where = f"saved probe of kind {self.kind!r}"
        arrays = _read_arrays(self.weights, where)
        settings = _read_json_mapping(self.settings, f"{where}: `settings`")
        hidden_size, output_count = check_weights(self.kind, arrays, settings, where)
        values = {
            "weights": MappingProxyType(arrays),
            "layer": _read_layer(self.layer, where),
            "tensor_type": _read_tensor_type(self.tensor_type, where),
            "labels": _read_labels(self.labels, self.kind, output_count, arrays, settings, where),
            "threshold": _read_threshold(self.threshold, where),
            "calibration": read_calibration(self.calibration, f"{where}: `calibration`"),
            "aggregation": read_aggregation(self.aggregation, f"{where}: `aggregation`"),
            "training": MappingProxyType(_read_json_mapping(self.training, f"{where}: `training`")),
            "settings": MappingProxyType(settings),
            "hidden_size": hidden_size,
            "output_count": output_count,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.model is not None and not isinstance(self.model, str):
            raise ProbingTypeError(f"{where}: `model` must be a name or None, got {self.model!r}")
        _check_calibration(self.calibration, arrays, self.kind, output_count, where)

    def __reduce__(self) -> tuple[Any, ...]:
        # Mapping proxies do not pickle, and a probe that travels to a worker is checked there again.
        plain = {name: dict(value) for name, value in (("weights", self.weights), ("training", self.training))}
        return _rebuild, (
            self.kind,
            plain["weights"],
            self.layer,
            self.tensor_type,
            self.model,
            self.labels,
            self.threshold,
            self.calibration,
            self.aggregation,
            plain["training"],
            dict(self.settings),
        )

    @property
    def is_probability(self) -> bool:
        """Whether a score is a chance between 0 and 1."""
        return self.kind in ("linear", "mlp") and not isinstance(self.calibration, Raw)

    def scorer(self, *, target: str | None = None) -> Scorer:
        """What turns activations into scores; `target` names the label whose chance is the score.

        Raises:
            ProbingValueError: no label of that name.
        """
        from undercurrent.core.builtin.scoring import make_scorer

        return make_scorer(self, target)

    def score(self, activations: Any, *, target: str | None = None) -> Array:
        """The score of each row of `(n, hidden)`, `(n,)` float64; NaN where a row is not finite."""
        return self.scorer(target=target).score(activations)

    def factory(self, **overrides: Any) -> ProbeFactory:
        """A factory of probes that run this; `overrides` are arguments of `undercurrent.core.builtin.BuiltinProbe`.

        >>> probe = SavedProbe("linear", {"weight": [1.0], "bias": 0.0}, layer=0, tensor_type="mlp_out")
        >>> probe.factory(threshold=0.9, action="abort").spawn("req-1", "guard").probe_kind
        'trajectory'
        """
        from undercurrent.core.base import ProbeFactory
        from undercurrent.core.builtin import PROBE_CLASSES

        return ProbeFactory(PROBE_CLASSES[self.kind], {"probe": self, **overrides})


def _rebuild(*values: Any) -> SavedProbe:
    return SavedProbe(*values)


def _read_arrays(weights: Mapping[str, Any], where: str) -> dict[str, Array]:
    if not isinstance(weights, Mapping):
        raise ProbingTypeError(f"{where}: `weights` must map names to arrays, got {type(weights).__name__}")
    arrays: dict[str, Array] = {}
    for name, value in weights.items():
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise ProbingTypeError(f"{where}: {name!r} must be an array of numbers, got dtype {array.dtype}")
        dtype = np.float64 if name in KNOTS else np.float32
        is_frozen = array.dtype == dtype and array.flags.c_contiguous and not array.flags.writeable
        with np.errstate(over="ignore"):
            owned = array if is_frozen else np.array(array, dtype=dtype, order="C")
        owned.flags.writeable = False
        arrays[str(name)] = owned
    return arrays


def _read_layer(layer: object, where: str) -> int:
    if type(layer) is not int or layer < 0:
        raise ProbingValueError(f"{where}: `layer` must be an int >= 0, got {layer!r}")
    return layer


def _read_tensor_type(tensor_type: object, where: str) -> str:
    word = tensor_type.value if isinstance(tensor_type, TensorType) else tensor_type
    if word not in _TENSOR_TYPES:
        raise ProbingValueError(
            f"{where}: `tensor_type` must be {one_of(_TENSOR_TYPES)}, got {word!r}"
            + did_you_mean(str(word), _TENSOR_TYPES)
        )
    return str(word)


def _read_labels(
    labels: Sequence[str],
    kind: str,
    outputs: int,
    arrays: Mapping[str, Array],
    settings: Mapping[str, Any],
    where: str,
) -> tuple[str, ...]:
    if isinstance(labels, str) or not all(isinstance(label, str) and label for label in labels):
        raise ProbingTypeError(f"{where}: `labels` must be a list of non-empty names, got {labels!r}")
    if kind == "sae_feature":
        rows = settings.get("features") or range(len(arrays["W_enc"]))
        expected, default = len(rows), tuple(f"feature_{row}" for row in rows) if not labels else ()
    elif outputs == 1:
        expected, default = 2, ("negative", "positive")
    else:
        expected, default = outputs, tuple(f"class_{index}" for index in range(outputs))
    names = tuple(labels) or default
    if len(names) != expected or len(set(names)) != expected:
        raise ProbingValueError(f"{where}: `labels` must be {expected} different names, got {list(labels)!r}")
    return names


def _read_threshold(threshold: object, where: str) -> float | None:
    number = read_threshold(threshold, where)
    if number is not None and math.isinf(number):
        raise ProbingValueError(f"{where}: `threshold` must be finite, got {number}; None flags nothing")
    return number


def _read_json_mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ProbingTypeError(f"{where} must be a mapping, got {type(value).__name__}")
    try:
        plain: dict[str, Any] = msgspec.to_builtins(dict(value), str_keys=True)
        decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plain))
    except (TypeError, msgspec.MsgspecError) as error:
        raise ProbingTypeError(f"{where} must hold what JSON holds: {error}") from None
    return decoded


def _check_calibration(
    calibration: Calibration | None, arrays: Mapping[str, Array], kind: str, outputs: int, where: str
) -> None:
    is_isotonic = isinstance(calibration, Isotonic)
    knots = [arrays[name] for name in KNOTS if name in arrays]
    if is_isotonic != (len(knots) == 2) or len(knots) == 1:
        raise ProbingValueError(f"{where}: the tensors {KNOTS[0]!r} and {KNOTS[1]!r} go with isotonic calibration only")
    if calibration is not None and kind not in ("linear", "mlp"):
        raise ProbingValueError(f"{where}: only linear and mlp probes have a `calibration`, got {calibration!r}")
    if outputs > 1 and calibration is not None and calibration.__class__.__name__ != "Temperature":
        raise ProbingValueError(f"{where}: a probe of {outputs} classes is calibrated by temperature only")
    if is_isotonic:
        x, y = knots
        if x.ndim != 1 or x.shape != y.shape or not len(x):
            raise ProbingValueError(f"{where}: knots must be two arrays of one length, got {x.shape} and {y.shape}")
        if (np.diff(x) < 0).any() or (np.diff(y) < 0).any() or y[0] < 0 or y[-1] > 1:
            raise ProbingValueError(f"{where}: knots must rise, with {KNOTS[1]!r} from 0 to 1")
