"""Turns generated tokens into text, piece by piece, for models whose characters span several tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["TextPieces"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextPieces:
    """Decodes tokens as they come; constant work per token, whatever the length of the text.

    Only the tokens since the last complete piece are decoded again: a decoder may put a space before a word or not,
    depending on what stands to its left, so one earlier piece is kept as context.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._context = 0
        self._shown = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became complete with these tokens; "" while a character is unfinished."""
        self._token_ids.extend(token_ids)
        before = self._decode(self._token_ids[self._context : self._shown])
        text = self._decode(self._token_ids[self._context :])
        if text.endswith(_REPLACEMENT) or len(text) <= len(before):
            return ""
        self._context, self._shown = self._shown, len(self._token_ids)
        return text[len(before) :]

    def finish(self) -> str:
        """What is left at the end, an unfinished character included."""
        before = self._decode(self._token_ids[self._context : self._shown])
        text = self._decode(self._token_ids[self._context :])
        self._context = self._shown = len(self._token_ids)
        return text[len(before) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text
