"""Probes: what users write, what they say, and how much of the traffic stands behind it.

Write a `Probe`; a `ProbeFactory` makes one per point and request. A probe is told about its request by a
`RequestContext`, answers records (an `ActivationRecord`, or several in an `ActivationBatch`) with a `ProbeSignal`, and
ends with a `ProbeResult`; `Coverage` says what that result rests on. `@probe` makes a probe of a function;
`register_probe` and `ProbeRegistry` give probes the names that specs use. `undercurrent.core.examples` has
two probes to start from.

A `SavedProbe` is a trained probe; `save_probe` and `load_probe` keep it in a safetensors file, `from_sklearn` makes it
of an estimator, and `undercurrent.core.builtin` runs it. These load numpy when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from undercurrent.core.base import Probe, ProbeFactory
from undercurrent.core.batch import ActivationBatch
from undercurrent.core.coverage import Coverage, CoverageReason
from undercurrent.core.function_probe import FunctionProbe, probe
from undercurrent.core.registry import (
    ProbeRegistry,
    default_registry,
    get_probe_factory,
    list_probes,
    register_probe,
    unregister_probe,
)
from undercurrent.core.signals import ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import ProbeNotFoundError
from undercurrent.spec import ActivationRecord

if TYPE_CHECKING:
    from undercurrent.core.estimators import from_sklearn
    from undercurrent.core.probe_file import load_probe, save_probe
    from undercurrent.core.saved import SavedProbe

__all__ = [
    "ActivationBatch",
    "ActivationRecord",
    "Coverage",
    "CoverageReason",
    "FunctionProbe",
    "Probe",
    "ProbeAction",
    "ProbeFactory",
    "ProbeNotFoundError",
    "ProbeRegistry",
    "ProbeResult",
    "ProbeSignal",
    "RequestContext",
    "SavedProbe",
    "default_registry",
    "from_sklearn",
    "get_probe_factory",
    "list_probes",
    "load_probe",
    "probe",
    "register_probe",
    "save_probe",
    "unregister_probe",
]

_MODULE_OF = {
    "SavedProbe": "undercurrent.core.saved",
    "from_sklearn": "undercurrent.core.estimators",
    "load_probe": "undercurrent.core.probe_file",
    "save_probe": "undercurrent.core.probe_file",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value
