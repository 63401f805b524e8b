"""Coalitions as a game: each set of present players has a value, and each is measured once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from undercurrent.runtime.errors import RuntimeValueError

__all__ = ["BudgetSpentError", "CoalitionGame", "Coalitions"]

Coalitions: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
"""`(coalitions, players)` bool: who is present."""
Values: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"


class BudgetSpentError(RuntimeValueError):
    """A coalition beyond the budget was asked for."""


class CoalitionGame:
    """Measures coalitions in batches and remembers them. Belongs to one thread."""

    def __init__(
        self, player_count: int, measure: Callable[[Coalitions], Sequence[float]], *, budget: int | None = None
    ) -> None:
        """`measure` is called with new coalitions only, each once; `budget` bounds how many, None does not."""
        self.player_count = player_count
        self.budget = budget
        self._measure = measure
        self._known: dict[bytes, float] = {}

    @property
    def evaluations(self) -> int:
        """How many coalitions were measured."""
        return len(self._known)

    def __call__(self, coalitions: Any) -> Values:
        """Returns the value of each coalition, `(coalitions,)` float64; one coalition may come without its axis.

        Raises:
            BudgetSpentError: the budget does not reach; nothing of the batch was measured.
        """
        masks: Coalitions = np.atleast_2d(np.asarray(coalitions, dtype=bool))
        keys = [mask.tobytes() for mask in masks]
        first = {key: at for at, key in enumerate(keys) if key not in self._known}
        if first:
            if self.budget is not None and len(self._known) + len(first) > self.budget:
                raise BudgetSpentError(
                    f"at most {self.budget} coalitions were expected, got {len(self._known) + len(first)}; raise the "
                    "budget"
                )
            measured = self._measure(masks[list(first.values())])
            self._known.update(zip(first, map(float, measured), strict=True))
        return np.array([self._known[key] for key in keys], dtype=np.float64)

    def value_of(self, present: Sequence[bool]) -> float:
        """The value of one coalition."""
        return float(self(np.array(present, dtype=bool))[0])

    @property
    def empty(self) -> float:
        """The value with nobody present."""
        return self.value_of([False] * self.player_count)

    @property
    def grand(self) -> float:
        """The value with everybody present."""
        return self.value_of([True] * self.player_count)
