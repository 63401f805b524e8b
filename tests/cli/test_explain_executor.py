"""`undercurrent explain --executor`: what is refused, and the same numbers wherever the model runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from command_lines import call

from undercurrent.runtime import RunArchive
from undercurrent.runtime.domain import GenerationConfig
from undercurrent.runtime.executors import LocalExecutor
from undercurrent.runtime.pipeline import EstimatorSettings, Explanation, RunSettings, explain

pytest.importorskip("shapiq")

PROMPT = "The river bends. Hills stand."
SPEC = """\
extraction_points:
  - {name: height, layers: [2], tensor_type: residual_stream, position: "generated[*]", probe_type: mean_height,
     probe_kind: trajectory}
"""
PROBES = """\
from undercurrent.core import ProbeFactory, register_probe
from undercurrent.core.examples import TrajectoryScoreProbe

register_probe("mean_height", ProbeFactory(TrajectoryScoreProbe, {"threshold": 99}))
"""
FACTORY = "undercurrent.cli.explain_model:load_coalitions"


@pytest.mark.parametrize("text", ["local", "local:0", "local:two", "locally:2", "ray:"])
def test_an_executor_that_is_none_is_a_wrong_command_line(text: str) -> None:
    answer = call("explain", "--model", "tiny", "--prompt", "One.", "--executor", text)
    assert answer.exit_code == 2
    assert f"--executor must be local:N, ray or ray:ADDRESS, got {text!r}" in answer.stderr


def test_a_folder_that_is_not_there_is_said_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call("explain", "--model", "./absent", "--prompt", "One.", "--executor", "local:2")
    assert answer.exit_code == 1
    assert "no folder 'absent'" in answer.stderr
    assert "starting" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_is_not_there_is_one_sentence() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    answer = call("explain", "--model", "tiny", "--prompt", "One.", "--executor", "ray:127.0.0.1:1")
    assert answer.exit_code == 1
    assert "no Ray cluster at '127.0.0.1:1'" in answer.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_probes_say_the_same_to_the_bit_in_one_process_and_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("probes.yaml").write_text(SPEC)
    Path("mean_probes.py").write_text(PROBES)
    found: list[dict[str, Any]] = []
    for executor in ("local:1", "local:2"):
        answer = call(
            *("explain", "--json", "--model", "tiny", "--max-new-tokens", "3", "--players", "tokens", "--budget", "24"),
            *("--spec", "probes.yaml", "--import", "mean_probes.py", "--executor", executor),
            *("--run-folder", executor.replace(":", ""), "--prompt", "The river"),
        )
        assert answer.exit_code == 0, answer.stderr
        found.append(json.loads(answer.stdout))
    assert found[0]["value_name"] == "height"
    assert found[0]["attribution"] == found[1]["attribution"]
    assert any(found[0]["attribution"]["values"])
    assert _rows(Path("local1")) == _rows(Path("local2"))


def _rows(root: Path) -> dict[str, object]:
    """What each coalition came to, bit for bit."""
    with RunArchive.load(root) as archive:
        return {
            record.coalition_key: (record.generation_text, repr(record.values)) for record in archive.history_lazy()
        }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_that_is_killed_in_mid_run_changes_no_bit() -> None:
    settings = RunSettings(
        players="words",
        value="answer_log_likelihood",
        estimator=EstimatorSettings(name="exact"),
        generation=GenerationConfig(max_new_tokens=4),
    )

    async def run(processes: int, kills: int) -> Explanation:
        class Killer:
            """Kills a process each few rows."""

            def on_coalitions_planned(self, planned: int) -> None:
                pass

            def on_coalition_finished(self, finished: int, planned: int) -> None:
                nonlocal kills
                if kills and finished % 10 == 0:
                    kills -= 1
                    os.kill(executor.pids[0], signal.SIGKILL)

        async with LocalExecutor(FACTORY, args=("tiny", settings), kwargs={"is_alone": True}, processes=processes) as (
            executor
        ):
            found = await explain(PROMPT, executor, settings, max_inflight=executor.capacity, progress=Killer())
            # One that dies with nothing left to do is not replaced.
            assert executor.restarts >= 1 or processes == 1
            assert not kills
            return found

    undisturbed = asyncio.run(run(1, 0))
    disturbed = asyncio.run(run(2, 2))
    assert disturbed.attribution == undisturbed.attribution
    assert disturbed.base_text == undisturbed.base_text
