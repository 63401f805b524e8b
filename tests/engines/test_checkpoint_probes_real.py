"""Probes inside trained models that decide."""

from __future__ import annotations

from typing import Any

import pytest
from engine_points import PROBES, make_point
from predict_checkpoints import TOPIC

from undercurrent.engines.checkpoint_probes import CheckpointProbes
from undercurrent.predict import Router as DecisionRouter
from undercurrent.router import Router

pytestmark = pytest.mark.engines

STATES = [("english", "My parcel should have come a week ago."), ("multilingual", "Wo bleibt mein Paket?")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("execution_mode", ["inline", "async"])
def test_trained_models_answer_alike_with_probes_inside(execution_mode: Any) -> None:
    point = make_point("seen", layers=(2,), position="prompt[-1]", execution_mode=execution_mode)
    requests = [{"state": state, "questions": TOPIC, "model": name} for name, state in STATES]
    with Router(PROBES) as router:
        watched = DecisionRouter(agent_options={"probes": CheckpointProbes([point], router)}).predict_batch(requests)
    plain = DecisionRouter().predict_batch(requests)
    for one, other in zip(watched, plain, strict=True):
        assert one["answers"] == other["answers"]
        assert one["probes"]["seen"]["coverage"]["complete"] is True
        (record,) = one["probes"]["seen"]["verdict"]
        assert record[0] == 2
