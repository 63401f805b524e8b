"""The schema of a spec file: which keys there are, of which types, and what they mean.

The structs are read by msgspec and exported as JSON Schema; `describe` puts their types into words for error messages.
What one key demands of another is in `rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, inspect

from undercurrent.errors import one_of
from undercurrent.spec.position import INDEX_MAX, POSITION_PATTERN
from undercurrent.spec.words import (
    ExecutionMode,
    InterventionMode,
    OnError,
    OverflowPolicy,
    ProbeKind,
    SampleBy,
    TensorType,
    TimeoutAction,
)

__all__ = [
    "BATCH_RECORDS_MAX",
    "DEPRECATED_KEYS",
    "VERSION",
    "InterventionSchema",
    "PointSchema",
    "SampleSchema",
    "SpecSchema",
    "UntilSchema",
    "allowed_words",
    "describe",
]

VERSION = "1"
BATCH_RECORDS_MAX = 16
"""A worker holds at most this many records of one binding in its hand."""

# Old key, and the key it became. Only those with True draw a DeprecationWarning; `every_n` is a plain alias.
DEPRECATED_KEYS = {"layer": ("layers", True), "tensor": ("tensor_type", True), "every_n": ("stride", False)}

_INT32_MAX = 2**31 - 1
_SECONDS_MAX = 86_400

Layer = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
Count = Annotated[int, Meta(ge=1, le=_INT32_MAX)]
Seconds = Annotated[float, Meta(gt=0, le=_SECONDS_MAX)]
Name = Annotated[str, Meta(pattern=r"\S")]


class InterventionSchema(Struct, forbid_unknown_fields=True):
    """How an inline point waits for its probe."""

    mode: Annotated[
        InterventionMode,
        Meta(description="'reject' waits without a bound; 'block_until_signal' waits up to timeout_ms."),
    ] = InterventionMode.REJECT
    timeout_ms: Annotated[Count | None, Meta(description="The bound; required with 'block_until_signal'.")] = None
    on_timeout: Annotated[
        TimeoutAction | UnsetType,
        Meta(description="What a late or failing probe answers; only with 'block_until_signal', default 'continue'."),
    ] = UNSET


class UntilSchema(Struct, forbid_unknown_fields=True):
    """What ends the capture of a continuous position; exactly one key."""

    fixed_count: Annotated[Count | UnsetType, Meta(description="Ends it after that many records of a layer.")] = UNSET
    stop_token: Annotated[
        Layer | Annotated[str, Meta(min_length=1)] | UnsetType,
        Meta(description="Ends it behind the first generated token of that id or text."),
    ] = UNSET


class SampleSchema(Struct, forbid_unknown_fields=True):
    """Which part of the traffic is read."""

    rate: Annotated[float, Meta(gt=0, le=1, description="The share that is kept.")]
    by: Annotated[SampleBy, Meta(description="Whether whole requests or single records are picked.")] = SampleBy.REQUEST


class PointSchema(Struct, forbid_unknown_fields=True):
    """One extraction point: what is read, where, and by which probe."""

    name: Annotated[Name, Meta(description="Unique in the file.")]
    layers: Annotated[
        Layer | Annotated[list[Layer], Meta(min_length=1)],
        Meta(description="A layer index from 0, or a list of them."),
    ]
    tensor_type: Annotated[TensorType, Meta(description="Which tensor of a layer is read.")]
    position: Annotated[
        Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": INDEX_MAX})]
        | Annotated[str, Meta(min_length=1, extra_json_schema={"pattern": POSITION_PATTERN})],
        Meta(
            description="Which tokens are read: an index into prompt and generation together; prompt[i] or generated[i]"
            " with i from the end where negative, each with an offset such as +1; generated[*], generated[start:] or"
            " generated[start:stop]."
        ),
    ]
    probe_type: Annotated[Name, Meta(description="The name the probe is registered under.")]
    probe_kind: Annotated[
        ProbeKind,
        Meta(description="'single_shot' judges each record by itself; 'trajectory' keeps state across a generation."),
    ]
    execution_mode: Annotated[
        ExecutionMode,
        Meta(description="'inline' runs on the generation path; 'async' in a worker that generation never waits for."),
    ] = ExecutionMode.INLINE
    stride: Annotated[Count | None, Meta(description="Every n-th position; only with a continuous position.")] = None
    until: Annotated[
        Literal["generation_end"] | UntilSchema | None,
        Meta(description="What ends the capture of a continuous position."),
    ] = None
    queue_depth: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None, Meta(description="How many records may wait; only with async.")
    ] = None
    intervention: Annotated[
        InterventionSchema | None, Meta(description="How an inline point waits; the router's default if absent.")
    ] = None
    probe_args: Annotated[
        dict[str, Any], Meta(description="Arguments of the probe's constructor; they win over the factory's.")
    ] = {}
    overflow_policy: Annotated[
        OverflowPolicy | None,
        Meta(description="What a full ring does; only with async; the router's default if absent."),
    ] = None
    block_timeout_s: Annotated[
        Seconds | None, Meta(description="How long 'block' waits before a record is dropped and counted.")
    ] = None
    probe_timeout_s: Annotated[
        Seconds | None, Meta(description="How long one call of the probe may take before its worker is ended.")
    ] = None
    workers: Annotated[
        Annotated[int, Meta(ge=1, le=1024)], Meta(description="Over how many processes requests are spread.")
    ] = 1
    batch: Annotated[
        Annotated[int, Meta(ge=1, le=BATCH_RECORDS_MAX)] | None,
        Meta(description="How many records one call gets at most; all that a worker holds if absent."),
    ] = None
    on_error: Annotated[OnError, Meta(description="What an inline point does when its probe raises.")] = OnError.RAISE
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="BLAS and torch threads of the worker; one if absent."),
    ] = None
    gpu: Annotated[bool, Meta(description="Whether the worker sees the engine's GPUs.")] = False
    sample: Annotated[SampleSchema | None, Meta(description="Which part of the traffic is read; all if absent.")] = None


class SpecSchema(Struct, forbid_unknown_fields=True):
    """Which activations go to which probe."""

    extraction_points: Annotated[list[PointSchema], Meta(description="The points, in order.")]
    version: Annotated[Literal["1", 1], Meta(description="The version of this format.")] = "1"


def describe(annotation: Any) -> str:
    """What values an annotation allows, in words: "an int >= 1", "one of 'inline', 'async'"."""
    return _describe(inspect.type_info(annotation))


def allowed_words(annotation: Any) -> list[str]:
    """The words an annotation allows, for the nearest name; empty for numbers and free text."""
    info = inspect.type_info(annotation)
    if isinstance(info, inspect.Metadata):
        info = info.type
    words: list[str] = []
    for member in info.types if isinstance(info, inspect.UnionType) else (info,):
        if isinstance(member, inspect.EnumType):
            words.extend(str(item.value) for item in member.cls)
        if isinstance(member, inspect.LiteralType):
            words.extend(str(item) for item in member.values)
        if isinstance(member, inspect.StructType):
            words.extend(item.name for item in member.fields)
    return words


def _describe(info: inspect.Type) -> str:
    if isinstance(info, inspect.Metadata):
        return _describe(info.type)
    if isinstance(info, inspect.UnionType):
        members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
        return " or ".join(_describe(member) for member in members)
    if isinstance(info, inspect.EnumType):
        return one_of(member.value for member in info.cls)
    if isinstance(info, inspect.LiteralType):
        return one_of(dict.fromkeys(str(value) for value in info.values))
    if isinstance(info, inspect.ListType):
        return "a non-empty list of such" if info.min_length else "a list of mappings"
    if isinstance(info, inspect.StructType):
        return f"a mapping of {', '.join(field.name for field in info.fields)}"
    if isinstance(info, inspect.StrType):
        return "a non-blank string" if info.pattern or info.min_length else "a string"
    if isinstance(info, (inspect.IntType, inspect.FloatType)):
        return ("an int" if isinstance(info, inspect.IntType) else "a number") + _describe_bounds(info)
    if isinstance(info, inspect.BoolType):
        return "true or false"
    return "a mapping"


def _describe_bounds(info: inspect.IntType | inspect.FloatType) -> str:
    bounds = []
    if info.gt is not None:
        bounds.append(f"> {info.gt}")
    if info.ge is not None:
        bounds.append(f">= {info.ge}")
    # A bound that only says "fits the machine" would hide the one that matters.
    if info.le is not None and info.le != _INT32_MAX:
        bounds.append(f"<= {info.le}")
    return f" {' and '.join(bounds)}" if bounds else ""
