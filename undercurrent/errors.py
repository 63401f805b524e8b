"""Every error Undercurrent raises on purpose, and the wording they share.

An error here is an `UndercurrentError` and, besides, the builtin a caller would catch: a bad value is a `ValueError`, a
missing file is a `FileNotFoundError`. `ProbingError` is the root for the probe router (spec, core, router, sinks,
engines); ring and worker errors hang directly below `UndercurrentError`.

All of them survive pickling, because a worker's error is raised again in the process that asked for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "MissingDependencyError",
    "PositionSyntaxError",
    "ProbeDefinitionError",
    "ProbeFileError",
    "ProbeFileNotFoundError",
    "ProbeNotFoundError",
    "ProbeTransferError",
    "ProbedModelConfigError",
    "ProbingError",
    "ProbingKeyError",
    "ProbingRuntimeError",
    "ProbingSpecError",
    "ProbingTimeoutError",
    "ProbingTypeError",
    "ProbingValueError",
    "RingCorruptError",
    "RingError",
    "RingMemoryError",
    "RingUnavailableError",
    "RouterError",
    "SpecFileNotFoundError",
    "SpecValidationError",
    "UndercurrentError",
    "UnsupportedPayloadError",
    "ValuePathError",
    "WorkerError",
    "did_you_mean",
    "nearest_names",
    "one_of",
]

# difflib's own default. Lower values begin to offer names that share only an ending.
_NEARNESS_MIN = 0.6


class UndercurrentError(Exception):
    """The root of every error this project raises on purpose."""


class ProbingError(UndercurrentError):
    """The root of every deliberate error of the probe router."""


class ProbingValueError(ProbingError, ValueError):
    """A value is of the right type and not acceptable."""


class ProbingTypeError(ProbingError, TypeError):
    """A value is of the wrong type."""


class ProbingRuntimeError(ProbingError, RuntimeError):
    """The call is right and comes at the wrong time."""


class ProbingKeyError(ProbingError, KeyError):
    """A name was looked up that nobody knows."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which turns a sentence into a quoted string.
        return Exception.__str__(self)


class ProbingTimeoutError(ProbingError, TimeoutError):
    """A deadline that the caller set passed first; what was waited for may still happen."""


class ProbeDefinitionError(ProbingTypeError):
    """A class or function cannot serve as a probe."""


class ProbeFileError(ProbingValueError):
    """A file cannot be used as a saved probe."""


class ProbeFileNotFoundError(ProbeFileError, FileNotFoundError):
    """The path of a saved probe leads nowhere."""


class ProbingSpecError(ProbingError, ValueError):
    """Something in a spec cannot be used."""


class PositionSyntaxError(ProbingSpecError):
    """A position is not in the grammar of positions."""


class SpecValidationError(ProbingSpecError):
    """A spec has one or more problems; `issues` holds each as a sentence of its own."""

    def __init__(self, message: str, *, issues: Sequence[str] | None = None) -> None:
        super().__init__(message)
        self.issues: tuple[str, ...] = tuple(issues) if issues is not None else (message,)


class SpecFileNotFoundError(ProbingError, FileNotFoundError):
    """The path of a spec leads nowhere."""


class RouterError(ProbingRuntimeError):
    """The router was asked for something it cannot do: unknown request or point, duplicate id, call after shutdown."""


class ProbeNotFoundError(ProbingKeyError):
    """No probe is registered under `name`; `known` holds the names that are."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known: list[str] = list(known)
        self.message = _probe_not_found_message(name, self.known)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[type[ProbeNotFoundError], tuple[str, list[str]]]:
        return type(self), (self.name, self.known)


class MissingDependencyError(ProbingError, ImportError):
    """A package that an optional part needs is not installed."""


class ProbedModelConfigError(ProbingError, ValueError):
    """A model, a spec and a backend do not fit together."""


class RingError(UndercurrentError, RuntimeError):
    """The root of what the rings and their memory raise."""


class RingCorruptError(RingError):
    """Shared memory holds something no producer of ours writes; the ring is closed."""


class RingMemoryError(RingError, MemoryError):
    """The memory limit of the rings, or the kernel, refuses what was asked for."""


class RingUnavailableError(RingError, OSError):
    """This platform lacks what a ring is made of; the message names what is missing."""


class WorkerError(UndercurrentError, RuntimeError):
    """A worker process could not be started, or ended, while the caller depended on it."""


class ProbeTransferError(ProbingTypeError):
    """A probe factory cannot travel to a worker; the message names the attribute and the way out."""


class UnsupportedPayloadError(ProbingTypeError):
    """A record's tensor is of a kind that cannot cross to a worker."""


class ValuePathError(ProbingTypeError):
    """A verdict, metadata or context value cannot cross a process border; the message names its path."""


def nearest_names(name: str, known: Iterable[str], *, count: int = 1) -> list[str]:
    """Up to `count` of the `known` names that look like `name`, best first; case is ignored."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=count, cutoff=_NEARNESS_MIN)
    return [by_folded[match] for match in matches]


def did_you_mean(name: str, known: Iterable[str], *, count: int = 1) -> str:
    """The clause "; did you mean 'x'?" to append to a message, or "" where nothing is near.

    >>> did_you_mean("trajectori", ["single_shot", "trajectory"])
    "; did you mean 'trajectory'?"
    """
    nearest = nearest_names(name, known, count=count)
    if not nearest:
        return ""
    return f"; did you mean {' or '.join(map(repr, nearest))}?"


def one_of(allowed: Iterable[str]) -> str:
    """The clause "one of 'a', 'b'", or "'a'" where there is one.

    >>> one_of(["inline", "async"])
    "one of 'inline', 'async'"
    """
    names = [repr(str(value)) for value in allowed]
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _probe_not_found_message(name: str, known: Sequence[str]) -> str:
    listing = ", ".join(map(repr, sorted(known))) if known else "none"
    suggestion = did_you_mean(name, known, count=3) or ";"
    return (
        f"no probe is registered as {name!r}{suggestion} known probes: {listing}. Register one with @probe({name!r}),"
        f" register_probe({name!r}, YourProbe), probe_registry={{{name!r}: ProbeFactory(YourProbe)}}, or an entry point"
        " in the group 'undercurrent.probes'"
    )
