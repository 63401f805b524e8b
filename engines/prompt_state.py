"""What a Hugging Face model computed for the first tokens of a prompt, to be gone on from."""

from __future__ import annotations

import copy
from typing import Any

from transformers import DynamicCache

from undercurrent.errors import ProbingValueError

__all__ = ["PromptState"]


class PromptState:
    """Keys and values of all layers for a run of tokens; one owner at a time, one row.

    Layers with a sliding window keep all of it, so that it can be cut back to any length; their masks hide what lies
    outside the window, as without reuse.
    """

    def __init__(self) -> None:
        """Covers no token yet."""
        self.cache: Any = DynamicCache()

    @property
    def token_count(self) -> int:
        """How many tokens it covers."""
        return int(self.cache.get_seq_length())

    def crop(self, max_length: int) -> None:
        """Keeps the first `max_length` tokens.

        Raises:
            ProbingValueError: it covers fewer.
        """
        surplus = self.token_count - max_length
        if surplus < 0 or max_length < 0:
            raise ProbingValueError(f"a length of 0 to {self.token_count} tokens was expected, got {max_length!r}")
        if surplus:
            self.cache.crop(-surplus)

    def copy(self) -> PromptState:
        """A state of its own memory that covers the same tokens."""
        made = PromptState()
        made.cache = copy.deepcopy(self.cache)
        return made
