"""Undercurrent watches a language model from the inside while it serves.

    >>> from undercurrent import Router, probe
    >>> @probe(threshold=0.9, register=False)
    ... def loudest(record):
    ...     return max(record.tensor)

A spec (`load_spec`, `ExtractionPoint`) says which activations are read. A probe (`Probe`, `@probe`) reads them, inline
or in a worker process. A `Router` brings one to the other, and a `LogSink` keeps what probes say. Engines that feed a
router are in `undercurrent.engines`.

Every name here is loaded from its room when it is first used; importing this package loads nothing else. Type checkers
read the names in `__init__.pyi`, since an import that stood here would be an import of every room by every other.
"""

from __future__ import annotations

import importlib

__all__ = [
    "ActivationRecord",
    "EngineAdapter",
    "ExecutionMode",
    "ExtractionPoint",
    "FileLogSink",
    "GenerationOutput",
    "InMemoryMetricsRegistry",
    "InterventionMode",
    "InterventionPolicy",
    "LogSink",
    "MetricsSink",
    "MetricsSnapshot",
    "MissingDependencyError",
    "OverflowPolicy",
    "Probe",
    "ProbeAction",
    "ProbeFactory",
    "ProbeKind",
    "ProbeNotFoundError",
    "ProbeResult",
    "ProbeSignal",
    "ProbeSpec",
    "ProbedModel",
    "ProbingError",
    "RequestContext",
    "RequestHandle",
    "Router",
    "RouterError",
    "SpecValidationError",
    "TensorType",
    "TimeoutAction",
    "UndercurrentError",
    "WebhookLogSink",
    "__version__",
    "chain",
    "drop_keys",
    "load_spec",
    "parse_position",
    "probe",
    "redact_keys",
    "register_probe",
]

_ROOMS = {
    "undercurrent.core": (
        "Probe",
        "ProbeAction",
        "ProbeFactory",
        "ProbeResult",
        "ProbeSignal",
        "RequestContext",
        "probe",
        "register_probe",
    ),
    "undercurrent.engines.base": ("EngineAdapter",),
    "undercurrent.errors": (
        "MissingDependencyError",
        "ProbeNotFoundError",
        "ProbingError",
        "RouterError",
        "SpecValidationError",
        "UndercurrentError",
    ),
    "undercurrent.model": ("GenerationOutput", "ProbedModel"),
    "undercurrent.router": (
        "InMemoryMetricsRegistry",
        "MetricsSink",
        "MetricsSnapshot",
        "RequestHandle",
        "Router",
    ),
    "undercurrent.sinks": ("FileLogSink", "LogSink", "WebhookLogSink", "chain", "drop_keys", "redact_keys"),
    "undercurrent.spec": (
        "ActivationRecord",
        "ExecutionMode",
        "ExtractionPoint",
        "InterventionMode",
        "InterventionPolicy",
        "OverflowPolicy",
        "ProbeKind",
        "ProbeSpec",
        "TensorType",
        "TimeoutAction",
        "load_spec",
        "parse_position",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = _read_version()
    elif name in _ROOM_OF:
        value = getattr(importlib.import_module(_ROOM_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _read_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("undercurrent")
    except metadata.PackageNotFoundError:
        return "0.0.0+unknown"
