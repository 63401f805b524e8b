"""What one key of a point demands of another; the same rules hold for files and for points built by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from undercurrent.spec.point import ExtractionPoint
from undercurrent.spec.position import INDEX_MAX
from undercurrent.spec.schema import BATCH_RECORDS_MAX
from undercurrent.spec.words import (
    ExecutionMode,
    InterventionMode,
    OnError,
    OverflowPolicy,
    PositionKind,
    ProbeKind,
)

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One demand. `find` answers what is wrong with a point, or None; it looks at the fields in `reads` only."""

    blames: str
    reads: tuple[str, ...]
    find: Callable[[ExtractionPoint], str | None]


def _position_can_match(point: ExtractionPoint) -> str | None:
    position = point.position
    if position.kind is PositionKind.ABSOLUTE and position.index is not None and position.index < 0:
        return f"absolute index {position.index} never matches; write 'prompt[-1]' for the last prompt token"
    if position.kind is PositionKind.ABSOLUTE and position.index is not None and position.index > INDEX_MAX:
        return f"absolute index {position.index} is beyond any text; it must be <= {INDEX_MAX}"
    if (
        position.kind is PositionKind.PROMPT_INDEX
        and position.index is not None
        and 0 <= position.index < -position.offset
    ):
        return (
            f"position {position.to_raw()!r} never matches, since it leads before the first token; count from the end"
            f" of the prompt as in 'prompt[-1]', or take a smaller offset"
        )
    return None


def _needs_continuous(key: str) -> Callable[[ExtractionPoint], str | None]:
    def find(point: ExtractionPoint) -> str | None:
        if getattr(point, key) is None or point.position.is_continuous:
            return None
        return (
            f"`{key}` goes with a continuous position such as 'generated[*]', got position"
            f" {point.position.to_raw()!r}; remove `{key}`, or make the position continuous"
        )

    return find


def _async_keeps_state(point: ExtractionPoint) -> str | None:
    if point.execution_mode is not ExecutionMode.ASYNC or point.probe_kind is not ProbeKind.SINGLE_SHOT:
        return None
    return "an async point needs probe_kind 'trajectory', got 'single_shot'; change it, or set execution_mode: inline"


def _needs_async(key: str, default: object = None) -> Callable[[ExtractionPoint], str | None]:
    def find(point: ExtractionPoint) -> str | None:
        if getattr(point, key) == default or point.execution_mode is ExecutionMode.ASYNC:
            return None
        return f"`{key}` goes with execution_mode 'async'; remove `{key}`, or set execution_mode: async"

    return find


def _needs_process(key: str, default: object = None) -> Callable[[ExtractionPoint], str | None]:
    def find(point: ExtractionPoint) -> str | None:
        if getattr(point, key) == default or point.execution_mode is ExecutionMode.ASYNC or _is_bounded(point):
            return None
        return (
            f"`{key}` goes with a probe in a process of its own; remove `{key}`, or set execution_mode: async or"
            " intervention: {mode: block_until_signal, timeout_ms: …}"
        )

    return find


def _block_timeout_needs_block(point: ExtractionPoint) -> str | None:
    if point.block_timeout_s is None or point.overflow_policy in (None, OverflowPolicy.BLOCK):
        return None
    return f"`block_timeout_s` goes with overflow_policy 'block', got {str(point.overflow_policy)!r}"


def _batch_fits_the_ring(point: ExtractionPoint) -> str | None:
    if point.batch is None or point.queue_depth is None or point.batch <= point.queue_depth:
        return None
    return (
        f"`batch` must be <= {min(point.queue_depth, BATCH_RECORDS_MAX)}, the lesser of `queue_depth` and"
        f" {BATCH_RECORDS_MAX}, got {point.batch}"
    )


def _on_error_needs_inline(point: ExtractionPoint) -> str | None:
    if point.on_error is OnError.RAISE:
        return None
    if point.execution_mode is ExecutionMode.ASYNC:
        return "`on_error` goes with an inline point; an async probe's errors are counted and never reach the engine"
    if _is_bounded(point):
        return (
            "`on_error` goes with an unbounded inline point; with block_until_signal, `on_timeout` answers for errors"
        )
    return None


def _async_never_waits(point: ExtractionPoint) -> str | None:
    if not _is_bounded(point) or point.execution_mode is not ExecutionMode.ASYNC:
        return None
    return (
        "an async point cannot use block_until_signal, since generation never waits for it; remove `intervention`, or"
        " set execution_mode: inline"
    )


def _is_bounded(point: ExtractionPoint) -> bool:
    return point.intervention is not None and point.intervention.mode is InterventionMode.BLOCK_UNTIL_SIGNAL


_MODE = ("execution_mode",)
_PROCESS = ("execution_mode", "intervention")

RULES: tuple[Rule, ...] = (
    Rule("position", ("position",), _position_can_match),
    Rule("stride", ("stride", "position"), _needs_continuous("stride")),
    Rule("until", ("until", "position"), _needs_continuous("until")),
    Rule("probe_kind", ("probe_kind", *_MODE), _async_keeps_state),
    Rule("queue_depth", ("queue_depth", *_MODE), _needs_async("queue_depth")),
    Rule("overflow_policy", ("overflow_policy", *_MODE), _needs_async("overflow_policy")),
    Rule("block_timeout_s", ("block_timeout_s", *_MODE), _needs_async("block_timeout_s")),
    Rule("block_timeout_s", ("block_timeout_s", "overflow_policy"), _block_timeout_needs_block),
    Rule("workers", ("workers", *_MODE), _needs_async("workers", 1)),
    Rule("batch", ("batch", *_MODE), _needs_async("batch")),
    Rule("batch", ("batch", "queue_depth"), _batch_fits_the_ring),
    Rule("probe_timeout_s", ("probe_timeout_s", *_PROCESS), _needs_process("probe_timeout_s")),
    Rule("threads", ("threads", *_PROCESS), _needs_process("threads")),
    Rule("gpu", ("gpu", *_PROCESS), _needs_process("gpu", False)),
    Rule("on_error", ("on_error", *_PROCESS), _on_error_needs_inline),
    Rule("intervention", ("intervention", "execution_mode"), _async_never_waits),
)
