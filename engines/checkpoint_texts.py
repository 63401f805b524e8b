"""What checkpoints read of a state and a question: texts, and tokens within a budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from undercurrent.predict.checkpoint import CallOptions, StateWindow
from undercurrent.predict.errors import PredictValueError
from undercurrent.predict.questions import Question

__all__ = ["Budget", "Tokens", "cut_state", "require_room", "split_state", "state_text", "token_reader"]

Tokens = list[int]


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


def token_reader(tokenizer: Any) -> Callable[[str], Tokens]:
    """A function from a text to its tokens, special ones not added, that threads may share.

    Calling a fast tokenizer of transformers sets how its backend cuts and pads, which fails while another thread reads
    with it. So the backend is told once, here, to do neither, and asked directly.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])
    backend.no_truncation()
    backend.no_padding()
    return lambda text: list(backend.encode(text, add_special_tokens=False).ids)


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
        f"fit: `head_max_len` is {budget.head_max_len} of `max_len` {budget.max_len}; shorten them, or raise both"
    )


def split_state(
    tokens: Tokens,
    decode: Callable[[Tokens], str],
    *,
    room: int,
    default_window: int | None = None,
    window_tokens: int | None,
    stride_tokens: int | None,
) -> list[StateWindow]:
    """Windows over a long state, each of which fits beside every question.

    Args:
        room: tokens that the largest question leaves for a state. A state that fits is one window, unless
            `window_tokens` is smaller.
        default_window: tokens of a window where `window_tokens` is None; None: all of `room`.

    Raises:
        PredictValueError: there is no room, or tokens between two windows would be read by none.
    """
    if room < 1:
        raise PredictValueError(
            "a long state needs room beside its questions, and these leave none; shorten them, or raise `max_len`"
        )
    size = min(window_tokens or default_window or room, room)
    stride = max(1, size // 2) if stride_tokens is None else stride_tokens
    if stride > size:
        raise PredictValueError(
            f"`stride` must be at most the window's {size} tokens, which is what the questions leave of the"
            f" {window_tokens or room} asked for, got {stride}: the tokens between would be read by nobody"
        )
    if len(tokens) <= (size if window_tokens else room):
        return [StateWindow(decode(tokens), 0, len(tokens))]
    # The last window is the first that reaches the end.
    starts = range(0, max(1, len(tokens) - size + stride), stride)
    return [StateWindow(decode(tokens[at : at + size]), at, min(at + size, len(tokens))) for at in starts]
