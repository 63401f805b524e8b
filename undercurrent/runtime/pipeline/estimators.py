"""From measured coalitions to a value for each player. Estimators are those of `shapiq`, which is loaded when used.

See: Muschalik et al., "shapiq: Shapley interactions for machine learning" (NeurIPS 2024), and the class of each
estimator there for its paper.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from undercurrent.errors import did_you_mean, one_of
from undercurrent.runtime.errors import RuntimeStateError, RuntimeValueError
from undercurrent.runtime.pipeline.attribution import Attribution, Interaction
from undercurrent.runtime.pipeline.game import CoalitionGame
from undercurrent.runtime.pipeline.regression_adjusted import RegressionAdjusted

__all__ = ["ESTIMATORS", "EstimatorSettings", "estimate"]

_CONFIDENCE = 0.95
_REPLICATES_MAX = 8
_REPLICATE_COALITIONS = 6
"""Coalitions per player in one run: with fewer its error is so skewed that intervals hold less than they say."""
# Two-sided 95 % points of Student's t with 1 to 7 degrees of freedom.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)
EXACT_PLAYERS_MAX = 20


class EstimatorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How player values are estimated."""

    name: str = "kernel"
    """One of `ESTIMATORS`."""
    budget: int | None = None
    """Coalitions that may be measured; None is all of them for up to 10 players, else 64 for each."""
    interactions: int = 1
    """Largest group of players that gets a value of its own; 1 is players alone."""
    seed: int = 42

    def __post_init__(self) -> None:
        if self.name not in ESTIMATORS:
            raise RuntimeValueError(
                f"`estimator` must be {one_of(tuple(ESTIMATORS))}, got {self.name!r}"
                f"{did_you_mean(self.name, tuple(ESTIMATORS))}"
            )
        if self.interactions < 1:
            raise RuntimeValueError(f"`interactions` must be >= 1, got {self.interactions!r}")

    def budget_for(self, player_count: int) -> int:
        """Coalitions that may be measured for so many players."""
        everything: int = 2**player_count
        if self.name == "loo":
            return player_count + 2
        wanted = self.budget if self.budget is not None else (everything if player_count <= 10 else 64 * player_count)
        return min(wanted, everything)


