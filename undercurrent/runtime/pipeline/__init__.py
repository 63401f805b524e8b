"""From a prompt to what each of its parts does: players, coalitions, values, estimates."""

from undercurrent.runtime.pipeline.attribution import Attribution, Interaction
from undercurrent.runtime.pipeline.estimators import ESTIMATORS, EstimatorSettings, estimate
from undercurrent.runtime.pipeline.explanation import Explanation
from undercurrent.runtime.pipeline.game import CoalitionGame
from undercurrent.runtime.pipeline.orchestrator import explain, plan_run
from undercurrent.runtime.pipeline.reanalysis import reanalyze
from undercurrent.runtime.pipeline.settings import CoalitionModel, RunManifest, RunSettings
from undercurrent.runtime.pipeline.values import (
    ANSWER_VALUE,
    FIRED_SUFFIX,
    VALUE_NAMES,
    AnswerScorer,
    ValueFunction,
    value_function,
)

__all__ = [
    "ANSWER_VALUE",
    "ESTIMATORS",
    "FIRED_SUFFIX",
    "VALUE_NAMES",
    "AnswerScorer",
    "Attribution",
    "CoalitionGame",
    "CoalitionModel",
    "EstimatorSettings",
    "Explanation",
    "Interaction",
    "RunManifest",
    "RunSettings",
    "ValueFunction",
    "estimate",
    "explain",
    "plan_run",
    "reanalyze",
    "value_function",
]
