"""Who is told how far a run is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["CoalitionProgress", "NullCoalitionProgress"]


@runtime_checkable
class CoalitionProgress(Protocol):
    """Is told of one plan, cumulative over the runs of a scheduler.

    Called on the event loop; an exception fails the run.
    """

    def on_coalitions_planned(self, total: int) -> None:
        """`total` jobs are planned so far, all runs together. Not called where a run's length is unknown."""

    def on_coalition_finished(self, done: int, total: int) -> None:
        """`done` of `total` jobs have their text, committed where there is an archive."""


class NullCoalitionProgress:
    """Is told and forgets."""

    def on_coalitions_planned(self, total: int) -> None:
        """Ignores the plan."""

    def on_coalition_finished(self, done: int, total: int) -> None:
        """Ignores the step."""
