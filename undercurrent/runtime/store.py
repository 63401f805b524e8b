"""Generated texts kept in memory, the most recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from undercurrent.runtime.domain.generation import ProbeValue
from undercurrent.runtime.errors import RuntimeValueError

__all__ = ["HotResultStore", "StoredGeneration"]


class StoredGeneration(msgspec.Struct, frozen=True):
    """What is kept of a generation."""

    text: str
    logprobs: tuple[float, ...] | None = None
    values: Mapping[str, ProbeValue] | None = None


class HotResultStore:
    """Generations by coalition key; beyond `maxsize` the least recently used goes. Belongs to one event loop."""

    def __init__(self, maxsize: int | None = 128) -> None:
        """Holds up to `maxsize` generations; None is no limit, 0 keeps nothing.

        Raises:
            RuntimeValueError: `maxsize` is negative.
        """
        if maxsize is not None and maxsize < 0:
            raise RuntimeValueError(f"`maxsize` must be >= 0, or None for no limit, got {maxsize!r}")
        self.maxsize = maxsize
        self._kept: OrderedDict[str, StoredGeneration] = OrderedDict()

    def put(
        self,
        coalition_key: str,
        text: str,
        logprobs: tuple[float, ...] | None = None,
        values: Mapping[str, ProbeValue] | None = None,
    ) -> None:
        """Keeps a generation as the most recently used."""
        self.keep(coalition_key, StoredGeneration(text, logprobs, values))

    def keep(self, coalition_key: str, generation: StoredGeneration) -> None:
        """`put` for a generation that exists."""
        kept = self._kept
        kept[coalition_key] = generation
        kept.move_to_end(coalition_key)
        if self.maxsize is not None and len(kept) > self.maxsize:
            kept.popitem(last=False)

    def get(self, coalition_key: str) -> str | None:
        """The text, now the most recently used; None where it is not kept. An empty text is a hit."""
        generation = self.take(coalition_key)
        return None if generation is None else generation.text

    def take(self, coalition_key: str) -> StoredGeneration | None:
        """`get` with all that was kept."""
        generation = self._kept.get(coalition_key)
        if generation is not None:
            self._kept.move_to_end(coalition_key)
        return generation

    def logprobs(self, coalition_key: str) -> tuple[float, ...] | None:
        """The log-probabilities; None without them. Does not count as a use."""
        generation = self._kept.get(coalition_key)
        return None if generation is None else generation.logprobs

    def entry(self, coalition_key: str) -> StoredGeneration | None:
        """All that was kept. Does not count as a use."""
        return self._kept.get(coalition_key)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, coalition_key: object) -> bool:
        return coalition_key in self._kept
