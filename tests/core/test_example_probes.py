"""The example probes: a running mean that aborts once, and a classifier that only speaks."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from undercurrent.core import ActivationBatch, Probe, ProbeAction, ProbeSignal, RequestContext
from undercurrent.core.examples import MLPClassifierProbe, TrajectoryScoreProbe
from undercurrent.errors import ProbingTypeError, ProbingValueError
from undercurrent.spec import ActivationRecord

CONTEXT = RequestContext("req-1", {}, None)
STEPS = [[0.1, 0.2], [0.4, 0.6], [0.9, 1.0], [0.9, 0.9]]


def make_record(tensor: Any) -> ActivationRecord:
    return ActivationRecord("req-1", "guard", 4, 10, "mlp_out", tensor, True)


def start(probe_cls: type[Probe], **arguments: Any) -> Any:
    probe = probe_cls.spawn("req-1", "guard", **arguments)
    probe.on_start(CONTEXT)
    return probe


def actions_of(signals: Any) -> list[ProbeAction | None]:
    return [signal.action if isinstance(signal, ProbeSignal) else None for signal in signals]


def test_running_mean_aborts_once_when_it_first_crosses() -> None:
    probe = start(TrajectoryScoreProbe, threshold=0.5)
    signals = [probe.on_activation(make_record(values)) for values in STEPS]

    assert actions_of(signals) == [None, None, ProbeAction.ABORT, None]
    assert signals[2].metadata == {"running_mean": pytest.approx(0.5333333), "count": 3}
    result = probe.on_end(CONTEXT)
    assert result.verdict == {"final_mean": 0.625, "count": 4, "aborted": True}
    assert result.signal_history == [signals[2]]
    assert result.metadata == {"threshold": 0.5}


@pytest.mark.parametrize(
    "convert",
    [
        tuple,
        lambda values: [values],
        np.array,
        lambda values: np.array(values, np.float16),
        lambda values: np.array([values]),
    ],
)
def test_running_mean_takes_any_array_like(convert: Any) -> None:
    probe = start(TrajectoryScoreProbe, threshold=0.5)
    signals = [probe.on_activation(make_record(convert(values))) for values in STEPS]

    assert actions_of(signals) == [None, None, ProbeAction.ABORT, None]
    assert probe.running_mean == pytest.approx(0.625, abs=1e-3)


def test_running_mean_takes_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    probe = start(TrajectoryScoreProbe, threshold=0.5)
    probe.on_activation(make_record(torch.full((8,), 0.75, dtype=torch.bfloat16)))

    assert probe.running_mean == 0.75


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int32])
def test_batch_says_what_its_records_say_one_by_one(dtype: Any) -> None:
    rows = (np.random.default_rng(7).random((16, 32)) * 4).astype(dtype)
    single, batched = start(TrajectoryScoreProbe, threshold=1.5), start(TrajectoryScoreProbe, threshold=1.5)
    one_by_one = [single.on_activation(make_record(row)) for row in rows]
    at_once = batched.on_activations(ActivationBatch.from_records([make_record(row) for row in rows]))

    assert actions_of(at_once) == actions_of(one_by_one)
    assert batched.running_mean == pytest.approx(single.running_mean, rel=1e-3)


def test_batch_of_uneven_tensors_goes_one_by_one() -> None:
    probe = start(TrajectoryScoreProbe, threshold=0.5)
    signals = probe.on_activations(ActivationBatch.from_records([make_record([0.25]), make_record([1.0, 1.0])]))

    assert actions_of(signals) == [None, ProbeAction.ABORT]


def test_mean_that_is_not_a_number_aborts_and_says_why() -> None:
    probe = start(TrajectoryScoreProbe, threshold=0.5)
    signal = probe.on_activation(make_record([math.nan]))

    assert signal.action is ProbeAction.ABORT
    assert signal.metadata["nan"] is True


def test_tensor_without_numbers_counts_as_zero() -> None:
    probe = start(TrajectoryScoreProbe)
    probe.on_activation(make_record([]))
    probe.on_activation(make_record(np.zeros((0, 4))))
    probe.on_activations(ActivationBatch.from_records([make_record([])]))

    assert probe.on_end(CONTEXT).verdict == {"final_mean": 0.0, "count": 3, "aborted": False}


def test_probe_without_records_has_nothing_to_abort_for() -> None:
    probe = start(TrajectoryScoreProbe, threshold=-1.0)

    assert probe.check_intervention() is None
    assert probe.running_mean == 0.0


@pytest.mark.parametrize("threshold", ["0.5", None, True])
def test_threshold_must_be_a_number(threshold: object) -> None:
    with pytest.raises(ProbingTypeError, match="`threshold` must be a number"):
        TrajectoryScoreProbe.spawn("req-1", "guard", threshold=threshold)


def test_text_is_no_tensor() -> None:
    with pytest.raises(ProbingTypeError, match="must hold numbers"):
        start(TrajectoryScoreProbe).on_activation(make_record("abc"))


def test_classifier_reports_the_class_of_the_last_record() -> None:
    probe = start(MLPClassifierProbe, num_classes=3)
    signal = probe.on_activation(make_record([0.25, 0.75]))

    assert signal.action is ProbeAction.CONTINUE
    assert signal.metadata == {"predicted_class": 2}
    result = probe.on_end(CONTEXT)
    assert result.verdict == {"predicted_class": 2, "logits": [0.5, 1.0, 1.5]}
    assert result.metadata == {"num_classes": 3}


def test_classifier_that_saw_nothing_has_no_verdict() -> None:
    assert start(MLPClassifierProbe).on_end(CONTEXT).verdict is None


def test_classifier_marks_what_is_not_a_number() -> None:
    assert start(MLPClassifierProbe).on_activation(make_record([math.nan])).metadata["nan"] is True


@pytest.mark.parametrize("count", [0, -1, True, 2.0])
def test_number_of_classes_must_be_a_positive_int(count: object) -> None:
    with pytest.raises(ProbingValueError, match="`num_classes`"):
        MLPClassifierProbe.spawn("req-1", "guard", num_classes=count)


def test_probing_a_list_never_loads_numpy() -> None:
    source = """
import sys
from undercurrent.core import RequestContext
from undercurrent.core.examples import TrajectoryScoreProbe
from undercurrent.spec import ActivationRecord
probe = TrajectoryScoreProbe.spawn("r", "p")
probe.on_activation(ActivationRecord("r", "p", 0, 0, "mlp_out", [1.0], True))
print("numpy" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-P", "-c", source], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "False"
