"""One request to one checkpoint, every event in its order.

    from undercurrent.predict import Router
    router = Router()
    router.predict("where is my parcel", {"late": {"type": "noul", "instructions": "a parcel is late"}})

A `Router` picks the checkpoint that can read a state, loads it and lets it go; an `Agent` is one loaded checkpoint.
Both take hooks: objects with any of six methods, told in an order that `SEQUENCES` states. A model takes part by being
a `Checkpoint`. This package imports no engine, and neither torch nor numpy.
"""

from undercurrent.predict.agent import Agent
from undercurrent.predict.checkpoint import (
    CallOptions,
    Checkpoint,
    CheckpointFactory,
    EncodedState,
    LongCheckpoint,
    Scores,
    StateWindow,
)
from undercurrent.predict.context import WITHHELD, PredictContext
from undercurrent.predict.errors import (
    BatchFailure,
    CheckpointNotFoundError,
    HookTimeoutError,
    PredictError,
    PredictRuntimeError,
    PredictTypeError,
    PredictValueError,
)
from undercurrent.predict.hooks import BaseHook, FailurePolicy, Hook, with_policy
from undercurrent.predict.order import EVENTS, SEQUENCES
from undercurrent.predict.questions import Question
from undercurrent.predict.router import Router
from undercurrent.predict.routing import RouteDecision

__all__ = [
    "EVENTS",
    "SEQUENCES",
    "WITHHELD",
    "Agent",
    "BaseHook",
    "BatchFailure",
    "CallOptions",
    "Checkpoint",
    "CheckpointFactory",
    "CheckpointNotFoundError",
    "EncodedState",
    "FailurePolicy",
    "Hook",
    "HookTimeoutError",
    "LongCheckpoint",
    "PredictContext",
    "PredictError",
    "PredictRuntimeError",
    "PredictTypeError",
    "PredictValueError",
    "Question",
    "RouteDecision",
    "Router",
    "Scores",
    "StateWindow",
    "with_policy",
]
