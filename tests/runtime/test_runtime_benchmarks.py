"""Every scenario of the runtime's benchmark runs in a small dose, and a missing peer is said, not failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from undercurrent.benchmarks import bench_runtime, runtime_peer
from undercurrent.benchmarks.harness import BenchmarkError, Runner

DOSES: dict[str, dict[str, object]] = {
    "scheduler": {"jobs": 300, "pairs": 1},
    "memory": {"jobs": 2000},
    "append": {"rows": 500, "repeats": 1},
    "archived_run": {"jobs": 200},
    "latency": {"seconds": 0.05, "pairs": 1},
    "stream": {"rows": 500, "repeats": 1},
    "key": {"calls": 100, "repeats": 1},
}


@pytest.mark.parametrize("scenario", DOSES)
def test_a_scenario_of_the_runtime_measures_something(scenario: str) -> None:
    measured = bench_runtime.measure(Runner(None, is_quick=True), None, scenario, **DOSES[scenario])
    assert measured
    assert all(number is not None for number in measured.values())


def test_without_python_3_12_the_peer_s_column_is_empty_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_peer, "_interpreters", lambda: iter(()))
    with pytest.raises(BenchmarkError, match=r"mllm-shap==0\.8\.0 needs Python 3\.12 or later"):
        runtime_peer.runtime_peer_python(tmp_path)
    said: list[str] = []
    monkeypatch.setattr(bench_runtime, "runtime_peer_python", lambda: runtime_peer.runtime_peer_python(tmp_path))
    assert bench_runtime._peer(Runner(Path("python"), say=said.append)) is None
    assert "its column stays empty" in said[0]


def test_without_a_peer_every_row_of_ours_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(runner: Runner, python: Path | None, scenario: str, **arguments: object) -> dict[str, float]:
        assert python is None
        names = ["job_us", "ratio", "floor_us", "growth_kib", "cpu_us", "rows_per_s", "added_p999_us", "key_us"]
        return dict.fromkeys(names, 1.0)

    monkeypatch.setattr(bench_runtime, "measure", measure)
    rows = bench_runtime.run(Runner(None, is_quick=True))
    assert len(rows) == 8
    assert all(row.peer is None for row in rows)
    assert [row.is_reached for row in rows] == [True, True, None, None, None, True, False, True]
