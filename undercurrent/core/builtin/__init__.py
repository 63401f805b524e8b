"""Probes that run a `SavedProbe`: linear, mlp, mean_difference and sae_feature.

Specs name them by kind, with `probe_args: {file: probe.safetensors}`; `SavedProbe.factory()` makes one in Python. Each
kind has a class for `trajectory` points and one for `single_shot` points; a point gets the one of its `probe_kind`.
"""

from undercurrent.core.builtin.probes import (
    PROBE_CLASSES,
    BuiltinProbe,
    LinearProbe,
    MeanDifferenceProbe,
    MLPProbe,
    SaeFeatureProbe,
    SingleShotLinearProbe,
    SingleShotMeanDifferenceProbe,
    SingleShotMLPProbe,
    SingleShotSaeFeatureProbe,
)
from undercurrent.core.builtin.scoring import Scorer, Scores

__all__ = [
    "PROBE_CLASSES",
    "BuiltinProbe",
    "LinearProbe",
    "MLPProbe",
    "MeanDifferenceProbe",
    "SaeFeatureProbe",
    "Scorer",
    "Scores",
    "SingleShotLinearProbe",
    "SingleShotMLPProbe",
    "SingleShotMeanDifferenceProbe",
    "SingleShotSaeFeatureProbe",
]
