"""What is read from a model and by which probe: the words and values of a spec.

    >>> from undercurrent.spec import load_spec, parse_position
    >>> parse_position("generated[*]").is_continuous
    True

Values: `ActivationRecord`, `ExtractionPoint` with `PositionSelector`, `InterventionPolicy`, `Until`, `Sample` and
`FrozenArgs`, and the `ProbeSpec` that holds points. Vocabularies: `TensorType`, `ProbeKind`, `ExecutionMode` and the
other enums.
"""

from undercurrent.errors import PositionSyntaxError, ProbingSpecError, SpecValidationError
from undercurrent.spec.arguments import FrozenArgs
from undercurrent.spec.point import ExtractionPoint, InterventionPolicy, ProbeSpec, Sample, Until
from undercurrent.spec.position import PositionSelector, parse_position
from undercurrent.spec.record import ActivationRecord
from undercurrent.spec.words import (
    ExecutionMode,
    InterventionMode,
    OnError,
    OverflowPolicy,
    PositionKind,
    ProbeKind,
    SampleBy,
    TensorType,
    TimeoutAction,
    UntilKind,
)

__all__ = [
    "ActivationRecord",
    "ExecutionMode",
    "ExtractionPoint",
    "FrozenArgs",
    "InterventionMode",
    "InterventionPolicy",
    "OnError",
    "OverflowPolicy",
    "PositionKind",
    "PositionSelector",
    "PositionSyntaxError",
    "ProbeKind",
    "ProbeSpec",
    "ProbingSpecError",
    "Sample",
    "SampleBy",
    "SpecValidationError",
    "TensorType",
    "TimeoutAction",
    "Until",
    "UntilKind",
    "parse_position",
]
