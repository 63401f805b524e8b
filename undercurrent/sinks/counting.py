"""What a sink counted of itself, read from outside: by the process that calls it, for metrics."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any, Final

__all__ = ["SinkCounts"]

_ATTRIBUTES: Final = {
    "lost_count": "lost",
    "dropped_count": "dropped",
    "torn_tail_count": "torn_tail",
    "redaction_error_count": "redaction_error",
}
_DEPTH: Final = "queue_depth"


class SinkCounts:
    """Remembers what was told of one sink, so that each event is told once. Not thread-safe.

    A sink exposes a dataclass of whole numbers as `counts`, or whole numbers named `lost_count`, `dropped_count`,
    `torn_tail_count` and `redaction_error_count`; or nothing. They must not fall, but for `counts.queue_depth`. A sink
    that raises when asked has nothing to tell.
    """

    __slots__ = ("_sink", "_told")

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._told = self._read()

    def take(self) -> dict[str, int]:
        """Returns what happened since the last call, by event."""
        now = self._read()
        told = self._told
        self._told = told | now
        return {event: more for event, count in now.items() if (more := count - told.get(event, 0)) > 0}

    @property
    def waiting(self) -> int | None:
        """Records that the sink holds now; None where it does not say."""
        with suppress(Exception):
            depth = getattr(getattr(self._sink, "counts", None), _DEPTH, None)
            return depth if isinstance(depth, int) else None
        return None

    def _read(self) -> dict[str, int]:
        with suppress(Exception):
            return self._ask()
        return {}

    def _ask(self) -> dict[str, int]:
        found = {event: getattr(self._sink, name, 0) for name, event in _ATTRIBUTES.items()}
        counts = getattr(self._sink, "counts", None)
        if dataclasses.is_dataclass(counts):
            found |= {field.name: getattr(counts, field.name) for field in dataclasses.fields(counts)}
        found.pop(_DEPTH, None)
        return {event: count for event, count in found.items() if isinstance(count, int)}
