"""One request to one checkpoint, every event in its order. Grows its names below."""

from undercurrent.predict.checkpoint import CallOptions, Checkpoint, EncodedState, LongCheckpoint, Scores, StateWindow
from undercurrent.predict.errors import BatchFailure, HookTimeoutError, PredictError
from undercurrent.predict.questions import Question

__all__ = [
    "BatchFailure",
    "CallOptions",
    "Checkpoint",
    "EncodedState",
    "HookTimeoutError",
    "LongCheckpoint",
    "PredictError",
    "Question",
    "Scores",
    "StateWindow",
]
