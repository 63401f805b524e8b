"""Items into parts, groups whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from undercurrent.core.training.libraries import load_library
from undercurrent.errors import ProbingValueError

__all__ = ["Split", "split_by_group"]

Array = np.ndarray[Any, Any]

_PARTS_MAX = 10
# Balancing labels over groups takes a millisecond a group.
_BALANCED_GROUPS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Split:
    """Indices of items, each part in rising order; no group is in two parts."""

    train: Array
    calibration: Array
    """For what is chosen after training: calibration and threshold."""
    held_out: Array
    """For what is reported."""


def split_by_group(
    labels: Any, groups: Any, *, held_out: float = 0.4, calibration: float = 0.2, seed: int = 0
) -> Split:
    """Parts of about the given shares, each with about the same share of each label.

    Raises:
        ProbingValueError: shares that leave nothing to train on, or too few groups of some label.
        MissingDependencyError: the extra `train` is not installed.
    """
    truth, own = np.asarray(labels), np.asarray(groups)
    if truth.shape != own.shape or truth.ndim != 1:
        raise ProbingValueError(f"expected one label and one group per item, got shapes {truth.shape} and {own.shape}")
    if not (0 < held_out < 1 and 0 <= calibration < 1 and held_out + calibration < 1):
        raise ProbingValueError(
            f"`held_out` and `calibration` must be shares that leave some to train on, got {held_out} and {calibration}"
        )
    parts = _deal(truth, own, seed)
    count = len(parts)
    held_count = min(max(1, round(held_out * count)), count - 1)
    kept = count - held_count
    calibration_count = min(max(1, round(calibration * count)), kept - 1) if calibration and kept > 1 else 0
    chosen = {
        "held_out": parts[:held_count],
        "calibration": parts[held_count : held_count + calibration_count],
        "train": parts[held_count + calibration_count :],
    }
    split = Split(**{name: np.sort(np.concatenate([*some, np.empty(0, np.int64)])) for name, some in chosen.items()})
    for name, rows in (("train", split.train), ("held_out", split.held_out)):
        missing = set(truth.tolist()) - set(truth[rows].tolist())
        if missing:
            raise ProbingValueError(
                f"the part {name!r} has no item of label {sorted(map(str, missing))[0]!r}: a label needs several"
                f" groups; got {len(np.unique(own))} groups in all"
            )
    return split


def _deal(truth: Array, own: Array, seed: int) -> list[Array]:
    """As many parts as there are groups of the rarest label, up to 10, by groups and balanced by label."""
    per_label = [len(np.unique(own[truth == label])) for label in np.unique(truth)]
    count = min(_PARTS_MAX, *per_label) if len(per_label) > 1 else 0
    if count < 3:
        raise ProbingValueError(
            f"a split by group needs two labels with at least 3 groups each, got {per_label} groups per label; leave"
            " `group` out if every text stands for itself"
        )
    group_count = len(np.unique(own))
    name = "StratifiedGroupKFold"
    if group_count == len(own):
        name = "StratifiedKFold"
    elif group_count > _BALANCED_GROUPS_MAX:
        name = "GroupKFold"  # so many groups balance themselves
    folds = getattr(load_library("sklearn.model_selection"), name)(count, shuffle=True, random_state=seed)
    kept_whole = None if name == "StratifiedKFold" else own
    parts = [part.astype(np.int64) for _, part in folds.split(np.zeros(len(truth)), truth, kept_whole)]
    # What cannot be dealt out evenly is given to the first parts, which would all be held out.
    return [parts[index] for index in np.random.default_rng(seed).permutation(count)]
