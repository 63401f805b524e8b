"""Probes: what users write, what they say, and how much of the traffic stands behind it.

Write a `Probe`; a `ProbeFactory` makes one per point and request. A probe is told about its request by a
`RequestContext`, answers records (an `ActivationRecord`, or several in an `ActivationBatch`) with a `ProbeSignal`, and
ends with a `ProbeResult`; `Coverage` says what that result rests on. `@probe` makes a probe of a function;
`register_probe` and `ProbeRegistry` give probes the names that specs use. `undercurrent.core.examples` has
two probes to start from.
"""

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
    "default_registry",
    "get_probe_factory",
    "list_probes",
    "probe",
    "register_probe",
    "unregister_probe",
]
