"""One decode step: records are published as they come, workers are woken once, at its end."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undercurrent.workers import Supervisor

__all__ = ["Step"]


class Step:
    """A context manager, made by `Router.step`; a class of its own because it is entered once per token."""

    __slots__ = ("_supervisor",)

    def __init__(self, supervisor: Supervisor | None) -> None:
        self._supervisor = supervisor

    def __enter__(self) -> None:
        if self._supervisor is not None:
            self._supervisor.begin_step()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._supervisor is not None:
            self._supervisor.end_step()
