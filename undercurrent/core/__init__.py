"""Probes: what users write, what they say, and how much of the traffic stands behind it.

Write a `Probe`; a `ProbeFactory` makes one per point and request. A probe is told about its request by a
`RequestContext`, answers records (an `ActivationRecord`, or several in an `ActivationBatch`) with a `ProbeSignal`, and
ends with a `ProbeResult`; `Coverage` says what that result rests on.
"""

from undercurrent.core.batch import ActivationBatch
from undercurrent.core.coverage import Coverage, CoverageReason
from undercurrent.core.probe import Probe, ProbeFactory
from undercurrent.core.signal import ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import ProbeNotFoundError
from undercurrent.spec import ActivationRecord

__all__ = [
    "ActivationBatch",
    "ActivationRecord",
    "Coverage",
    "CoverageReason",
    "Probe",
    "ProbeAction",
    "ProbeFactory",
    "ProbeNotFoundError",
    "ProbeResult",
    "ProbeSignal",
    "RequestContext",
]
