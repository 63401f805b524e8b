"""What is left of an engine that was killed: its workers finish what waits, say so in the file, and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ENGINE = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import worker_probes as probes
from undercurrent.core import ProbeFactory, RequestContext
from undercurrent.router import Router
from undercurrent.sinks import FileLogSink
from undercurrent.spec import ActivationRecord, ExtractionPoint, load_spec

spec = load_spec({{"extraction_points": [{{
    "name": "monitor", "layers": 4, "tensor_type": "mlp_out", "position": "generated[*]", "probe_type": "p",
    "probe_kind": "trajectory", "execution_mode": "async", "queue_depth": 64}}]}})
router = Router(probe_registry={{"p": ProbeFactory(probes.Recorder)}})
router.attach_log_sink(FileLogSink({path!r}))
router.register_request("r", spec.extraction_points, RequestContext("r", {{"model": "tiny"}}, None), wait_s=30)
for position in range(20):
    router.route(ActivationRecord("r", "monitor", 4, position, "mlp_out", np.zeros(4, dtype=np.float32), True))
if {is_flushing}:
    router.flush(30)
print("ready", flush=True)
sys.stdin.read()
"""


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("is_flushing", [False, True])
def test_a_killed_engine_leaves_an_unfinished_result_and_no_process(tmp_path: Path, is_flushing: bool) -> None:
    path = tmp_path / "signals.ndjson"
    tests = str(Path(__file__).resolve().parent.parent)
    code = ENGINE.format(tests=tests, path=str(path), is_flushing=is_flushing)
    engine = subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert engine.stdout is not None
    assert engine.stdin is not None
    try:
        assert engine.stdout.readline() == "ready\n"
        family = psutil.Process(engine.pid).children(recursive=True)
        assert family
    finally:
        os.kill(engine.pid, signal.SIGKILL)
        engine.wait(30)
        engine.stdin.close()
        engine.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    lines = lines_of(path)
    results = [line for line in lines if line["kind"] == "result"]
    assert len(results) == 1
    found = results[0]["payload"]["metadata"]["coverage"]  # type: ignore[index]
    assert (found["routed"], found["seen"], found["complete"]) == (20, 20, False)
    assert found["reasons"] == ["producer_gone"]
    assert sum(line["kind"] == "signal" for line in lines) == 20
    until = time.monotonic() + 30
    while Path(f"/dev/shm/undercurrent-{engine.pid}").exists():
        assert time.monotonic() < until, "the control page outlived its engine"
        time.sleep(0.01)
