"""What executors raise on purpose; each error is also the builtin a caller would catch."""

from __future__ import annotations

from undercurrent.errors import UndercurrentError

__all__ = [
    "ExecutorError",
    "ExecutorLostError",
    "ExecutorStartError",
    "ExecutorTimeoutError",
    "ExecutorUnavailableError",
    "RemoteGenerationError",
]


class ExecutorError(UndercurrentError, RuntimeError):
    """The root of what executors raise."""


class ExecutorStartError(ExecutorError):
    """No generator could be made where it should run: the factory raised, or took too long."""


class ExecutorUnavailableError(ExecutorError, ConnectionError):
    """The cluster cannot be reached, refuses the token, or has not what was asked for."""


class ExecutorLostError(ExecutorError):
    """A job lost the process that worked on it as often as the executor tries."""


class ExecutorTimeoutError(ExecutorError, TimeoutError):
    """A batch was not answered in time; its process was ended."""


class RemoteGenerationError(ExecutorError):
    """A generator raised something that cannot travel between processes; the message names it."""
