"""What came of a run: a value for each part of the prompt."""

from __future__ import annotations

import msgspec

from undercurrent.runtime.domain import Conversation, PlayerSet
from undercurrent.runtime.metrics import PerfSummary, SchedulerMetrics
from undercurrent.runtime.pipeline.attribution import Attribution

__all__ = ["Explanation"]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "which part of the prompt did it?". Its JSON form is that of `msgspec.to_builtins`."""

    run_id: str
    model_id: str
    value_name: str
    """What was measured of each coalition."""
    absence_policy: str
    conversation: Conversation
    players: PlayerSet
    attribution: Attribution
    base_text: str
    """The generation for the whole prompt."""
    metrics: SchedulerMetrics
    perf: PerfSummary
    archive: str | None = None
    """The folder of the run."""
