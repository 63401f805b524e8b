"""Player values from measured coalitions: exact ones, estimates with intervals, and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from undercurrent.runtime.errors import RuntimeValueError
from undercurrent.runtime.pipeline.estimators import ESTIMATORS, EstimatorSettings, estimate
from undercurrent.runtime.pipeline.game import BudgetSpentError, CoalitionGame

pytest.importorskip("shapiq")

COUNT = 6
SAMPLING = [name for name in ESTIMATORS if name not in ("exact", "loo", "banzhaf")]


def weights(masks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An additive game: player i adds i + 1; the empty prompt has 10."""
    found: np.ndarray[Any, Any] = masks @ np.arange(1.0, COUNT + 1) + 10.0
    return found


def synergy(masks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Adds 4 where players 0 and 3 meet."""
    return weights(masks) + 4.0 * (masks[:, 0] & masks[:, 3])


def shapley(game: CoalitionGame) -> list[float]:
    """The definition: the mean of what a player adds, over all orders."""
    totals = [0.0] * COUNT
    for order in itertools.permutations(range(COUNT)):
        present = [False] * COUNT
        before = game.value_of(present)
        for player in order:
            present[player] = True
            after = game.value_of(present)
            totals[player] += after - before
            before = after
    return [total / math.factorial(COUNT) for total in totals]


def test_exact_values_are_those_of_the_definition_and_efficient() -> None:
    game = CoalitionGame(COUNT, synergy)
    found = estimate(game, EstimatorSettings(name="exact"))
    assert found.values == pytest.approx(shapley(CoalitionGame(COUNT, synergy)))
    assert found.efficiency_gap == pytest.approx(0.0)
    assert (found.empty, found.grand, found.evaluations) == (10.0, 35.0, 2**COUNT)
    assert found.low == found.high == found.values
    assert set(found.ranking()[:2]) == {3, 5}
    assert found.ranking()[2] == 4


@pytest.mark.parametrize("name", SAMPLING)
def test_every_estimator_is_near_the_exact_values_and_keeps_its_budget(name: str) -> None:
    game = CoalitionGame(COUNT, synergy)
    found = estimate(game, EstimatorSettings(name=name, budget=62, seed=3))
    assert found.values == pytest.approx(shapley(CoalitionGame(COUNT, synergy)), abs=3.0)
    assert found.evaluations <= 64  # the empty and the whole prompt may not be among an estimator's own
    assert not found.is_exact


def test_the_regression_adjusted_estimate_of_an_additive_game_has_no_error() -> None:
    found = estimate(CoalitionGame(COUNT, weights), EstimatorSettings(name="regression_adjusted", budget=60))
    assert found.values == pytest.approx(range(1, COUNT + 1))


def test_the_regression_adjusted_estimate_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=2**COUNT)

    def random_game(masks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = table[masks @ (1 << np.arange(COUNT))]
        return found

    truth = np.array(shapley(CoalitionGame(COUNT, random_game)))
    runs = [
        ESTIMATORS["regression_adjusted"](COUNT, 1, seed).approximate(40, CoalitionGame(COUNT, random_game))
        for seed in range(400)
    ]
    values = np.array([[run.dict_values[player,] for player in range(COUNT)] for run in runs])
    standard_error = values.std(axis=0, ddof=1) / math.sqrt(len(runs))
    assert (np.abs(values.mean(axis=0) - truth) < 4.5 * standard_error).all()


def test_intervals_hold_the_exact_value_about_as_often_as_they_say() -> None:
    count = 9
    table = np.random.default_rng(5).normal(size=2**count)

    def measure(masks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = table[masks @ (1 << np.arange(count))] + masks @ np.arange(count)
        return found

    truth = estimate(CoalitionGame(count, measure), EstimatorSettings(name="exact")).values
    held = 0
    for seed in range(0, 600, 20):
        found = estimate(CoalitionGame(count, measure), EstimatorSettings(name="svarm", budget=400, seed=seed))
        assert found.low is not None
        assert found.high is not None
        held += sum(low <= value <= high for low, value, high in zip(found.low, truth, found.high, strict=True))
    assert 0.88 < held / (30 * count) <= 1.0


def test_leave_one_out_asks_for_one_coalition_per_player() -> None:
    game = CoalitionGame(COUNT, synergy)
    found = estimate(game, EstimatorSettings(name="loo"))
    assert found.values == (5.0, 2.0, 3.0, 8.0, 5.0, 6.0)
    assert found.evaluations == COUNT + 2
    assert found.efficiency_gap == pytest.approx(-4.0)


def test_banzhaf_values_are_the_mean_over_all_coalitions_of_the_others() -> None:
    found = estimate(CoalitionGame(COUNT, synergy), EstimatorSettings(name="banzhaf"))
    assert found.index == "BV"
    assert found.values == pytest.approx((3.0, 2.0, 3.0, 6.0, 5.0, 6.0))


def test_an_interaction_names_the_players_that_act_together() -> None:
    found = estimate(CoalitionGame(COUNT, synergy), EstimatorSettings(name="exact", interactions=2))
    assert found.interactions[0].players == (0, 3)
    assert found.interactions[0].value == pytest.approx(4.0)
    assert all(abs(other.value) < 1e-9 for other in found.interactions[1:])


def test_equal_seeds_ask_for_equal_coalitions() -> None:
    asked: list[list[bytes]] = []
    for _ in range(2):
        masks: list[bytes] = []

        def measure(batch: np.ndarray[Any, Any], into: list[bytes] = masks) -> np.ndarray[Any, Any]:
            into += [mask.tobytes() for mask in batch]
            return synergy(batch)

        estimate(CoalitionGame(COUNT, measure), EstimatorSettings(budget=40))
        asked.append(masks)
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == len(asked[0])  # each coalition once


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "kernl"}, "did you mean 'kernel'"),
        ({"interactions": 0}, "`interactions` must be >= 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeValueError, match=message):
        EstimatorSettings(**settings)


def test_a_budget_below_two_coalitions_per_player_is_refused() -> None:
    with pytest.raises(RuntimeValueError, match=r"at least 14 coalitions .* got 13"):
        estimate(CoalitionGame(COUNT, synergy), EstimatorSettings(name="kernel", budget=13))


def test_too_many_players_for_an_exact_answer_are_refused() -> None:
    with pytest.raises(RuntimeValueError, match=r"at most 20 players"):
        estimate(CoalitionGame(21, weights), EstimatorSettings(name="exact"))


def test_a_game_measures_nothing_beyond_its_budget() -> None:
    measured: list[int] = []

    def measure(masks: np.ndarray[Any, Any]) -> list[float]:
        measured.append(len(masks))
        return [0.0] * len(masks)

    game = CoalitionGame(3, measure, budget=4)
    assert game(np.eye(3, dtype=bool)).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(BudgetSpentError, match="at most 4 coalitions"):
        game(~np.eye(3, dtype=bool))
    assert game.empty == 0.0
    assert measured == [3, 1]
