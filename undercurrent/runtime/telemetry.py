"""Spans: how long the parts of a run took, and who is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec

__all__ = ["InMemoryObservabilitySink", "NullObservabilitySink", "ObservabilitySink", "SpanRecord"]


class SpanRecord(msgspec.Struct, frozen=True):
    """One timed part of a run."""

    name: str
    duration_ms: float


@runtime_checkable
class ObservabilitySink(Protocol):
    """Who is told how long the parts of a run take."""

    def span(self, name: str) -> AbstractContextManager[None]:
        """Times its body, also when it raises."""


class NullObservabilitySink:
    """Is told and forgets."""

    def span(self, name: str) -> AbstractContextManager[None]:
        """Times nothing."""
        del name
        return nullcontext()


@dataclass
class InMemoryObservabilitySink:
    """Keeps every span, in the order in which they ended."""

    spans: list[SpanRecord] = field(default_factory=list)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Times its body, also when it raises."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self.spans.append(SpanRecord(name, (time.perf_counter() - started_s) * 1000))
