"""What is read from a model and by which probe: the words and values of a spec.

    >>> from undercurrent.spec import load_spec, parse_position
    >>> parse_position("generated[*]").is_continuous
    True

Loading: `load_spec` takes a path, YAML or JSON text, or a dict, and lists every problem at once. Writing: `to_yaml`,
`probe_spec_to_dict`; `json_schema` describes the format to editors. `find_point_problems` checks points built by hand.

Values: `ActivationRecord`, `ExtractionPoint` with `PositionSelector`, `InterventionPolicy`, `Until`, `Sample` and
`FrozenArgs`, and the `ProbeSpec` that holds points. Vocabularies: `TensorType`, `ProbeKind`, `ExecutionMode` and the
other enums.
"""

from undercurrent.errors import PositionSyntaxError, ProbingSpecError, SpecValidationError
from undercurrent.spec.arguments import FrozenArgs
from undercurrent.spec.check import find_point_problems
from undercurrent.spec.dump import extraction_point_to_dict, probe_spec_to_dict, to_yaml
from undercurrent.spec.json_schema import json_schema
from undercurrent.spec.load import SpecSource, load_spec, load_yaml_file, parse_dict, parse_yaml
from undercurrent.spec.point import ExtractionPoint, InterventionPolicy, ProbeSpec, Sample, Until
from undercurrent.spec.position import PositionSelector, parse_position
from undercurrent.spec.record import ActivationRecord
from undercurrent.spec.schema import BATCH_RECORDS_MAX
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
    "BATCH_RECORDS_MAX",
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
    "SpecSource",
    "SpecValidationError",
    "TensorType",
    "TimeoutAction",
    "Until",
    "UntilKind",
    "extraction_point_to_dict",
    "find_point_problems",
    "json_schema",
    "load_spec",
    "load_yaml_file",
    "parse_dict",
    "parse_position",
    "parse_yaml",
    "probe_spec_to_dict",
    "to_yaml",
]
