"""The closed vocabularies of a spec.

A member equals its YAML word. The words of 0.1.0 are `(str, Enum)` and not `StrEnum`, because `str(member)` names the
member there and users have log lines that say so; `OverflowPolicy` and the new words print as the YAML word.
"""

# ruff: noqa: UP042

from __future__ import annotations

from enum import Enum, StrEnum

__all__ = [
    "ExecutionMode",
    "InterventionMode",
    "OnError",
    "OverflowPolicy",
    "PositionKind",
    "ProbeKind",
    "SampleBy",
    "TensorType",
    "TimeoutAction",
    "UntilKind",
]


class TensorType(str, Enum):
    """Which of a layer's tensors a point reads."""

    RESIDUAL_STREAM = "residual_stream"
    ATTN_OUT = "attn_out"
    MLP_OUT = "mlp_out"
    KV = "kv"
    FINAL_NORM = "final_norm"


class ProbeKind(str, Enum):
    """Whether a probe judges each record by itself or keeps state across a generation."""

    SINGLE_SHOT = "single_shot"
    TRAJECTORY = "trajectory"


class ExecutionMode(str, Enum):
    """Where a probe runs: on the generation path, or in a worker that generation never waits for."""

    INLINE = "inline"
    ASYNC = "async"


class InterventionMode(str, Enum):
    """Whether an inline point waits for its probe without a bound or up to `timeout_ms`."""

    REJECT = "reject"
    BLOCK_UNTIL_SIGNAL = "block_until_signal"


class TimeoutAction(str, Enum):
    """What a bounded inline point answers when its probe is late or fails."""

    CONTINUE = "continue"
    ABORT = "abort"


class UntilKind(str, Enum):
    """What ends the capture of a continuous position."""

    GENERATION_END = "generation_end"
    FIXED_COUNT = "fixed_count"
    STOP_TOKEN = "stop_token"


class PositionKind(str, Enum):
    """The five forms of a position."""

    ABSOLUTE = "absolute"
    PROMPT_INDEX = "prompt_index"
    GENERATED_INDEX = "generated_index"
    GENERATED_WILDCARD = "generated_wildcard"
    GENERATED_SLICE = "generated_slice"


class OverflowPolicy(StrEnum):
    """What happens to a record that meets a full ring."""

    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    BLOCK = "block"


class OnError(StrEnum):
    """What an inline point does when its probe raises: raise into the engine, abort, or go on."""

    RAISE = "raise"
    ABORT = "abort"
    CONTINUE = "continue"


class SampleBy(StrEnum):
    """Whether sampling picks whole requests or single records."""

    REQUEST = "request"
    RECORD = "record"
