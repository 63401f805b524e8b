"""Recordings that were cut off, damaged, or meet a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_points import make_point, make_router

from undercurrent.core import RequestContext
from undercurrent.engines import ActivationRecorder, Recording, RecordingError, SyntheticEngine, replay
from undercurrent.engines.recording_format import MANIFEST_NAME
from undercurrent.engines.recording_reader import RecordedRows
from undercurrent.errors import ProbingRuntimeError, ProbingValueError, UnsupportedPayloadError
from undercurrent.router import RowEntry
from undercurrent.spec import ProbeSpec

SPEC = ProbeSpec("1", (make_point(),))

ENDLESS = """
import sys
from engine_points import make_point
from undercurrent.engines import ActivationRecorder, SyntheticEngine
from undercurrent.spec import ProbeSpec

engine = SyntheticEngine(layer_count=4, hidden_size=64)
spec = ProbeSpec("1", (make_point(),))
with ActivationRecorder(sys.argv[1], spec, model_name="m", shard_bytes_max=4096) as recorder:
    print("recording", flush=True)
    for number in range(1_000_000):
        engine.register_extraction(f"r{number}", list(spec))
        engine.generate(f"r{number}", "abc", {"max_new_tokens": 24}, recorder)
        engine.unregister_extraction(f"r{number}")
"""


def make(folder: Path, *, tokens: int = 9, shard_bytes_max: int = 64) -> Path:
    """A recording of one request, one record of 32 bytes a token."""
    engine = SyntheticEngine(layer_count=4, hidden_size=8)
    with ActivationRecorder(folder, SPEC, model_name="m", shard_bytes_max=shard_bytes_max) as recorder:
        engine.register_extraction("r", list(SPEC))
        engine.generate("r", "abc", {"max_new_tokens": tokens}, recorder)
    return folder


def test_kill_9_while_recording_leaves_whole_shards_that_can_be_replayed(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    command = [sys.executable, "-P", "-c", ENDLESS, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "recording\n"
        while not (folder / "shard-000020.safetensors").exists():
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    recording = Recording(folder)
    assert not recording.manifest.is_complete
    with make_router() as router:
        outcomes = list(replay(recording, SPEC, router))
    *whole, last = outcomes
    assert len(outcomes) > 10
    assert not [outcome for outcome in whole if outcome.is_cut_off]
    assert {len(outcome.results["point"].verdict) for outcome in whole} == {23}
    assert [row[1] for row in last.results["point"].verdict] == list(range(3, 3 + len(last.results["point"].verdict)))


def test_a_recording_that_was_cut_off_says_which_request_broke_off(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    manifest = (folder / MANIFEST_NAME).read_bytes()
    (folder / MANIFEST_NAME).write_bytes(manifest.replace(b'"is_complete": true', b'"is_complete": false'))
    sorted(folder.glob("shard-*"))[-1].unlink()
    with make_router() as router:
        [outcome] = replay(Recording(folder), SPEC, router)
    assert outcome.is_cut_off
    assert 0 < len(outcome.results["point"].verdict) < 8


def test_a_full_disk_ends_the_recording_and_not_the_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    engine = SyntheticEngine(layer_count=4, hidden_size=8)
    recorder = ActivationRecorder(tmp_path / "r", SPEC, model_name="m", shard_bytes_max=64)
    monkeypatch.setattr("undercurrent.engines.recording.put_in_place", fail)
    engine.register_extraction("r", list(SPEC))
    assert len(engine.generate("r", "abc", {"max_new_tokens": 9}, recorder)) == 9
    with pytest.raises(OSError, match="No space left"):
        recorder.close()
    recorder.close()
    assert "recording into" in caplog.text
    assert [path.name for path in (tmp_path / "r").iterdir()] == [MANIFEST_NAME]


FULL = """
import resource, sys
from engine_points import make_point
from undercurrent.engines import ActivationRecorder, SyntheticEngine
from undercurrent.spec import ProbeSpec

engine = SyntheticEngine(layer_count=4, hidden_size=64)
spec = ProbeSpec("1", (make_point(),))
recorder = ActivationRecorder(sys.argv[1], spec, model_name="m", shard_bytes_max=16384)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
engine.register_extraction("r", list(spec))
print(len(engine.generate("r", "abc", {"max_new_tokens": 100}, recorder)))
try:
    recorder.close()
except OSError as error:
    print("refused:", error)
