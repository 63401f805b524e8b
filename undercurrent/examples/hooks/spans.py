"""One OpenTelemetry span per context: the Router's call, and within it the Agent's (extra `otel`).

Policy: open. Give it no deadline: it attaches its span to the thread of the call, which a thread of the pool is not.
"""

from __future__ import annotations

from contextvars import Token
from typing import Any, ClassVar

from opentelemetry import context, trace

from undercurrent.predict import FailurePolicy, PredictContext

__all__ = ["SpansHook"]


class SpansHook:
    """Starts a span when a call starts and ends it when that call ends; what runs between is below it.

    In a batch the requests' spans nest, as they start in order and end in reverse.
    """

    failure_policy: ClassVar[FailurePolicy] = "open"

    def __init__(self, tracer: trace.Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer("undercurrent.predict")
        self._open: dict[str, tuple[trace.Span, Token[context.Context]]] = {}

    def on_predict_start(self, ctx: PredictContext) -> None:
        """Opens the span and makes it the current one."""
        span = self._tracer.start_span(
            "predict.request" if ctx.router is not None else "predict.agent", attributes=_attributes(ctx)
        )
        self._open[ctx.run_id] = (span, context.attach(trace.set_span_in_context(span)))

    def on_error(self, ctx: PredictContext) -> None:
        """Marks the span as failed; a call that failed before it started has none, and gets one here."""
        span, _ = self._open.get(ctx.run_id, (None, None))
        if span is not None:
            _fail(span, ctx)
            return
        with self._tracer.start_as_current_span("predict.request", attributes=_attributes(ctx)) as unstarted:
            _fail(unstarted, ctx)

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Closes the span, and makes the one before it current again."""
        span, token = self._open.pop(ctx.run_id)
        context.detach(token)
        span.set_attribute("predict.skipped", ctx.is_skipped)
        for name, count in (ctx.usage or {}).items():
            span.set_attribute(f"predict.usage.{name}", count)
        span.end()

    def on_load(self, ctx: PredictContext) -> None:
        """Says in the current span that a checkpoint was loaded."""
        trace.get_current_span().add_event("predict.load", {"predict.model": str(ctx.model)})

    def on_evict(self, ctx: PredictContext) -> None:
        """Says in the current span that a checkpoint was let go."""
        trace.get_current_span().add_event("predict.evict", {"predict.model": str(ctx.model)})


def _attributes(ctx: PredictContext) -> dict[str, Any]:
    return {
        "predict.run_id": ctx.run_id,
        "predict.correlation_id": ctx.correlation_id,
        "predict.model": str(ctx.model),
        "predict.states": len(ctx.states),
        "predict.reason": str((ctx.decision or {}).get("reason", "")),
    }


def _fail(span: trace.Span, ctx: PredictContext) -> None:
    # The kind alone: an error's words may quote the state.
    span.set_status(trace.Status(trace.StatusCode.ERROR, type(ctx.error).__name__))
