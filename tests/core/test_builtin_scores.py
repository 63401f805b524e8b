"""Scores of saved probes: the formulas, float32, and rows that are no numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from saved_probes import HIDDEN, draw, make_line, make_saved, tokens

from undercurrent.core.calibration import Isotonic, Platt, Raw, Temperature
from undercurrent.errors import ProbingTypeError, ProbingValueError

ROWS = draw(9, HIDDEN, seed=5)
KINDS = ("linear", "softmax", "mlp", "mean_difference", "sae_feature")


def sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(values, np.float64)))


def test_linear_score_is_the_logistic_of_the_product() -> None:
    saved = make_saved("linear")
    expected = sigmoid(ROWS.astype(np.float64) @ saved.weights["weight"] + 0.25)
    assert saved.score(ROWS) == pytest.approx(expected, abs=1e-6)
    assert saved.score(ROWS, target="negative") == pytest.approx(1 - expected, abs=1e-6)


def test_softmax_score_is_the_chance_of_anything_but_the_first_class() -> None:
    saved = make_saved("softmax", labels=["fine", "rude", "unsafe"], calibration=Temperature(2.0))
    logits = (ROWS.astype(np.float64) @ saved.weights["weight"].T + saved.weights["bias"]) / 2
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    assert saved.score(ROWS) == pytest.approx(1 - chances[:, 0], abs=1e-6)
    assert saved.score(ROWS, target="unsafe") == pytest.approx(chances[:, 2], abs=1e-6)
    assert saved.scorer().margins(ROWS).classes == pytest.approx(chances, abs=1e-6)


ACTIVATIONS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "logistic": lambda x: 1 / (1 + math.exp(-x)),
    "identity": lambda x: x,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mlp_score_is_that_of_the_network(name: str) -> None:
    third = {"layers.2.weight": draw(1, 1, seed=7), "layers.2.bias": draw(1, seed=8)}
    saved = make_saved("mlp", settings={"activation": name}, weights=third)
    hidden: Any = ROWS.astype(np.float64)
    for index in range(3):
        if index:
            hidden = np.vectorize(ACTIVATIONS[name])(hidden)
        hidden = hidden @ saved.weights[f"layers.{index}.weight"].T + saved.weights[f"layers.{index}.bias"]
    assert saved.score(ROWS) == pytest.approx(sigmoid(hidden[:, 0]), abs=2e-6)


def test_mean_difference_score_is_the_projection_on_the_normalised_direction() -> None:
    saved = make_saved("mean_difference")
    direction = saved.weights["direction"].astype(np.float64)
    expected = (ROWS @ direction / np.linalg.norm(direction) - 0.5) / 2
    assert saved.score(ROWS) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ProbingTypeError, match="scores 'positive' only"):
        saved.score(ROWS, target="negative")


def sae_values(saved: Any) -> Any:
    weights = {name: array.astype(np.float64) for name, array in saved.weights.items()}
    return (ROWS - weights["b_dec"]) @ weights["W_enc"].T + weights["b_enc"]


def test_sae_score_is_the_highest_chosen_feature() -> None:
    saved = make_saved("sae_feature", settings={"activation": "relu", "features": [1, 4]}, labels=["medicine", "dose"])
    values = np.maximum(sae_values(saved), 0)
    assert saved.score(ROWS) == pytest.approx(values[:, [1, 4]].max(axis=1), abs=1e-5)
    assert saved.score(ROWS, target="dose") == pytest.approx(values[:, 4], abs=1e-5)


def test_jumprelu_feature_is_zero_up_to_its_threshold() -> None:
    jump = np.full(6, 1.5, np.float32)
    saved = make_saved("sae_feature", settings={"activation": "jumprelu", "features": [2]}, weights={"jump": jump})
    values = sae_values(saved)[:, 2]
    assert saved.score(ROWS) == pytest.approx(np.where(values > 1.5, values, 0), abs=1e-5)


def test_topk_feature_counts_only_among_the_highest_of_all() -> None:
    saved = make_saved("sae_feature", settings={"activation": "topk", "k": 2, "features": [0, 3]})
    values = sae_values(saved)
    is_top = np.argsort(np.argsort(-values, axis=1), axis=1) < 2
    expected = np.where(is_top, np.maximum(values, 0), 0)[:, [0, 3]].max(axis=1)
    assert saved.score(ROWS) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("calibration", "expected"),
    [
        (Temperature(2.0), sigmoid(np.array([-4, 0, 3]) / 2)),
        (Platt(-1.0, 0.5), sigmoid(np.array([4.5, 0.5, -2.5]))),
        (Platt(2.0, 0.0, "probability"), sigmoid(2 * sigmoid([-4, 0, 3]))),
        (Isotonic(), [0.1, 0.35, 0.9]),
        (Raw(), [-4, 0, 3]),
    ],
)
def test_calibration_makes_scores_of_margins(calibration: Any, expected: Any) -> None:
    weights = {"weight": np.eye(HIDDEN)[0], "bias": 0.0}
    if isinstance(calibration, Isotonic):
        weights |= {"calibration_x": [-1.0, 1.0], "calibration_y": [0.1, 0.6]}
        expected = [0.1, 0.35, 0.6]
    saved = make_saved(calibration=calibration, weights=weights)
    assert saved.score(tokens(-4, 0, 3)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_row_that_is_not_finite_has_no_score_and_harms_no_other(kind: str, poison: float) -> None:
    saved = make_saved(kind)
    rows = ROWS.copy()
    rows[4, 7] = poison
    clean = saved.score(ROWS)
    found = saved.score(rows)

    assert np.isnan(found[4])
    assert np.array_equal(np.delete(found, 4), np.delete(clean, 4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poison_behind_a_zero_weight_is_seen_too(kind: str, poison: float) -> None:
    saved = make_saved(kind)
    arrays = {name: np.array(array) for name, array in saved.weights.items()}
    for name in ("weight", "layers.0.weight", "direction", "W_enc"):
        if name in arrays:
            arrays[name][..., 7] = 0
    rows = ROWS.copy()
    rows[2, 7] = poison
    assert np.isnan(make_saved(kind, weights=arrays).score(rows)[2])


def test_overflow_on_the_way_is_not_finite_and_huge_sums_of_finite_values_are() -> None:
    line = make_line()
    rows = tokens(0.5, 0.5, 0.5)
    rows[0, 1:] = 3e38  # the sum overflows, and no product of this probe does
    rows[1, 0] = 3e38
    assert line.score(rows[:1]) == pytest.approx(sigmoid(0.5))
    assert line.score(rows[1:2]) == pytest.approx(1.0)
    steep = make_saved(weights={"weight": 1e10 * np.eye(HIDDEN)[0], "bias": 0.0})
    assert np.isnan(steep.score(rows[1:2]))[0]


def test_hidden_layer_that_overflows_is_not_finite_behind_relu() -> None:
    first = np.zeros((5, HIDDEN), np.float32)
    first[:, 0] = -1e30
    saved = make_saved("mlp", weights={"layers.0.weight": first})
    assert np.isnan(saved.score(tokens(1e10)))[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.float32, np.int8])
def test_rows_of_any_number_are_scored_in_float32(dtype: Any) -> None:
    rows = np.round(ROWS).astype(dtype)
    assert make_saved().score(rows) == pytest.approx(make_saved().score(np.round(ROWS)), abs=1e-6)


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ProbingValueError, match=r"shape \(n, 16\), got \(2, 8\)"):
        make_saved().score(np.zeros((2, 8)))
    with pytest.raises(ProbingValueError, match=r"got \(16,\)"):
        make_saved().score(np.zeros(16))


def test_unknown_target_names_the_nearest_label() -> None:
    with pytest.raises(ProbingValueError, match="did you mean 'positive'"):
        make_saved().score(ROWS, target="positiv")


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("mlp", {"settings": {"activation": "rellu"}}, "did you mean 'relu'"),
        ("mlp", {"settings": {}}, "`settings\\['activation'\\]` must be one of"),
        ("mlp", {"weights": {"layers.1.weight": draw(1, 4)}}, "the layer before it gives 5"),
        ("mlp", {"weights": {"layers.3.weight": draw(1, 4)}}, "needs the tensor 'layers.2.weight'"),
        ("mean_difference", {"weights": {"scale": 0.0}}, "'scale' must be above 0"),
        ("mean_difference", {"weights": {"direction": np.zeros(HIDDEN)}}, "'direction' must not be zero"),
        ("mean_difference", {"calibration": Temperature(1.0)}, "only linear and mlp probes have a `calibration`"),
        ("sae_feature", {"settings": {"activation": "relu", "features": [6]}}, "from 0 to 5, got \\[6\\]"),
        ("sae_feature", {"settings": {"activation": "relu", "features": [1, 1]}}, "different rows"),
        ("sae_feature", {"settings": {"activation": "topk"}}, "`settings\\['k'\\]` must be an int from 1 to 6"),
        ("sae_feature", {"settings": {"activation": "jumprelu"}}, "the tensor 'jump'"),
        ("softmax", {"calibration": Platt(1.0, 0.0)}, "of 3 classes is calibrated by temperature only"),
        ("linear", {"weights": {"calibration_x": [0.0]}}, "go with isotonic calibration only"),
        (
            "linear",
            {"calibration": Isotonic(), "weights": {"calibration_x": [0.0, 1.0], "calibration_y": [0.9, 0.1]}},
            "knots must rise",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(kind: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ProbingValueError, match=message):
        make_saved(kind, **fields)
