"""Training: what is learnt, how it is split, and what the figures say."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from saved_probes import batch_of
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from undercurrent.core import RequestContext
from undercurrent.core.calibration import Isotonic, Temperature
from undercurrent.core.training import (
    TRAINED_KINDS,
    Rate,
    area_under_curve,
    calibrate,
    evaluate,
    fit_probe,
    last_values,
    split_by_group,
    threshold_at_false_positive_rate,
)
from undercurrent.errors import ProbingTypeError, ProbingValueError

HIDDEN = 12
PLACE: dict[str, Any] = {"layer": 3, "tensor_type": "residual_stream"}


def draw_data(count: int = 400, *, distance: float = 1.5, classes: int = 2, seed: int = 0) -> Any:
    """Rows of normal noise around a mean per class, and the classes."""
    rng = np.random.default_rng(seed)
    truth = np.arange(count) % classes
    means = distance * np.linalg.qr(rng.standard_normal((HIDDEN, HIDDEN)))[0][:classes]
    return (rng.standard_normal((count, HIDDEN)) + means[truth]).astype(np.float32), truth


# ---- fitting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_each_kind_learns_to_tell_two_classes_apart(kind: str) -> None:
    rows, truth = draw_data(600, distance=2.5)
    options = {"penalty": 0.1, "hidden_sizes": (8,)} if kind == "mlp" else {}
    probe = fit_probe(rows[:300], truth[:300], kind=kind, label_names=("calm", "rude"), model="m", **PLACE, **options)

    is_right = (probe.score(rows[300:]) >= 0.5) == truth[300:]
    assert is_right.mean() > 0.9
    assert (probe.kind, probe.labels, probe.model, probe.layer) == (kind, ("calm", "rude"), "m", 3)
    assert probe.training["rows_per_label"] == [150, 150]


def test_mean_difference_is_0_and_1_at_the_means_of_the_classes() -> None:
    rows, truth = draw_data()
    probe = fit_probe(rows, truth, kind="mean_difference", **PLACE)
    means = np.stack([rows[truth == label].mean(axis=0) for label in (0, 1)])
    assert probe.score(means) == pytest.approx([0.0, 1.0], abs=1e-5)
    assert np.linalg.norm(probe.weights["direction"]) == pytest.approx(1.0)


def test_more_than_two_classes_become_a_softmax() -> None:
    rows, truth = draw_data(900, distance=3.0, classes=3)
    probe = fit_probe(rows[:600], truth[:600], **PLACE)
    chances = probe.scorer().margins(rows[600:]).classes
    assert (probe.output_count, probe.labels) == (3, ("class_0", "class_1", "class_2"))
    assert (chances.argmax(axis=1) == truth[600:]).mean() > 0.85


def test_dimension_of_another_scale_does_not_drown_the_others() -> None:
    rows, truth = draw_data(distance=3.0)
    rows[:, 0] *= 10_000
    rows[:, 1] += 50_000
    assert ((fit_probe(rows, truth, **PLACE).score(rows) >= 0.5) == truth).mean() > 0.95


def test_network_that_has_not_converged_says_so() -> None:
    rows, truth = draw_data(60)
    from undercurrent.core.training import fitting

    probe = fit_probe(rows, truth, kind="linear", penalty=1.0, **PLACE)
    assert probe.training["is_converged"] is True
    limit, fitting._ITERATIONS_MAX = fitting._ITERATIONS_MAX, 1
    try:
        assert fit_probe(rows, truth, kind="mlp", penalty=1.0, **PLACE).training["is_converged"] is False
    finally:
        fitting._ITERATIONS_MAX = limit


@pytest.mark.parametrize(
    ("rows", "truth", "options", "error", "message"),
    [
        (np.zeros((4, 2, 2)), [0, 1, 0, 1], {}, ProbingTypeError, r"expected activations \(n, hidden\)"),
        (np.zeros((4, 2)), [0, 1, 0], {}, ProbingTypeError, r"labels of shape \(3,\)"),
        (np.zeros((4, 2), int), [0, 1, 0, 1], {}, ProbingTypeError, "of floats"),
        (np.full((4, 2), np.nan), [0, 1, 0, 1], {}, ProbingValueError, "4 of 4 activations hold NaN"),
        (np.zeros((4, 2)), ["a", "b", "a", "b"], {}, ProbingTypeError, "labels must be class numbers"),
        (np.zeros((4, 2)), [0, 0, 0, 1], {}, ProbingValueError, r"at least 2 rows.*got \[3, 1\]"),
        (np.zeros((4, 2)), [0, 0, 0, 0], {}, ProbingValueError, "two classes are the least"),
        (np.zeros((4, 2)), [0, 1, 0, 1], {"kind": "liner"}, ProbingValueError, "did you mean 'linear'"),
        (np.zeros((4, 2)), [0, 1, 0, 1], {"penalty": 0.0}, ProbingValueError, "`penalty` must be a number above 0"),
        (np.zeros((4, 2)), [0, 1, 0, 1], {"kind": "mean_difference"}, ProbingValueError, "have the same mean"),
        (np.zeros((6, 2)), [0, 1, 2] * 2, {"kind": "mean_difference"}, ProbingValueError, "tells two classes apart"),
    ],
)
def test_data_that_teaches_nothing_is_refused(
    rows: Any, truth: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fit_probe(rows, truth, **PLACE, **options)


# ---- calibration ---------------------------------------------------------------------------------------------------


def test_temperature_finds_the_factor_by_which_margins_are_too_sure() -> None:
    rng = np.random.default_rng(1)
    margins = rng.normal(0, 2, 20_000)
    truth = rng.random(20_000) < 1 / (1 + np.exp(-margins))
    rows, labels = draw_data()
    probe = calibrate(fit_probe(rows, labels, **PLACE), 4 * margins, truth)
    assert isinstance(probe.calibration, Temperature)
    assert probe.calibration.temperature == pytest.approx(4.0, rel=0.05)


def test_isotonic_follows_a_curve_that_no_temperature_can() -> None:
    rng = np.random.default_rng(2)
    margins = rng.normal(0, 2, 20_000)
    chance = np.where(margins < 1, 0.1, 0.7)
    truth = rng.random(20_000) < chance
    rows, labels = draw_data()
    probe = calibrate(fit_probe(rows, labels, **PLACE), margins, truth, method="isotonic")
    assert isinstance(probe.calibration, Isotonic)
    assert probe.scorer().link(np.array([-2.0, 3.0])) == pytest.approx([0.1, 0.7], abs=0.03)


def test_set_without_an_error_does_not_make_every_score_certain() -> None:
    rows, labels = draw_data()
    probe = calibrate(fit_probe(rows, labels, **PLACE), np.where(np.arange(40) % 2, 3.0, -3.0), np.arange(40) % 2)
    assert 0.9 < probe.scorer().link(np.array([3.0]))[0] < 0.99


def test_softmax_is_calibrated_by_its_log_chances() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (20_000, 3))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = (chances.cumsum(axis=1) < rng.random(20_000)[:, None]).sum(axis=1)
    rows, labels = draw_data(classes=3)
    probe = calibrate(fit_probe(rows, labels, **PLACE), 3 * logits, truth)
    assert probe.calibration.temperature == pytest.approx(3.0, rel=0.05)


def test_wrong_calibration_is_refused() -> None:
    rows, labels = draw_data()
    probe = fit_probe(rows, labels, **PLACE)
    assert calibrate(probe, [], [], method="none") is probe
    with pytest.raises(ProbingValueError, match="did you mean 'isotonic'"):
        calibrate(probe, [1.0], [1], method="isotonik")
    with pytest.raises(ProbingValueError, match="takes no other one"):
        calibrate(fit_probe(rows, labels, kind="mean_difference", **PLACE), [1.0], [1])
    with pytest.raises(ProbingValueError, match="one finite margin per label"):
        calibrate(probe, [1.0, np.nan], [0, 1])
    with pytest.raises(ProbingValueError, match="isotonic calibration is for binary probes"):
        calibrate(probe, np.zeros((4, 3)), [0, 1, 2, 0], method="isotonic")


@pytest.mark.parametrize("aggregation", ["each", "mean", "max", {"kind": "ema", "alpha": 0.4}])
def test_value_of_a_text_is_what_the_served_probe_ends_with(aggregation: Any) -> None:
    rows, labels = draw_data()
    saved = fit_probe(rows, labels, aggregation=aggregation, **{**PLACE, "layer": 4})
    texts = [rows[0:1], rows[1:6], rows[6:30]]
    for value, text in zip(last_values(saved, texts), texts, strict=True):
        probe = saved.factory().spawn("req-1", "guard")
        probe.on_activations(batch_of(text))
        verdict = probe.on_end(RequestContext("req-1", {}, None)).verdict
        assert saved.scorer().link(np.array([value]))[0] == pytest.approx(verdict["score"], abs=1e-6)


# ---- splitting -----------------------------------------------------------------------------------------------------


def test_no_group_lies_on_two_sides_and_every_side_has_both_labels() -> None:
    groups = np.repeat([f"g{index}" for index in range(40)], 10)
    labels = np.where(np.repeat(np.arange(40), 10) % 2, "b", "a")
    split = split_by_group(labels, groups)
    parts = [split.train, split.calibration, split.held_out]

    assert sorted(np.concatenate(parts).tolist()) == list(range(400))
    assert [len(part) for part in parts] == [160, 80, 160]
    owners = [set(groups[part]) for part in parts]
    assert not owners[0] & owners[1]
    assert not owners[0] & owners[2]
    assert not owners[1] & owners[2]
    for part in parts:
        assert np.mean(labels[part] == "a") == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("groups", [np.arange(3000), np.arange(6000) // 2])
def test_many_groups_are_split_in_a_moment_and_balanced(groups: Any) -> None:
    labels = groups % 2
    split = split_by_group(labels, groups)
    assert len(split.held_out) == pytest.approx(0.4 * len(groups), rel=0.02)
    assert labels[split.held_out].mean() == pytest.approx(0.5, abs=0.05)
    assert not set(groups[split.held_out]) & set(groups[split.train])


def test_equal_seeds_split_equally() -> None:
    labels, groups = np.arange(60) % 2, np.arange(60)
    assert (
        split_by_group(labels, groups, seed=3).held_out.tolist()
        == split_by_group(labels, groups, seed=3).held_out.tolist()
    )
    assert (
        split_by_group(labels, groups, seed=3).held_out.tolist()
        != split_by_group(labels, groups, seed=4).held_out.tolist()
    )


@pytest.mark.parametrize(
    ("labels", "groups", "options", "message"),
    [
        ([0, 1] * 5, ["a", "b"] * 5, {}, "two labels with at least 3 groups each, got \\[1, 1\\]"),
        ([0] * 10, range(10), {}, "two labels"),
        ([0, 1] * 5, range(9), {}, "one label and one group per item"),
        ([0, 1] * 5, range(10), {"held_out": 0.9, "calibration": 0.2}, "leave some to train on"),
    ],
)
def test_split_that_cannot_be_is_refused(labels: Any, groups: Any, options: Any, message: str) -> None:
    with pytest.raises(ProbingValueError, match=message):
        split_by_group(labels, list(groups), **options)


# ---- figures -------------------------------------------------------------------------------------------------------


def test_wilson_interval_has_the_values_of_scipy() -> None:
    for hits, count in ((0, 10), (10, 10), (50, 100)):
        expected = binomtest(hits, count).proportion_ci(method="wilson")
        assert Rate(hits, count).interval == pytest.approx((expected.low, expected.high))
    assert Rate(0, 10).interval == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert Rate(0, 0).interval == (0.0, 1.0)


def draw_scores(count: int, rng: np.random.Generator, distance: float = 1.0) -> Any:
    truth = np.arange(count) % 2 == 1
    return rng.standard_normal(count) + distance * truth, truth


def test_area_is_that_of_scikit_learn_with_ties() -> None:
    scores, truth = draw_scores(200, np.random.default_rng(0))
    for found in (scores, scores.round(1)):
        assert area_under_curve(found, truth).value == pytest.approx(roc_auc_score(truth, found))


def test_delong_interval_covers_the_true_area_as_often_as_it_says() -> None:
    # Two normals one apart: the area is the normal distribution at 1 / sqrt(2).
    rng = np.random.default_rng(0)
    found = [area_under_curve(*draw_scores(120, rng)) for _ in range(400)]
    covered = np.mean([item.low <= 0.7602499 <= item.high for item in found])
    assert 0.92 <= covered <= 0.98
    assert {item.method for item in found} == {"DeLong"}


def test_classes_fully_apart_still_have_an_interval() -> None:
    found = area_under_curve(np.arange(40.0), np.arange(40) >= 20)
    assert (found.value, found.high, found.method) == (1.0, 1.0, "Newcombe")
    assert 0.8 < found.low < 0.95


def test_evaluation_counts_what_lies_on_either_side_of_the_threshold() -> None:
    found = evaluate([0.1, 0.6, 0.4, 0.9, 0.8], [False, False, True, True, True], threshold=0.5)
    assert (found.accuracy, found.true_positives, found.false_positives) == (Rate(3, 5), Rate(2, 3), Rate(1, 2))
    assert (found.base_rate, found.count, found.group_count) == (Rate(3, 5), 5, 5)
    assert found.accuracy_of_groups is None
    assert (found.roc.false_positive_rates[0], found.roc.true_positive_rates[-1]) == (0.0, 1.0)


def test_calibration_error_is_the_weighted_gap_of_the_bins() -> None:
    scores = np.array([0.05] * 10 + [0.95] * 10)
    truth = np.array([True] * 2 + [False] * 8 + [True] * 9 + [False])
    found = evaluate(scores, truth, threshold=0.5, resamples=50)
    assert found.calibration_error is not None
    assert found.calibration_error.value == pytest.approx((abs(0.05 - 0.2) + abs(0.95 - 0.9)) / 2)
    assert [(item.low, item.high, item.positives) for item in found.bins] == [
        (0, 0.1, Rate(2, 10)),
        (0.9, 1, Rate(9, 10)),
    ]


def test_error_of_a_perfectly_calibrated_probe_is_about_its_floor() -> None:
    rng = np.random.default_rng(5)
    scores = rng.random(2000)
    found = evaluate(scores, rng.random(2000) < scores, threshold=0.5, resamples=50)
    assert found.calibration_error.value == pytest.approx(found.calibration_error_floor, rel=0.6)
    assert found.calibration_error_floor < 0.05


def test_scores_that_are_no_chances_have_no_calibration_error() -> None:
    found = evaluate([-3.0, 2.0, 5.0], [False, True, True], threshold=0.0)
    assert (found.calibration_error, found.calibration_error_floor, found.bins) == (None, None, ())


def test_items_of_one_group_widen_the_interval() -> None:
    rng = np.random.default_rng(7)
    groups = np.repeat(np.arange(20), 20)
    truth = np.repeat(np.arange(20) % 2 == 1, 20)
    scores = np.repeat(rng.standard_normal(20), 20) + truth + 0.1 * rng.standard_normal(400)
    found = evaluate(scores, truth, threshold=0.5, groups=groups, resamples=200)

    assert found.accuracy_of_groups is not None
    low, high = found.accuracy.interval
    assert found.accuracy_of_groups.high - found.accuracy_of_groups.low > 1.5 * (high - low)
    assert found.auc_of_groups is not None
    assert found.auc_of_groups.method == "bootstrap of 20 groups"


def test_figures_are_plain_json() -> None:
    found = evaluate([0.1, 0.6, 0.4, 0.9], [False, True, False, True], threshold=0.5, resamples=20)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["accuracy"] == {"rate": 1.0, "low": pytest.approx(0.51, abs=0.01), "high": 1.0, "hits": 4, "count": 4}
    assert plain["roc"]["thresholds"][0] is None


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_threshold_flags_at_most_the_allowed_share_of_negatives_and_nearly_that(rate: float) -> None:
    scores, truth = draw_scores(400, np.random.default_rng(9))
    threshold = threshold_at_false_positive_rate(scores, truth, rate)
    flagged = int((scores[~truth] >= threshold).sum())
    assert flagged == int(rate * 200)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate([0.5, np.nan], [True, False], threshold=0.5), "1 of 2 scores are NaN"),
        (lambda: evaluate([0.5], [True, False], threshold=0.5), "one score per item"),
        (lambda: evaluate([0.5, 0.6], [True, True], threshold=0.5), "needs both classes"),
        (lambda: threshold_at_false_positive_rate([0.5], [True], 0.1), "needs negative items"),
        (lambda: threshold_at_false_positive_rate([0.5], [False], 1.1), "between 0 and 1"),
    ],
)
def test_figures_that_cannot_be_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ProbingValueError, match=message):
        call()


def test_missing_scikit_learn_says_what_to_install() -> None:
    program = """
import sys
sys.modules["sklearn"] = None
sys.modules["sklearn.linear_model"] = None
import numpy as np
from undercurrent.core.training import fit_probe
from undercurrent.errors import MissingDependencyError
try:
    fit_probe(np.random.rand(8, 2), [0, 1] * 4, layer=0, tensor_type="mlp_out")
except MissingDependencyError as error:
    assert "pip install 'undercurrent[train]'" in str(error), error
else:
    raise SystemExit("trained without scikit-learn")
"""
    answer = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
