"""What a Router gives an agent, and what it adds to what comes back.

An attached agent is any object with `system_one`, and `predict_batch` where batches shall reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undercurrent.predict.context import PredictContext
from undercurrent.predict.errors import PredictRuntimeError, PredictTypeError, PredictValueError

__all__ = ["add_routing", "arguments_of", "lang_of", "only", "state_of", "system_one"]


def system_one(agent: Any, ctx: PredictContext, lang: str | None) -> Any:
    """Answers a context's one state."""
    if ctx.max_len is None and ctx.head_max_len is None and lang is None:
        return agent.system_one(state_of(ctx), ctx.questions)
    return agent.system_one(state_of(ctx), ctx.questions, **arguments_of(ctx.max_len, ctx.head_max_len, lang))


def state_of(ctx: PredictContext) -> Any:
    """Returns the one state of a request.

    Raises:
        PredictTypeError, PredictValueError: start hooks have left no list, or another number of states.
    """
    states: object = ctx.states
    if not isinstance(states, (list, tuple)):
        raise PredictTypeError(f"`ctx.states` must be a list with one state, start hooks left {type(states).__name__}")
    if len(states) != 1:
        raise PredictValueError(f"`ctx.states` must hold the request's one state, start hooks left {len(states)}")
    return states[0]


def arguments_of(max_len: int | None, head_max_len: int | None, lang: str | None) -> dict[str, Any]:
    """Returns the arguments that are set, so that an agent which does not know the others can be attached."""
    arguments: dict[str, Any] = {}
    if max_len is not None:
        arguments["max_len"] = max_len
    if head_max_len is not None:
        arguments["head_max_len"] = head_max_len
    if lang is not None:
        arguments["lang"] = lang
    return arguments


def lang_of(agent: Any, lang: str | None, decision: Mapping[str, Any]) -> str | None:
    """Returns the language to pass to an agent whose answers depend on it: the one named, else the one detected."""
    if not getattr(agent, "uses_lang", False):
        return None
    return lang if lang is not None else (decision.get("detection") or {}).get("language")


def add_routing(results: list[Any], decision: Mapping[str, Any]) -> None:
    """Adds the decision to results a hook gave, where they have none; they are copies already."""
    for result in results:
        if isinstance(result, dict):
            result.setdefault("routing", dict(decision))


def only(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the result of a call with one state.

    Raises:
        PredictRuntimeError: hooks have left another number of them.
    """
    if len(results) != 1:
        raise PredictRuntimeError(f"a call with one state has one result; hooks left {len(results)}")
    return results[0]
