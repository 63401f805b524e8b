"""Trains probes on activations at hand, and says how far to trust them.

`split_by_group` keeps texts that resemble each other on one side, `fit_probe` makes a `SavedProbe`, `calibrate` makes
its scores chances, `evaluate` measures it on what was held out. Everything goes from arrays to plain values; where
activations come from is the caller's affair. scikit-learn and scipy, of the extra `train`, are imported when needed.
"""

from undercurrent.core.training.fitting import CALIBRATIONS, TRAINED_KINDS, calibrate, fit_probe, last_values
from undercurrent.core.training.intervals import Estimate, Rate, area_under_curve
from undercurrent.core.training.measuring import (
    Evaluation,
    ReliabilityBin,
    RocCurve,
    evaluate,
    threshold_at_false_positive_rate,
)
from undercurrent.core.training.splitting import Split, split_by_group

__all__ = [
    "CALIBRATIONS",
    "TRAINED_KINDS",
    "Estimate",
    "Evaluation",
    "Rate",
    "ReliabilityBin",
    "RocCurve",
    "Split",
    "area_under_curve",
    "calibrate",
    "evaluate",
    "fit_probe",
    "last_values",
    "split_by_group",
    "threshold_at_false_positive_rate",
]
