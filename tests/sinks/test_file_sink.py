"""`FileLogSink`: whole lines from any thread and process, whatever dies, moves or fills up around them."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sink_lines import SIGNAL, records_of

from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal
from undercurrent.errors import ProbingError, UndercurrentError
from undercurrent.sinks import (
    SCHEMA_VERSION,
    FileLogSink,
    FileSinkError,
    FileSinkNotFoundError,
    ResultRecord,
    SignalRecord,
    redact_keys,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "observations.ndjson"


@pytest.fixture
def sink(path: Path) -> Iterator[FileLogSink]:
    with FileLogSink(path) as sink:
        yield sink


def test_a_signal_is_one_line_with_what_is_known_of_it(sink: FileLogSink, path: Path) -> None:
    sink.write_signal("req-1", "monitor", SIGNAL)
    (record,) = records_of(path)
    assert record.pop("timestamp") == pytest.approx(time.time(), abs=60)
    assert record == {
        "kind": "signal",
        "schema_version": SCHEMA_VERSION,
        "request_id": "req-1",
        "extraction_point_name": "monitor",
        "payload": {
            "action": "flag",
            "metadata": {"score": 0.5, "probe": "mean"},
            "confidence": 0.75,
            "timestamp": 12.5,
        },
    }


def test_a_signal_record_says_which_activation_it_is_about(sink: FileLogSink, path: Path) -> None:
    sink.write_signal_record(SignalRecord("req-1", "monitor", SIGNAL, sequence=7, layer=4, position=12, model="gemma"))
    (record,) = records_of(path)
    assert [record[name] for name in ("sequence", "layer", "position", "model")] == [7, 4, 12, "gemma"]
    assert record["payload"]["action"] == "flag"


def test_a_result_is_one_line_with_history_and_coverage(sink: FileLogSink, path: Path) -> None:
    coverage = {"routed": 3, "seen": 2, "complete": False, "reasons": ["dropped"]}
    result = ProbeResult("req-1", "monitor", {"mean": np.float32(0.5)}, [SIGNAL], {"coverage": coverage})
    sink.write_result("req-1", "monitor", result)
    sink.write_result_record(ResultRecord("req-1", "monitor", result, model="gemma"))
    first, second = records_of(path)
    assert first["coverage"] == coverage
    assert first["payload"] == {
        "request_id": "req-1",
        "extraction_point_name": "monitor",
        "verdict": {"mean": 0.5},
        "signal_history": [
            {"action": "flag", "metadata": {"score": 0.5, "probe": "mean"}, "confidence": 0.75, "timestamp": 12.5}
        ],
        "metadata": {"coverage": coverage},
    }
    assert (second["model"], "model" in first) == ("gemma", False)


def test_what_a_probe_returned_instead_of_a_result_is_written_as_it_is(sink: FileLogSink, path: Path) -> None:
    sink.write_result("r", "p", None)  # type: ignore[arg-type]
    sink.write_result("r", "p", {"free": 1})  # type: ignore[arg-type]
    sink.write_result("r", "p", ProbeResult("r", "p", 1, {"no": "list"}, None))  # type: ignore[arg-type]
    assert [record["payload"] for record in records_of(path)][:2] == [None, {"free": 1}]


awkward = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary(max_size=3)
    | st.sampled_from([np.float64("nan"), np.float32(2.5), ProbeAction.ABORT, object()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    max_leaves=8,
)


@given(metadata=st.dictionaries(st.text(st.characters()), awkward, max_size=4), confidence=awkward, name=st.text())
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_signal_is_one_line_of_valid_json(
    sink: FileLogSink, path: Path, metadata: dict[str, Any], confidence: Any, name: str
) -> None:
    path.write_bytes(b"")
    sink.write_signal("req-1", name, ProbeSignal(metadata=metadata, confidence=confidence))
    (record,) = records_of(path)
    assert set(record["payload"]) == {"action", "metadata", "confidence", "timestamp"}


def test_nan_is_marked_and_none_is_null(sink: FileLogSink, path: Path) -> None:
    sink.write_signal("r", "p", ProbeSignal(metadata={"score": float("nan")}, confidence=None))
    (record,) = records_of(path)
    assert record["payload"]["metadata"] == {"score": {"__summary__": "float", "value": "nan"}}
    assert record["payload"]["confidence"] is None


def test_metadata_that_contains_itself_is_written_and_marked(sink: FileLogSink, path: Path) -> None:
    metadata: dict[str, Any] = {}
    metadata["self"] = metadata
    sink.write_signal("r", "p", ProbeSignal(metadata=metadata))
    assert records_of(path)[0]["payload"]["metadata"]["self"] == {"__summary__": "cycle", "type": "dict"}


def test_a_raw_record_is_redacted_too(path: Path) -> None:
    with FileLogSink(path, redact=redact_keys("prompt")) as sink:
        sink.write_raw({"prompt": "secret", "tensor": np.zeros(2)})
        sink.write_signal("r", "p", ProbeSignal(metadata={"prompt": "secret"}))
        sink.write_result_record(ResultRecord("r", "p", ProbeResult("r", "p", {"prompt": "secret"}), "m"))
        sink.write_signal_record(SignalRecord("r", "p", SIGNAL, layer=3))
    assert b"secret" not in path.read_bytes()
    assert records_of(path)[0]["prompt"] == "[REDACTED]"
    assert records_of(path)[3]["layer"] == 3


def test_a_redaction_that_fails_writes_nothing(path: Path) -> None:
    with FileLogSink(path, redact=lambda record: record["missing"]) as sink:
        sink.write_signal("r", "p", SIGNAL)
    assert sink.redaction_error_count == 1
    assert not path.exists()


def test_what_a_redaction_adds_is_made_json(path: Path) -> None:
    with FileLogSink(path, redact=lambda record: {"score": float("inf"), "who": object}) as sink:
        sink.write_signal("r", "p", SIGNAL)
    assert records_of(path)[0]["score"] == {"__summary__": "float", "value": "inf"}


def test_a_new_file_is_for_its_owner_only(sink: FileLogSink, path: Path) -> None:
    sink.write_signal("r", "p", SIGNAL)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_existing_file_keeps_its_mode_and_lines(sink: FileLogSink, path: Path) -> None:
    path.write_text("{}\n")
    path.chmod(0o640)
    sink.write_signal("r", "p", SIGNAL)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert len(records_of(path)) == 2


def test_a_missing_folder_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileSinkNotFoundError, match="folder") as caught:
        FileLogSink(tmp_path / "missing" / "observations.ndjson")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ProbingError)
    assert caught.value.errno == errno.ENOENT


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileSinkError, match="is a folder") as caught:
        FileLogSink(tmp_path)
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value, UndercurrentError)


def test_making_a_sink_creates_no_file(path: Path) -> None:
    with FileLogSink(str(path)) as sink:
        assert sink.path == path
        assert sink.travels
    assert not path.exists()


def test_a_sink_travels_as_its_path_and_redaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    packed = pickle.dumps(FileLogSink(path.name, redact=redact_keys("probe")))
    monkeypatch.chdir("/")
    with pickle.loads(packed) as sink:
        sink.write_signal("r", "p", SIGNAL)
    assert records_of(path)[0]["payload"]["metadata"]["probe"] == "[REDACTED]"
    assert sink.path == Path(path.name)


def test_lines_of_a_batch_wait_and_are_written_together(sink: FileLogSink, path: Path) -> None:
    sink.begin_batch()
    for _ in range(3):
        sink.write_signal("r", "p", SIGNAL)
    assert not path.exists()
    sink.flush()
    assert len(records_of(path)) == 3
    sink.write_signal("r", "p", SIGNAL)
    assert len(records_of(path)) == 4


def test_a_batch_is_one_write_of_whole_lines_to_a_file_opened_for_appending(
    sink: FileLogSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write = os.write

    def note(descriptor: int, content: Any) -> int:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        written.append(bytes(content))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", note)
    for _ in range(2):
        sink.begin_batch()
        for _ in range(16):
            sink.write_signal("r", "p", SIGNAL)
        sink.flush()
    assert [lines.count(b"\n") for lines in written] == [16, 16]
    assert all(lines.endswith(b"\n") for lines in written)


def test_a_batch_that_grows_large_is_written_before_its_end(sink: FileLogSink, path: Path) -> None:
    sink.begin_batch()
    for _ in range(5_000):
        sink.write_signal("r", "p", SIGNAL)
    assert 0 < len(records_of(path)) < 5_000
    sink.flush()
    assert len(records_of(path)) == 5_000


def test_a_batch_holds_back_its_own_thread_only(sink: FileLogSink, path: Path) -> None:
    sink.begin_batch()
    sink.write_signal("held", "p", SIGNAL)
    thread = threading.Thread(target=sink.write_signal, args=("direct", "p", SIGNAL))
    thread.start()
    thread.join(30)
    assert [record["request_id"] for record in records_of(path)] == ["direct"]
    sink.close()
    assert [record["request_id"] for record in records_of(path)] == ["direct", "held"]


def open_files() -> list[str]:
    targets = []
    for number in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return targets


def test_closing_twice_is_fine_and_a_later_line_opens_the_file_again(sink: FileLogSink, path: Path) -> None:
    sink.write_signal("r", "p", SIGNAL)
    sink.close()
    sink.close()
    sink.write_signal("r", "p", SIGNAL)
    assert len(records_of(path)) == 2


def test_no_descriptor_stays_open_after_close(path: Path) -> None:
    with FileLogSink(path) as sink:
        sink.write_signal("r", "p", SIGNAL)
        assert any(str(path) == target for target in open_files())
    assert not any(str(path) == target for target in open_files())


def test_threads_write_whole_lines(sink: FileLogSink, path: Path) -> None:
    def write(name: str) -> None:
        for index in range(500):
            sink.write_signal_record(SignalRecord(name, "p", SIGNAL, sequence=index))

    threads = [threading.Thread(target=write, args=(f"thread-{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    records = records_of(path)
    for index in range(4):
        assert [r["sequence"] for r in records if r["request_id"] == f"thread-{index}"] == list(range(500))
