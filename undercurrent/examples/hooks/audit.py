"""One record per request, whatever came of it.

Policy: closed. Where the record cannot be written the call fails, so that no decision leaves without one. Give it a
deadline (`with_policy(AuditHook(writer), deadline_s=1.0)`) where the writer may hang.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any, ClassVar, Protocol

from undercurrent.predict import FailurePolicy, PredictContext

__all__ = ["AuditHook", "RecordWriter"]


class RecordWriter(Protocol):
    """Where records go."""

    def write_record(self, record: dict[str, Any]) -> object:
        """Keeps one record; called on the thread of the call, from many threads at once."""
        ...


class AuditHook:
    """Writes what was asked of which checkpoint and what came of it; the states as digests unless `keeps_states`."""

    failure_policy: ClassVar[FailurePolicy] = "closed"

    def __init__(self, writer: RecordWriter, *, keeps_states: bool = False) -> None:
        self.writer = writer
        self.keeps_states = keeps_states

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Every call that started ends here, failed or not."""
        self.writer.write_record(self._record(ctx))

    def on_error(self, ctx: PredictContext) -> None:
        """A request that could not be routed, or whose checkpoint could not be loaded, has an error and no end."""
        if ctx.agent is None:
            self.writer.write_record(self._record(ctx))

    def _record(self, ctx: PredictContext) -> dict[str, Any]:
        return {
            "time": time.time(),
            "run_id": ctx.run_id,
            "correlation_id": ctx.correlation_id,
            "model": ctx.model,
            "reason": (ctx.decision or {}).get("reason"),
            "states": list(ctx.states) if self.keeps_states else [digest(state) for state in ctx.states],
            "questions": list(ctx.questions) if isinstance(ctx.questions, dict) else None,
            "answers": [result.get("answers") for result in ctx.results or () if isinstance(result, dict)],
            "was_skipped": ctx.is_skipped,
            "usage": ctx.usage,
            "elapsed_ms": ctx.elapsed_ms,
            # The words of an error may quote the state.
            "error": None if ctx.error is None else type(ctx.error).__name__,
        }


def digest(state: Any) -> str:
    """Returns the SHA-256 of a state, so that a record can be matched to a text and does not hold it."""
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False, sort_keys=True, default=repr)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
