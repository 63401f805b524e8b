"""From a prompt to what each of its parts does: players, coalitions, values, estimates."""

from undercurrent.runtime.pipeline.attribution import Attribution, Interaction
from undercurrent.runtime.pipeline.estimators import ESTIMATORS, EstimatorSettings, estimate
from undercurrent.runtime.pipeline.explanation import Explanation
from undercurrent.runtime.pipeline.game import CoalitionGame
from undercurrent.runtime.pipeline.orchestrator import explain
from undercurrent.runtime.pipeline.reanalysis import reanalyze
from undercurrent.runtime.pipeline.settings import CoalitionModel, RunSettings
from undercurrent.runtime.pipeline.values import ANSWER_VALUE, AnswerScorer, ValueFunction, value_function

__all__ = [
    "ANSWER_VALUE",
    "ESTIMATORS",
    "AnswerScorer",
    "Attribution",
    "CoalitionGame",
    "CoalitionModel",
    "EstimatorSettings",
    "Explanation",
    "Interaction",
    "RunSettings",
    "ValueFunction",
    "estimate",
    "explain",
    "reanalyze",
    "value_function",
]
