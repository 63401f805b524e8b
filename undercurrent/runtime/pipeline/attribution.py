"""What a run says about its players."""

from __future__ import annotations

import msgspec

__all__ = ["Attribution", "Interaction"]


class Interaction(msgspec.Struct, frozen=True):
    """What two or more players do together beyond what each does alone."""

    players: tuple[int, ...]
    """Indices of players, ascending."""
    value: float


class Attribution(msgspec.Struct, frozen=True):
    """A value for each player, with its interval and what it rests on."""

    estimator: str
    index: str
    """What is estimated: `SV` (Shapley value), `BV` (Banzhaf value), `LOO` (leave-one-out)."""
    values: tuple[float, ...]
    """One per player, in the order of the prompt."""
    low: tuple[float, ...] | None
    """Lower ends of the intervals; None where one run of the estimator says nothing about its error."""
    high: tuple[float, ...] | None
    confidence: float
    """Share of intervals that hold the value, were the run repeated."""
    empty: float
    """Value of the prompt without any player."""
    grand: float
    """Value of the whole prompt."""
    evaluations: int
    """Coalitions that were measured."""
    is_exact: bool
    """Whether every coalition the values are made of was measured."""
    interactions: tuple[Interaction, ...] = ()
    """Strongest first."""

    @property
    def efficiency_gap(self) -> float:
        """Grand minus empty minus the sum of the values: 0 for an exact Shapley value.

        Banzhaf and leave-one-out values owe no efficiency; there it says how much the players do together.
        """
        return self.grand - self.empty - sum(self.values)

    def ranking(self) -> list[int]:
        """Indices of players, the one that raises the value most first; equal ones in the order of the prompt."""
        return sorted(range(len(self.values)), key=lambda player: -self.values[player])
