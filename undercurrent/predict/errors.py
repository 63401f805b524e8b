"""What predict raises on purpose. Each is an `UndercurrentError` and the builtin a caller would catch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from undercurrent.errors import UndercurrentError

__all__ = [
    "BatchFailure",
    "CheckpointNotFoundError",
    "HookTimeoutError",
    "PredictError",
    "PredictRuntimeError",
    "PredictTypeError",
    "PredictValueError",
]


class PredictError(UndercurrentError):
    """The root of every deliberate error of the prediction life cycle."""


class PredictTypeError(PredictError, TypeError):
    """A value is of the wrong type."""


class PredictValueError(PredictError, ValueError):
    """A value is of the right type and not acceptable."""


class PredictRuntimeError(PredictError, RuntimeError):
    """The call is right and something else did not do what it promised: an agent that returns too few results."""


class CheckpointNotFoundError(PredictValueError, LookupError):
    """No checkpoint is known under a name; the message names the nearest one and all that are known."""


class HookTimeoutError(PredictError, TimeoutError):
    """A hook was over its deadline. What it did to its context until then, and does after, reaches nobody."""


@dataclass(frozen=True)
class BatchFailure:
    """What a failed batch leaves: `exc.batch` of the exception that ended it. Indices count the caller's requests."""

    results: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    """The result of each request whose checkpoint group had ended well, by its index."""
    failed: Sequence[int] = ()
    """The requests that failed with the exception, in input order."""
    not_started: Sequence[int] = ()
    """The requests whose start hooks never ran, in input order; they are not among `failed` unless the failure is
    theirs."""
