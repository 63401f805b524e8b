"""Every scenario of the prediction life cycle gives what its row reads."""

from __future__ import annotations

from typing import Any

import pytest

from undercurrent.benchmarks import bench_predict
from undercurrent.benchmarks.bench_predict import COSTS, measure
from undercurrent.benchmarks.harness import Runner

RUNNER = Runner(None, is_quick=True)


@pytest.mark.parametrize(
    ("scenario", "arguments"), [(cost[1], cost[2]) for cost in COSTS if "collate" not in str(cost)]
)
def test_scenario_measures_something(scenario: str, arguments: dict[str, Any]) -> None:
    arguments = {**arguments, "count": 50} if scenario == "batch" else arguments
    assert measure(RUNNER, None, scenario, arguments)["us"] > 0


def test_agent_is_measured_without_tensors_too() -> None:
    assert measure(RUNNER, None, "agent", {"has_collate": False})["us"] > 0


def test_deadline_row_has_its_floor() -> None:
    row = bench_predict._deadline(RUNNER)
    assert row.ours is not None
    assert row.floor is not None
    assert row.floor > 0
