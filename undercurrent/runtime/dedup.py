"""Which coalitions were asked for already, and which are being generated now."""

from __future__ import annotations

import asyncio
from typing import Protocol

from undercurrent.errors import did_you_mean, one_of
from undercurrent.runtime.errors import RuntimeValueError
from undercurrent.runtime.store import StoredGeneration

__all__ = ["CoalitionDedupRegistry", "dedup_enabled"]

_MODES = ("auto", "on", "off")


class _HasMode(Protocol):
    @property
    def enabled(self) -> str: ...


class _HasTemperature(Protocol):
    @property
    def temperature(self) -> float: ...


def dedup_enabled(config: _HasMode | str, generation: _HasTemperature | None) -> bool:
    """Tells whether equal coalitions are generated once: `on`, `off`, or `auto`, which is on at temperature 0.

    Without a generation's settings nobody knows the temperature, and `auto` is off.

    Raises:
        RuntimeValueError: another mode.
    """
    mode = config if isinstance(config, str) else config.enabled
    match mode:
        case "on":
            return True
        case "off":
            return False
        case "auto":
            return generation is not None and generation.temperature == 0
    raise RuntimeValueError(f"dedup must be {one_of(_MODES)}, got {mode!r}{did_you_mean(str(mode), _MODES)}")


class CoalitionDedupRegistry:
    """The generations in flight, and the keys that were observed by hand. Belongs to one event loop.

    A run leaves no key behind: whether a text is there is the store's and the archive's to know, and a registry that
    kept every key would grow with the run.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._in_flight: dict[str, asyncio.Future[StoredGeneration | None]] = {}

    def observe(self, coalition_key: str) -> bool:
        """Notes a key; True where it is new."""
        if self.contains(coalition_key):
            return False
        self._seen.add(coalition_key)
        return True

    def contains(self, coalition_key: str) -> bool:
        """Tells whether the key is in flight, or was observed and not released."""
        return coalition_key in self._seen or coalition_key in self._in_flight

    def release(self, coalition_key: str) -> None:
        """Forgets an observed key whose generation failed."""
        self._seen.discard(coalition_key)

    def __len__(self) -> int:
        return len(self._seen | self._in_flight.keys())

    def first_in_flight(self, coalition_key: str) -> asyncio.Future[StoredGeneration | None] | None:
        """What an equal job in flight gives: its generation, or None when it fails; None where there is no such job."""
        return self._in_flight.get(coalition_key)

    def start(self, coalition_key: str) -> None:
        """Notes that the caller's job is the first of its key; `finish` or `fail` must follow."""
        self._in_flight[coalition_key] = asyncio.get_running_loop().create_future()

    def finish(self, coalition_key: str, generation: StoredGeneration) -> None:
        """Gives the generation to the jobs that wait for it."""
        self._in_flight.pop(coalition_key).set_result(generation)

    def fail(self, coalition_key: str) -> None:
        """Frees the key: one of the jobs that wait for it becomes the first."""
        self._seen.discard(coalition_key)
        self._in_flight.pop(coalition_key).set_result(None)
