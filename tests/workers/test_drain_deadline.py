"""What a verdict says when its deadline came first: what was left over is named, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import worker_probes as probes
from worker_rig import coverage, deadline, feed, plan, wait_for

from undercurrent.ipc.layout import HAND_COUNT
from undercurrent.workers import AsyncBinding, Supervisor, worker


@pytest.fixture(params=("process", "thread"))
def supervisor(request: pytest.FixtureRequest) -> Iterator[Supervisor]:
    made = Supervisor(worker_pool_size=1, worker_mode=request.param)
    yield made
    made.close(wait=True, deadline=deadline())


def _open_gated(supervisor: Supervisor, gate: Path, *, count: int) -> AsyncBinding:
    """A binding whose probe stands in the first of `count` records."""
    binding = supervisor.open_binding(plan(probes.Gate, depth=128, probe_kwargs={"path": str(gate)}))
    feed(binding, count)
    wait_for(lambda: binding.statistics().in_hand > 0)
    return binding


def test_the_drain_deadline_ends_a_slow_backlog_with_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SLICE_NS", 0)  # the worker reads its mail after each hand
    supervisor = Supervisor(worker_pool_size=1, worker_mode="thread")
    try:
        binding = _open_gated(supervisor, tmp_path / "open", count=2 * HAND_COUNT + 1)
        binding.end(time.monotonic())
        (tmp_path / "open").touch()
        result = binding.wait_result(deadline())
    finally:
        supervisor.close(wait=True, deadline=deadline())
    found = coverage(result)
    assert result.verdict["positions"] == list(range(found["seen"]))
    assert "drain_timeout" in found["reasons"]
    assert found["routed"] == 2 * HAND_COUNT + 1 == found["seen"] + found["dropped"]
    assert found["dropped"] > 0


def test_a_late_verdict_over_every_record_is_complete(supervisor: Supervisor, tmp_path: Path) -> None:
    binding = _open_gated(supervisor, tmp_path / "open", count=1)
    binding.end(time.monotonic())
    (tmp_path / "open").touch()
    assert coverage(binding.wait_result(deadline()))["complete"]


def test_a_result_is_given_at_the_deadline_even_if_the_probe_is_stuck(supervisor: Supervisor, tmp_path: Path) -> None:
    binding = _open_gated(supervisor, tmp_path / "open", count=1)
    binding.end(time.monotonic())
    result = binding.wait_result(time.monotonic() + 0.05)
    (tmp_path / "open").touch()
    assert result.verdict is None
    assert "drain_timeout" in coverage(result)["reasons"]