"""


def test_a_limit_that_the_kernel_sets_ends_the_recording_and_leaves_no_half_shard(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", FULL, str(tmp_path / "r")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=50)
    assert answer.stdout.startswith("100\nrefused: 'shard-000000") or answer.stdout.startswith(
        "100\nrefused: '.shard-000000"
    ), answer.stderr
    assert [path.name for path in (tmp_path / "r").iterdir()] == [MANIFEST_NAME]


def test_a_recorder_wants_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with pytest.raises(ProbingValueError, match="is not empty"):
        ActivationRecorder(tmp_path, SPEC, model_name="m")
    with pytest.raises(ProbingValueError, match="`shard_bytes_max` must be >= 1, got 0"):
        ActivationRecorder(tmp_path / "r", SPEC, model_name="m", shard_bytes_max=0)


def test_rows_of_strangers_and_rows_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    with ActivationRecorder(tmp_path / "r", SPEC, model_name="m") as recorder:
        with pytest.raises(ProbingRuntimeError, match="not registered at the recorder"):
            recorder.route_rows(np.zeros((1, 2)), 1, "mlp_out", [RowEntry("nobody", "p", 0, False)])
        recorder.register_request("r", [], RequestContext("r", {}, None))
        with pytest.raises(UnsupportedPayloadError, match="numpy arrays and torch tensors, got list"):
            recorder.route_rows([[1.0]], 1, "mlp_out", [RowEntry("r", "p", 0, False)])


def test_threads_record_side_by_side(tmp_path: Path) -> None:
    engine = SyntheticEngine(layer_count=4, hidden_size=8)
    barrier = threading.Barrier(4)

    def run(number: int) -> None:
        barrier.wait(30)
        engine.register_extraction(f"r{number}", list(SPEC))
        engine.generate(f"r{number}", "abc", {"max_new_tokens": 50}, recorder)

    recorder = ActivationRecorder(tmp_path / "r", SPEC, model_name="m", shard_bytes_max=512)
    with recorder, ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    with make_router() as router:
        outcomes = list(replay(Recording(tmp_path / "r"), SPEC, router))
    for outcome in outcomes:
        marker = engine.marker(outcome.request.request_id)
        verdict = outcome.results["point"].verdict
        assert [(row[1], *row[3][:2].tolist()) for row in verdict] == [
            (p, float(p), float(marker)) for p in range(3, 52)
        ]


def _no_folder(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _other_version(folder: Path) -> None:
    text = (folder / MANIFEST_NAME).read_text()
    (folder / MANIFEST_NAME).write_text(text.replace('"version": 1', '"version": 7'))


def _no_manifest(folder: Path) -> None:
    (folder / MANIFEST_NAME).write_text("[]")


def _hole(folder: Path) -> None:
    (folder / "shard-000001.safetensors").unlink()


def _torn(folder: Path) -> None:
    path = folder / "shard-000001.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def _foreign(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(3)}, folder / "shard-000001.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_no_folder, "holds no recording"),
        (_no_manifest, "is no manifest of a recording"),
        (_other_version, "must have format 'undercurrent-recording' and version 1"),
        (_hole, "missing: shard-000001"),
        (_torn, "is no whole shard"),
        (_foreign, "is no whole shard"),
    ],
)
def test_what_is_no_whole_recording_is_refused(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    damage(folder)
    with pytest.raises(RecordingError, match=message):
        list(Recording(folder).events())


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("request", 5, "column 'request' must lie from 0 to 0"),
        ("block", -1, "column 'block' must lie"),
        ("row", 9, "behind the end of its block"),
        ("tensor_type", 3, "column 'tensor_type' must lie"),
        ("position", -2, "column 'position' must lie"),
    ],
)
def test_nothing_in_a_shard_is_trusted_to_be_an_index(column: str, value: int, message: str, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    folder = make(tmp_path / "r")
    path = folder / "shard-000001.safetensors"
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        tensors: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    tensors[column][0] = value
    save_file(tensors, path, metadata)
    with pytest.raises(RecordingError, match=message):
        list(Recording(folder).events())


def test_every_shard_holds_no_more_than_its_bound(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", shard_bytes_max=100)
    sizes = [len(event.rows) for event in Recording(folder).events() if isinstance(event, RecordedRows)]
    assert sum(sizes) == 8
    assert len(list(folder.glob("shard-*"))) == 3
