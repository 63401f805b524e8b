"""Built-in probes at their points: arguments, verdicts, aggregates, batches, workers."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from saved_probes import HIDDEN, LAYER, batch_of, draw, make_line, make_saved, record, tokens

from undercurrent.core import ProbeAction, RequestContext
from undercurrent.core.builtin import (
    LinearProbe,
    MeanDifferenceProbe,
    MLPProbe,
    SaeFeatureProbe,
)
from undercurrent.core.builtin.probes import HISTORY_MAX
from undercurrent.errors import ProbingValueError

CLASSES = {
    "linear": LinearProbe,
    "softmax": LinearProbe,
    "mlp": MLPProbe,
    "mean_difference": MeanDifferenceProbe,
    "sae_feature": SaeFeatureProbe,
}


def spawn(saved: Any, **arguments: Any) -> Any:
    return saved.factory(**arguments).spawn("req-1", "guard")


def verdict_of(probe: Any) -> dict[str, Any]:
    return dict(probe.on_end(RequestContext("req-1", {}, None)).verdict)


def flagged(signals: Any) -> list[bool]:
    return [signal is not None and signal.action is not ProbeAction.CONTINUE for signal in signals]


def logit(chance: float) -> float:
    return float(np.log(chance / (1 - chance)))


# ---- verdicts ------------------------------------------------------------------------------------------------------


def test_each_record_is_held_against_the_threshold() -> None:
    probe = spawn(make_line(labels=["fine", "rude"]), threshold=0.7)
    signals = probe.on_activations(batch_of(tokens(logit(0.6), logit(0.8), logit(0.5))))

    assert flagged(signals) == [False, True, False]
    assert [round(signal.metadata["score"], 6) for signal in signals] == [0.6, 0.8, 0.5]
    assert signals[1].confidence == pytest.approx(0.8)
    verdict = verdict_of(probe)
    assert verdict.pop("score") == verdict.pop("max_score") == pytest.approx(0.8)
    assert verdict == {"flagged": True, "n": 3, "label": "rude", "non_finite": 0, "first_flagged": 1}


def test_probe_that_saw_nothing_says_so() -> None:
    expected = {"flagged": False, "score": None, "max_score": None, "n": 0, "label": None, "non_finite": 0}
    assert verdict_of(spawn(make_line())) == {**expected, "first_flagged": None}


@pytest.mark.parametrize("kind", CLASSES)
def test_verdicts_and_signals_are_plain_values(kind: str) -> None:
    probe = spawn(make_saved(kind))
    signals = probe.on_activations(batch_of(draw(4, HIDDEN)))

    def check(value: object) -> None:
        if isinstance(value, dict):
            for part in value.values():
                check(part)
        else:
            assert type(value) in (bool, int, float, str, type(None))

    check(verdict_of(probe))
    for signal in signals:
        check(signal.metadata)


def test_softmax_verdict_has_the_mean_chance_of_each_label() -> None:
    saved = make_saved("softmax", labels=["fine", "rude", "unsafe"])
    rows = draw(6, HIDDEN, seed=4)
    probe = spawn(saved)
    probe.on_activations(batch_of(rows[:2]))
    probe.on_activations(batch_of(rows[2:]))

    expected = saved.scorer().margins(rows).classes.mean(axis=0)
    verdict = verdict_of(probe)
    assert list(verdict["classes"].values()) == pytest.approx(expected.tolist())
    assert verdict["label"] == saved.labels[int(expected.argmax())]


def test_sae_verdict_has_the_highest_activation_of_each_feature() -> None:
    saved = make_saved("sae_feature", settings={"activation": "relu", "features": [5, 2]}, labels=["dose", "pan"])
    rows = draw(6, HIDDEN, seed=4)
    probe = spawn(saved, threshold=0.1)
    probe.on_activations(batch_of(rows))

    expected = saved.scorer().margins(rows).classes.max(axis=0)
    assert verdict_of(probe)["features"] == dict(zip(("dose", "pan"), expected.tolist(), strict=True))
    assert verdict_of(probe)["label"] in ("dose", "pan")


def test_probe_without_a_threshold_only_records_scores() -> None:
    probe = spawn(make_saved("sae_feature"))
    assert flagged(probe.on_activations(batch_of(10 * draw(5, HIDDEN)))) == [False] * 5
    assert verdict_of(probe)["max_score"] > 0


def test_action_and_quiet_signals_are_chosen_by_arguments() -> None:
    probe = spawn(make_line(), action="abort", signals="flagged")
    signals = probe.on_activations(batch_of(tokens(-1, 1)))
    assert signals[0] is None
    assert signals[1].action is ProbeAction.ABORT


def test_result_keeps_the_first_flagged_signals_only() -> None:
    probe = spawn(make_line())
    for position in range(HISTORY_MAX + 20):
        probe.on_activation(record(tokens(float(position % 2))[0], position))
    history = probe.on_end(RequestContext("req-1", {}, None)).signal_history
    assert len(history) == HISTORY_MAX
    assert all(signal.action is ProbeAction.FLAG for signal in history)


def test_probe_that_starts_again_has_forgotten_the_first_request() -> None:
    probe = spawn(make_line(), aggregate="max")
    probe.on_activation(record(tokens(5.0)[0]))
    probe.on_start(RequestContext("req-2", {}, None))
    probe.on_activation(record(tokens(-5.0)[0]))
    assert (verdict_of(probe)["flagged"], verdict_of(probe)["n"]) == (False, 1)


# ---- aggregates ----------------------------------------------------------------------------------------------------

MARGINS = (1.0, -3.0, 2.0, 2.5, -1.0)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("mean", [1.0, -1.0, 0.0, 0.625, 0.3]),
        ({"kind": "mean", "window": 2}, [1.0, -1.0, -0.5, 2.25, 0.75]),
        ("max", [1.0, 1.0, 2.0, 2.5, 2.5]),
        ({"kind": "ema", "alpha": 0.5}, [1.0, -1.0, 0.5, 1.5, 0.25]),
    ],
)
@pytest.mark.parametrize("sizes", [(5,), (1, 1, 1, 1, 1), (2, 3)])
def test_aggregate_of_margins_is_scored_after_each_record(aggregate: Any, expected: Any, sizes: Any) -> None:
    probe = spawn(make_line(), aggregate=aggregate)
    rows, scores = tokens(*MARGINS), []
    for size in sizes:
        scores += [signal.metadata["score"] for signal in probe.on_activations(batch_of(rows[:size]))]
        rows = rows[size:]
    assert scores == pytest.approx((1 / (1 + np.exp(-np.array(expected)))).tolist())
    assert verdict_of(probe)["score"] == pytest.approx(scores[-1])


def test_mean_of_a_linear_probe_is_the_probe_of_the_mean() -> None:
    saved = make_saved(calibration={"kind": "temperature", "temperature": 3.0})
    rows = draw(20, HIDDEN, seed=6)
    probe = spawn(saved, aggregate="mean")
    probe.on_activations(batch_of(rows))
    assert verdict_of(probe)["score"] == pytest.approx(saved.score(rows.mean(axis=0)[None])[0], abs=1e-6)


def test_k_of_n_flags_while_enough_of_the_last_records_reach_the_threshold() -> None:
    probe = spawn(make_line(), threshold=0.5, aggregate={"kind": "k_of_n", "k": 2, "n": 3})
    signals = probe.on_activations(batch_of(tokens(1, -1, 1, -1, -1, 1)))
    assert flagged(signals) == [False, False, True, False, False, False]
    assert [signal.metadata["score"] for signal in signals] == [1, 1, 2, 1, 1, 1]


def test_cusum_flags_a_change_that_no_single_record_shows() -> None:
    probe = spawn(make_line(), threshold=0.99, aggregate={"kind": "cusum", "limit": 1.5, "drift": 0.5})
    signals = probe.on_activations(batch_of(tokens(0, 0.4, 0, 1, 1, 1, 1, -9)))
    assert [signal.metadata["score"] for signal in signals] == pytest.approx([0, 0, 0, 0.5, 1.0, 1.5, 2.0, 0])
    assert flagged(signals) == [False, False, False, False, False, True, True, False]


def test_min_records_keeps_a_mean_of_one_from_flagging() -> None:
    probe = spawn(make_line(), aggregate={"kind": "mean", "min_records": 3})
    assert flagged(probe.on_activations(batch_of(tokens(9, 9, 9)))) == [False, False, True]


@pytest.mark.parametrize("kind", ["linear", "mlp", "mean_difference", "sae_feature"])
@pytest.mark.parametrize(
    "aggregate",
    [
        "each",
        "mean",
        "max",
        {"kind": "ema", "alpha": 0.3},
        {"kind": "k_of_n", "k": 2, "n": 4},
        {"kind": "cusum", "limit": 1},
    ],
)
def test_batches_say_what_single_records_say(kind: str, aggregate: Any) -> None:
    saved = make_saved(kind, threshold=0.6)
    rows = draw(12, HIDDEN, seed=8)
    rows[5, 3] = np.nan
    single, many = spawn(saved, aggregate=aggregate), spawn(saved, aggregate=aggregate)
    alone = [single.on_activation(record(row, position)) for position, row in enumerate(rows)]
    together = many.on_activations(batch_of(rows))

    assert flagged(alone) == flagged(together)
    for mine, other in zip(alone, together, strict=True):
        assert mine.metadata == pytest.approx(other.metadata, abs=1e-6, nan_ok=True) or mine.metadata == other.metadata
    verdicts = [verdict_of(single), verdict_of(many)]
    assert len({verdict.pop("label") for verdict in verdicts}) == 1
    features = [verdict.pop("features", {}) for verdict in verdicts]
    assert features[0] == pytest.approx(features[1], abs=1e-5)
    assert verdicts[0] == pytest.approx(verdicts[1], abs=1e-5)


def test_saved_aggregation_is_used_unless_the_point_names_one() -> None:
    saved = make_line(aggregation="max")
    rows = batch_of(tokens(3, -3))
    assert flagged(spawn(saved).on_activations(rows)) == [True, True]
    assert flagged(spawn(saved, aggregate="each").on_activations(rows)) == [True, False]


# ---- what is not finite --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_activation_that_is_not_finite_is_flagged_and_counted_whatever_the_threshold(kind: str, poison: float) -> None:
    saved = make_saved(kind)
    rows = draw(3, HIDDEN)
    rows[1, 2] = poison
    probe = spawn(saved, threshold=None, action="abort")
    signals = probe.on_activations(batch_of(rows))

    assert [signal.action for signal in signals] == [ProbeAction.CONTINUE, ProbeAction.ABORT, ProbeAction.CONTINUE]
    assert signals[1].metadata == {"score": None, "non_finite": True}
    verdict = verdict_of(probe)
    assert (verdict["flagged"], verdict["non_finite"], verdict["n"], verdict["first_flagged"]) == (True, 1, 3, 1)


def test_aggregate_goes_on_as_if_the_broken_record_had_not_been() -> None:
    probe, clean = spawn(make_line(), aggregate="mean"), spawn(make_line(), aggregate="mean")
    rows = tokens(1, 0, 3)
    rows[1] = np.nan
    probe.on_activations(batch_of(rows))
    clean.on_activations(batch_of(tokens(1, 3)))
    assert verdict_of(probe)["score"] == verdict_of(clean)["score"]


def test_broken_record_flags_without_changing_the_label() -> None:
    probe = spawn(make_line(labels=["fine", "rude"]))
    rows = tokens(-2, 0)
    rows[1] = np.nan
    probe.on_activations(batch_of(rows))
    assert (verdict_of(probe)["flagged"], verdict_of(probe)["label"]) == (True, "fine")


def test_only_broken_records_have_no_label() -> None:
    probe = spawn(make_line())
    probe.on_activations(batch_of(np.full((2, HIDDEN), np.nan)))
    verdict = verdict_of(probe)
    assert (verdict["label"], verdict["score"], verdict["flagged"]) == (None, None, True)


# ---- records -------------------------------------------------------------------------------------------------------


def test_record_of_another_size_is_an_error_that_names_layer_and_sizes() -> None:
    probe = spawn(make_line())
    message = f"point 'guard' gives 8 values per token at layer {LAYER}, and the probe was trained on 16"
    with pytest.raises(ProbingValueError, match=message):
        probe.on_activation(record(np.zeros(8)))
    with pytest.raises(ProbingValueError, match=message):
        probe.on_activations(batch_of(np.zeros((2, 8))))
    with pytest.raises(ProbingValueError, match=message):
        probe.on_activations(batch_of([np.zeros(16), np.zeros(8)]))


def test_record_of_another_layer_or_tensor_is_an_error_unless_any_is_allowed() -> None:
    for fields in ({"layer": 7}, {"tensor_type": "mlp_out"}):
        with pytest.raises(ProbingValueError, match="to a probe trained on layer 4, 'residual_stream'"):
            spawn(make_line()).on_activation(record(tokens(1)[0], **fields))
        assert spawn(make_line(), any_layer=True).on_activation(record(tokens(1)[0], **fields)) is not None


def test_layer_that_changes_within_a_batch_is_noticed() -> None:
    from undercurrent.core import ActivationBatch

    records = [record(tokens(1)[0]), record(tokens(1)[0], layer=9)]
    with pytest.raises(ProbingValueError, match="gives layer 9"):
        spawn(make_line()).on_activations(ActivationBatch.from_records(records))


@pytest.mark.parametrize("form", ["list", "float16", "bfloat16", "torch", "column"])
def test_tensor_of_any_form_is_scored(form: str) -> None:
    row: Any = tokens(1.5)[0]
    if form == "list":
        row = row.tolist()
    elif form == "float16":
        row = row.astype(np.float16)
    elif form == "column":
        row = row.reshape(1, HIDDEN)
    else:
        torch = pytest.importorskip("torch")
        row = torch.tensor(row, dtype=getattr(torch, "bfloat16" if form == "bfloat16" else "float32"))
    probe = spawn(make_line())
    alone = probe.on_activation(record(row))
    together = probe.on_activations(batch_of([row, row]))
    assert alone.metadata["score"] == together[1].metadata["score"] == pytest.approx(1 / (1 + np.exp(-1.5)))


def test_other_model_is_said_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    context = RequestContext("req-1", {"model": "other-model"}, None)
    with caplog.at_level(logging.WARNING, "undercurrent.core.builtin"):
        for _ in range(3):
            spawn(make_line(model="trained-on-this")).on_start(context)
    assert [line.getMessage() for line in caplog.records].count(
        "a linear probe trained on model 'trained-on-this' watches model 'other-model' (said once)"
    ) == 1
