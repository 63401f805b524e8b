"""What checkpoints read of a state and a question: texts, and tokens within a budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from undercurrent.predict.checkpoint import CallOptions
from undercurrent.predict.errors import PredictValueError
from undercurrent.predict.questions import Question

__all__ = ["Budget", "Tokens", "cut_state", "require_room", "state_text"]

Tokens = list[int]


class Tokenizer(Protocol):
    """A tokenizer of transformers."""

    def __call__(self, text: Any, *, add_special_tokens: bool) -> Any:
        """Gives `input_ids`."""


class Budget(msgspec.Struct, frozen=True):
    """Tokens of one sequence, and how many of them the question may take."""

    max_len: int
    head_max_len: int

    @classmethod
    def of(cls, options: CallOptions, own: Budget) -> Budget:
        """What a call asks for, where it asks.

        Raises:
            PredictValueError: a number is out of range.
        """
        max_len = own.max_len if options.max_len is None else options.max_len
        head = min(own.head_max_len, max_len) if options.head_max_len is None else options.head_max_len
        if not 1 <= max_len <= own.max_len:
            raise PredictValueError(f"`max_len` must be from 1 to {own.max_len}, got {max_len!r}")
        if not 1 <= head <= max_len:
            raise PredictValueError(f"`head_max_len` must be from 1 to `max_len` {max_len}, got {head!r}")
        return cls(max_len, head)


def state_text(state: object) -> str:
    """A text as it is, a list of turns a line each, anything else as JSON."""
    if isinstance(state, str):
        return state
    if isinstance(state, list):
        return "\n".join(map(_turn_text, state))
    return json.dumps(state, ensure_ascii=False, default=str)


def _turn_text(turn: object) -> str:
    if isinstance(turn, dict) and isinstance(turn.get("content"), str):
        role = turn.get("role")
        return f"{role}: {turn['content']}" if role else str(turn["content"])
    return state_text(turn)


def cut_state(tokens: Tokens, room: int, *, is_conversation: bool) -> Tokens:
    """The tokens that fit: a conversation loses its oldest, any other state its last."""
    if len(tokens) <= room:
        return tokens
    if room <= 0:
        return []
    return tokens[-room:] if is_conversation else tokens[:room]


def require_room(question: Question, head_tokens: Sequence[int], budget: Budget) -> None:
    """Refuses a question whose text and options leave no room.

    Args:
        head_tokens: tokens of the question alone, then with one option more each.

    Raises:
        PredictValueError: names the question, how many options fit, and both budgets.
    """
    needed = head_tokens[-1]
    if needed <= budget.head_max_len:
        return
    fitting = max(0, sum(count <= budget.head_max_len for count in head_tokens) - 1)
    raise PredictValueError(
        f"question {question.id!r} takes {needed} tokens with its {len(question.keys)} options, of which {fitting} "
        f"fit: `head_max_len` is {budget.head_max_len} of `max_len` {budget.max_len}; shorten the options, or raise both"
    )
