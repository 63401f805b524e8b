"""The probe classes: arguments, aggregates and verdicts around a scorer."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from types import EllipsisType
from typing import Any, ClassVar

import numpy as np

from undercurrent.core.aggregation import Each, read_aggregation
from undercurrent.core.arrays import as_array
from undercurrent.core.base import Probe
from undercurrent.core.batch import ActivationBatch
from undercurrent.core.builtin.aggregates import make_aggregate
from undercurrent.core.builtin.scoring import Scores
from undercurrent.core.function_probe import read_action, read_threshold
from undercurrent.core.probe_file import load_probe
from undercurrent.core.saved import SavedProbe
from undercurrent.core.signals import ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import ProbingTypeError, ProbingValueError, one_of
from undercurrent.spec import ActivationRecord, ProbeKind

_logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_SIGNAL_WORDS = ("all", "flagged")
HISTORY_MAX = 64
"""Flagged signals that a result keeps; the first ones, since the first one is what an abort came from."""


class BuiltinProbe(Probe):
    """Runs a `SavedProbe` of the kind its class stands for.

    A record whose activation holds NaN or infinity, or whose product does, is flagged whatever the threshold, counted
    under `non_finite` and left out of the aggregate: what cannot be judged does not pass as harmless.

    The verdict is `{flagged, score, max_score, n, label, non_finite, first_flagged}`: `score` is the aggregate after
    the last record, and the highest score under `each`; `first_flagged` is a token position. Softmax probes add
    `classes`, the mean chance of each label, and SAE probes add `features`, the highest activation of each.
    """

    probe_kind = ProbeKind.TRAJECTORY.value
    reads_in_place = True
    saved_kind: ClassVar[str]

    def __init__(
        self,
        file: str | os.PathLike[str] | None = None,
        *,
        probe: SavedProbe | None = None,
        threshold: float | EllipsisType | None = ...,
        aggregate: Any = None,
        action: ProbeAction | str = "flag",
        target: str | None = None,
        signals: str = "all",
        any_layer: bool = False,
    ) -> None:
        """`file` or `probe` says what to run; the rest replaces what was saved with it.

        `aggregate` is a word or mapping, see `read_aggregation`. `action` is what a flag asks for, `flag` or `abort`.
        `target` is the label whose chance is the score: by default the second, or anything but the first. `signals` is
        `all` for one per record, `flagged` for those alone. `any_layer` lets records of other layers through.

        Raises:
            ProbeFileError, ProbeFileNotFoundError: the file cannot be used, or holds another kind of probe.
            ProbingTypeError, ProbingValueError: an argument is wrong.
        """
        where = f"probe {self.saved_kind!r}"
        if (file is None) == (probe is None):
            raise ProbingTypeError(
                f"{where} needs either `file`, as in `probe_args: {{file: probe.safetensors}}`, or `probe`"
            )
        saved = _load_once(os.fspath(file)) if file is not None else probe
        if not isinstance(saved, SavedProbe):
            raise ProbingTypeError(f"{where}: `probe` must be a SavedProbe, got {type(saved).__name__}")
        if saved.kind != self.saved_kind:
            raise ProbingValueError(
                f"{where} cannot run {'the saved probe' if file is None else repr(os.fspath(file))}, which is of kind"
                f" {saved.kind!r}; write `probe_type: {saved.kind}`"
            )
        if signals not in _SIGNAL_WORDS:
            raise ProbingValueError(f"{where}: `signals` must be {one_of(_SIGNAL_WORDS)}, got {signals!r}")
        self._saved = saved
        self._scorer = saved.scorer(target=target)
        self._threshold = _default_threshold(saved) if threshold is ... else read_threshold(threshold, where)
        self._form = self._read_form(aggregate, where)
        self._action = read_action(action, where)
        self._target = target
        self._is_quiet = signals == "flagged"
        self._layer = None if any_layer else saved.layer
        self._reset()

    @classmethod
    def of_kind(cls, kind: ProbeKind | str) -> type[Probe]:
        """The class of the same probe for points of `kind`."""
        return _CLASSES_BY_KIND[cls.saved_kind].get(str(getattr(kind, "value", kind)), cls)

    def on_start(self, request_ctx: RequestContext) -> None:
        """Forgets everything, and says in the log if the model is another one than the probe was trained on."""
        self._reset()
        metadata = getattr(request_ctx, "prompt_metadata", None) or {}
        _warn_of_model(self._saved, metadata.get("model"))

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        """Scores one record.

        Raises:
            ProbingValueError: the record is of another layer, tensor type or size than the probe was trained on.
        """
        self._check_layer(record.layer, record.tensor_type)
        row = as_array(record.tensor).reshape(1, -1)
        return self._judge(self._margins(row, record.layer), [record.token_pos])[0]

    def on_activations(self, batch: ActivationBatch) -> list[ProbeSignal | None]:
        """Scores a batch with one matrix product; raises as `on_activation` does."""
        if not len(batch):
            return []
        try:
            rows = batch.stack()
        except ProbingValueError:  # tensors of several shapes: one of them has no business here, and is named
            return [self.on_activation(record) for record in batch]
        layers = batch.layers
        wrong = np.flatnonzero(layers != (layers if self._layer is None else self._layer))
        # A binding has one tensor type, so that the first record speaks for all.
        self._check_layer(int(layers[wrong[0] if len(wrong) else 0]), batch[0].tensor_type if not self._n else None)
        rows = rows.reshape(len(batch), -1)
        return self._judge(self._margins(rows, int(layers[0])), batch.positions.tolist())

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        """The verdict; see the class."""
        verdict: dict[str, Any] = {
            "flagged": self._is_flagged,
            "score": self._max_score if isinstance(self._form, Each) else self._score,
            "max_score": self._max_score,
            "n": self._n,
            "label": None,
            "non_finite": self._non_finite,
            "first_flagged": self._first_flagged,
        }
        if self._n > self._non_finite:
            verdict |= self._labelled()
        return ProbeResult(
            self.request_id,
            self.extraction_point_name,
            verdict,
            signal_history=list(self._history),
            metadata={"probe": self._saved.kind, "threshold": self._threshold, "model": self._saved.model},
        )

    def _labelled(self) -> dict[str, Any]:
        """The label of what was judged, with the figures behind it where there are more than two."""
        names = self._saved.labels
        if self._classes is None:
            is_second = self._has_reached == (self._target in (None, names[1]))
            return {"label": names[1] if is_second else names[0]}
        if self._saved.kind != "sae_feature":
            values = self._classes / (self._n - self._non_finite)
            return {"label": names[int(values.argmax())], "classes": dict(zip(names, values.tolist(), strict=True))}
        chosen = names if self._target is None else (self._target,)
        label = chosen[int(self._classes.argmax())] if self._classes.max() > 0 else None
        return {"label": label, "features": dict(zip(chosen, self._classes.tolist(), strict=True))}

    def _reset(self) -> None:
        self._aggregate = make_aggregate(self._form, self._threshold)
        self._n = 0
        self._non_finite = 0
        self._is_flagged = False
        # Unlike a flag, not set by a record that holds no numbers.
        self._has_reached = False
        self._first_flagged: int | None = None
        self._score: float | None = None
        self._max_score: float | None = None
        self._classes: Array | None = None
        self._history: list[ProbeSignal] = []

    def _read_form(self, aggregate: Any, where: str) -> Any:
        form = read_aggregation(aggregate, f"{where}: `aggregate`")
        if type(self).probe_kind != ProbeKind.SINGLE_SHOT.value:
            return form or self._saved.aggregation or Each()
        if form is not None and not isinstance(form, Each):
            raise ProbingValueError(
                f"{where}: a 'single_shot' point judges each record by itself, got `aggregate` {aggregate!r}; write"
                " `probe_kind: trajectory`"
            )
        return Each()

    def _check_layer(self, layer: int, tensor_type: str | None) -> None:
        saved = self._saved
        if self._layer is not None and (layer != saved.layer or tensor_type not in (None, saved.tensor_type)):
            raise ProbingValueError(
                f"point {self.extraction_point_name!r} gives layer {layer}, {tensor_type or saved.tensor_type!r}, to a"
                f" probe trained on layer {saved.layer}, {saved.tensor_type!r}; change the point, or set `any_layer:"
                " true` in its `probe_args`"
            )

    def _margins(self, rows: Array, layer: int) -> Scores:
        if rows.shape[1] != self._saved.hidden_size:
            raise ProbingValueError(
                f"point {self.extraction_point_name!r} gives {rows.shape[1]} values per token at layer {layer}, and the"
                f" probe was trained on {self._saved.hidden_size} (layer {self._saved.layer}"
                f"{f' of {self._saved.model}' if self._saved.model else ''}): it belongs to another model or tensor"
            )
        return self._scorer.margins(rows)

    def _judge(self, found: Scores, positions: list[int]) -> list[ProbeSignal | None]:
        finite = found.is_finite.tolist()
        if all(finite):
            margins, classes = found.margins, found.classes
        else:
            margins = np.where(found.is_finite, found.margins, 0.0)
            classes = None if found.classes is None else found.classes[found.is_finite]
        if classes is not None and len(classes):
            self._add_classes(classes)
        scores = self._scorer.link(margins)
        values = self._aggregated(margins, scores, finite)
        return [
            self._signal(value, score, position) if is_finite else self._refuse(position)
            for value, score, position, is_finite in zip(values, scores.tolist(), positions, finite, strict=True)
        ]

    def _aggregated(self, margins: Array, scores: Array, finite: list[bool]) -> list[float]:
        """The aggregate after each record; one that is not finite leaves it as it was."""
        if isinstance(self._form, Each):
            return scores.tolist()  # type: ignore[no-any-return]
        push, value, values = self._aggregate.push, 0.0, []
        for margin, score, is_finite in zip(margins.tolist(), scores.tolist(), finite, strict=True):
            value = push(margin, score) if is_finite else value
            values.append(value)
        return self._scorer.link(np.array(values)).tolist() if self._aggregate.limit is None else values

    def _signal(self, value: float, score: float, position: int) -> ProbeSignal | None:
        self._n += 1
        self._score = value
        if self._max_score is None or value > self._max_score:
            self._max_score = value
        limit = self._threshold if self._aggregate.limit is None else self._aggregate.limit
        is_early = self._n - self._non_finite < self._aggregate.min_records
        is_flagged = limit is not None and value >= limit and not is_early
        if self._is_quiet and not is_flagged:
            return None
        metadata: dict[str, Any] = {"score": value}
        if not isinstance(self._form, Each):
            metadata["record_score"] = score
        action = self._action if is_flagged else ProbeAction.CONTINUE
        signal = ProbeSignal(action, metadata, confidence=value if self._saved.is_probability else None)
        if is_flagged:
            self._has_reached = True
            self._note(signal, position)
        return signal

    def _refuse(self, position: int) -> ProbeSignal:
        self._n += 1
        self._non_finite += 1
        signal = ProbeSignal(self._action, {"score": None, "non_finite": True})
        self._note(signal, position)
        return signal

    def _note(self, signal: ProbeSignal, position: int) -> None:
        self._is_flagged = True
        if self._first_flagged is None:
            self._first_flagged = position
        if len(self._history) < HISTORY_MAX:
            self._history.append(signal)

    def _add_classes(self, classes: Array) -> None:
        if self._saved.kind == "sae_feature":
            highest = classes.max(axis=0)
            self._classes = highest if self._classes is None else np.maximum(self._classes, highest)
        else:
            total = classes.sum(axis=0)
            self._classes = total if self._classes is None else self._classes + total


class LinearProbe(BuiltinProbe):
    """Logistic regression or softmax over one activation."""

    saved_kind = "linear"


class MLPProbe(BuiltinProbe):
    """A feed-forward network over one activation."""

    saved_kind = "mlp"


class MeanDifferenceProbe(BuiltinProbe):
    """The projection on the line between the means of two classes: 0 is the mean of the first, 1 of the second."""

    saved_kind = "mean_difference"


class SaeFeatureProbe(BuiltinProbe):
    """The activation of chosen features of a sparse autoencoder; the score is the highest of them."""

    saved_kind = "sae_feature"


class SingleShotLinearProbe(LinearProbe):
    """`LinearProbe` for `single_shot` points."""

    probe_kind = ProbeKind.SINGLE_SHOT.value


class SingleShotMLPProbe(MLPProbe):
    """`MLPProbe` for `single_shot` points."""

    probe_kind = ProbeKind.SINGLE_SHOT.value


class SingleShotMeanDifferenceProbe(MeanDifferenceProbe):
    """`MeanDifferenceProbe` for `single_shot` points."""

    probe_kind = ProbeKind.SINGLE_SHOT.value


class SingleShotSaeFeatureProbe(SaeFeatureProbe):
    """`SaeFeatureProbe` for `single_shot` points."""

    probe_kind = ProbeKind.SINGLE_SHOT.value


PROBE_CLASSES: dict[str, type[BuiltinProbe]] = {
    "linear": LinearProbe,
    "mlp": MLPProbe,
    "mean_difference": MeanDifferenceProbe,
    "sae_feature": SaeFeatureProbe,
}
"""By kind, which is also the registered name."""

_CLASSES_BY_KIND: dict[str, dict[str, type[BuiltinProbe]]] = {
    kind: {ProbeKind.TRAJECTORY.value: of_trajectories, ProbeKind.SINGLE_SHOT.value: of_records}
    for kind, of_trajectories, of_records in (
        ("linear", LinearProbe, SingleShotLinearProbe),
        ("mlp", MLPProbe, SingleShotMLPProbe),
        ("mean_difference", MeanDifferenceProbe, SingleShotMeanDifferenceProbe),
        ("sae_feature", SaeFeatureProbe, SingleShotSaeFeatureProbe),
    )
}


def _default_threshold(saved: SavedProbe) -> float | None:
    return 0.5 if saved.threshold is None and saved.is_probability else saved.threshold


# A probe is spawned per request: the file is read once, and again when it was replaced. Guarded by `_loading`.
_loaded: OrderedDict[tuple[Any, ...], SavedProbe] = OrderedDict()
_loading = threading.Lock()
_LOADED_MAX = 32


def _load_once(path: str) -> SavedProbe:
    try:
        state = os.stat(path)
    except OSError:
        return load_probe(path)  # which says what is wrong
    key = (os.path.abspath(path), state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
    with _loading:
        saved = _loaded.get(key)
        if saved is None:
            saved = _loaded[key] = load_probe(path)
            if len(_loaded) > _LOADED_MAX:
                _loaded.popitem(last=False)
        else:
            _loaded.move_to_end(key)
    return saved


_warned_models: set[tuple[str, str]] = set()
_WARNED_MAX = 256


def _warn_of_model(saved: SavedProbe, model: object) -> None:
    if saved.model is None or not isinstance(model, str) or model == saved.model:
        return
    pair = (saved.model, model)
    if pair not in _warned_models and len(_warned_models) < _WARNED_MAX:
        _warned_models.add(pair)
        _logger.warning("a %s probe trained on model %r watches model %r (said once)", saved.kind, *pair)