def estimate(game: CoalitionGame, settings: EstimatorSettings) -> Attribution:
    """Estimates the value of each player; asks `game` in as few and as large batches as the estimator allows.

    With a budget of all coalitions the values are exact, whichever estimator is named. Otherwise the estimator runs up
    to 8 times with seeds of its own and a share of the budget each; values are the means, intervals Student's t over
    the runs. Runs share what they measured.

    Raises:
        RuntimeValueError: the budget is too small for the estimator, or too many players for an exact answer.
        RuntimeStateError: `shapiq` is not installed.
    """
    count = game.player_count
    budget = settings.budget_for(count)
    if settings.name == "loo":
        return _leave_one_out(game)
    if settings.name == "exact" or budget >= 2**count:
        return _exact(game, settings)
    least = 2 * count + 2
    if budget < least:
        raise RuntimeValueError(
            f"a budget of at least {least} coalitions was expected for {count} players with `{settings.name}`, got "
            f"{budget}; raise it, or use `loo`, which takes {count + 2}"
        )
    replicates = max(1, min(_REPLICATES_MAX, budget // (_REPLICATE_COALITIONS * count)))
    runs, groups = _replicate(game, settings, replicates, budget // replicates)
    values = runs.mean(axis=0)
    low = high = None
    if replicates > 1:
        reach = _T_95[replicates - 2] * runs.std(axis=0, ddof=1) / math.sqrt(replicates)
        low, high = tuple(map(float, values - reach)), tuple(map(float, values + reach))
    return Attribution(
        estimator=settings.name,
        index="BV" if settings.name == "banzhaf" else "SV",
        values=tuple(map(float, values)),
        low=low,
        high=high,
        confidence=_CONFIDENCE,
        empty=game.empty,
        grand=game.grand,
        evaluations=game.evaluations,
        is_exact=False,
        interactions=groups,
    )


def _replicate(
    game: CoalitionGame, settings: EstimatorSettings, replicates: int, budget: int
) -> tuple[np.ndarray[Any, Any], tuple[Interaction, ...]]:
    """`(replicates, players)` values, and the mean of the interactions."""
    runs, found = [], []
    for replicate in range(replicates):
        made = ESTIMATORS[settings.name](game.player_count, 1, settings.seed + replicate)
        runs.append(_values_of(made.approximate(budget, game), game.player_count))
        if settings.interactions > 1:
            grouped = _approximator("SHAPIQ")(game.player_count, settings.interactions, settings.seed + replicate)
            found.append(_interactions_of(grouped.approximate(budget, game)))
    sums: dict[tuple[int, ...], float] = {}
    for groups in found:
        for players, value in groups.items():
            sums[players] = sums.get(players, 0.0) + value / len(found)
    return np.array(runs, dtype=np.float64), _strongest(sums)


def _exact(game: CoalitionGame, settings: EstimatorSettings) -> Attribution:
    if game.player_count > EXACT_PLAYERS_MAX:
        raise RuntimeValueError(
            f"at most {EXACT_PLAYERS_MAX} players were expected for an exact answer, got {game.player_count} "
            f"(2^{game.player_count} coalitions); choose coarser players or another estimator with a budget"
        )
    index = "BV" if settings.name == "banzhaf" else "SV"
    computer = _shapiq().ExactComputer(game, n_players=game.player_count)
    values = _values_of(computer(index=index, order=1), game.player_count)
    sums = {}
    if settings.interactions > 1:
        order = min(settings.interactions, game.player_count)
        sums = _interactions_of(computer(index="k-SII", order=order))
    return Attribution(
        estimator=settings.name,
        index=index,
        values=tuple(values),
        low=tuple(values),
        high=tuple(values),
        confidence=_CONFIDENCE,
        empty=game.empty,
        grand=game.grand,
        evaluations=game.evaluations,
        is_exact=True,
        interactions=_strongest(sums),
    )


def _leave_one_out(game: CoalitionGame) -> Attribution:
    """What the value loses with each player alone left out: one coalition per player."""
    count = game.player_count
    grand, *without = game(np.vstack([np.ones(count, dtype=bool), ~np.eye(count, dtype=bool)]))
    values = tuple(float(grand - value) for value in without)
    return Attribution(
        estimator="loo",
        index="LOO",
        values=values,
        low=values,
        high=values,
        confidence=_CONFIDENCE,
        empty=game.empty,
        grand=game.grand,
        evaluations=game.evaluations,
        is_exact=True,
    )


def _values_of(found: Any, count: int) -> list[float]:
    """One value per player; `shapiq` leaves out what it did not meet, which is 0."""
    return [float(found.dict_values.get((player,), 0.0)) for player in range(count)]


def _interactions_of(found: Any) -> dict[tuple[int, ...], float]:
    return {tuple(players): float(value) for players, value in found.dict_values.items() if len(players) > 1}


def _strongest(sums: dict[tuple[int, ...], float]) -> tuple[Interaction, ...]:
    ordered = sorted(sums.items(), key=lambda item: (-abs(item[1]), item[0]))
    return tuple(Interaction(players, value) for players, value in ordered)


def _shapiq() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of optional parts of its own
            import shapiq
    except ImportError as error:
        raise RuntimeStateError(
            f"estimating needs the package `shapiq` ({error}); install it with `pip install 'undercurrent[explain]'`"
        ) from error
    return shapiq


def _approximator(class_name: str, **settings: Any) -> Callable[[int, int, int], Any]:
    def make(count: int, order: int, seed: int) -> Any:
        kind = getattr(_shapiq(), class_name)
        more = {"max_order": order} if order > 1 else {}
        return kind(n=count, random_state=seed, **more, **settings)

    return make


ESTIMATORS: dict[str, Callable[[int, int, int], Any]] = {
    "exact": _approximator("KernelSHAP"),
    "kernel": _approximator("KernelSHAP"),
    "unbiased_kernel": _approximator("UnbiasedKernelSHAP"),
    "permutation": _approximator("PermutationSamplingSV"),
    "stratified": _approximator("StratifiedSamplingSV"),
    "svarm": _approximator("SVARM"),
    "regression_adjusted": lambda count, _, seed: RegressionAdjusted(count, seed),
    "owen": _approximator("OwenSamplingSV", n_anchor_points=4),
    "banzhaf": _approximator("SVARM", index="BV"),
    "loo": _approximator("KernelSHAP"),
}
