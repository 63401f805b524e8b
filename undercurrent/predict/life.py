"""The life of one context, from its start hooks to its end hooks. Every path that has one goes through here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from undercurrent.predict.answers import MinConfidence, aggregate_usage, gate
from undercurrent.predict.chain import HookChain, fail
from undercurrent.predict.context import CORRELATION, PredictContext
from undercurrent.predict.order import END, ERROR, START

__all__ = ["correlated", "end", "end_failed", "live", "start"]


def live(
    chain: HookChain,
    ctx: PredictContext,
    answer: Callable[[PredictContext], None],
    min_confidence: MinConfidence | None,
) -> list[Any]:
    """Runs start hooks, `answer`, and end hooks, and returns the results that are left.

    `answer` fills `ctx.results`, or settles those a hook has left there. What fails between start and end reaches
    `on_error` and `on_predict_end`, and is raised: the very object, with a note for each hook that failed after it.
    """
    try:
        start(chain, ctx)
        answer(ctx)
        settle(ctx, min_confidence)
    except BaseException as error:
        end_failed(chain, ctx, error)
        raise
    failure = end(chain, ctx)
    if failure is not None:
        raise failure
    assert ctx.results is not None
    return ctx.results


def start(chain: HookChain, ctx: PredictContext) -> None:
    """Runs the start hooks; raises what failed first."""
    failure = chain.run(START, ctx)
    if failure is not None:
        raise failure


def settle(ctx: PredictContext, min_confidence: MinConfidence | None) -> None:
    """Adds up usage and marks uncertain answers; before the end hooks, so that they see both, and so that a malformed
    usage is a failure like any other."""
    results = ctx.results
    assert results is not None
    ctx.usage = aggregate_usage(results)
    if min_confidence is not None:
        gate(results, min_confidence)


def end(chain: HookChain, ctx: PredictContext) -> BaseException | None:
    """Runs the end hooks of a call that went well; returns what failed first."""
    ctx.elapsed_ms = (time.perf_counter() - ctx.started_at) * 1000.0
    return chain.run(END, ctx)


def end_failed(chain: HookChain, ctx: PredictContext, error: BaseException) -> None:
    """Runs error and end hooks of a call that failed; what they raise becomes notes on `error`."""
    ctx.error = error
    fail(error, chain, ERROR, ctx)
    ctx.elapsed_ms = (time.perf_counter() - ctx.started_at) * 1000.0
    fail(error, chain, END, ctx)


@contextmanager
def correlated(correlation_id: str) -> Iterator[None]:
    """Makes what is called in the block share a correlation id."""
    token = CORRELATION.set(correlation_id)
    try:
        yield
    finally:
        CORRELATION.reset(token)
