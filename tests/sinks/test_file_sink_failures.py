"""`FileLogSink` when writers are many, are killed, fork, or the file moves or fills up."""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sink_lines import SIGNAL, records_of

from undercurrent.core import ProbeSignal
from undercurrent.sinks import FileLogSink, FileSinkError, SignalRecord


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "observations.ndjson"


@pytest.fixture
def sink(path: Path) -> Iterator[FileLogSink]:
    with FileLogSink(path) as sink:
        yield sink


WRITE_BATCHES = """
import sys
from undercurrent.core import ProbeSignal
from undercurrent.sinks import FileLogSink, SignalRecord
path, name, is_batched = sys.argv[1], sys.argv[2], sys.argv[3] == "batched"
sink = FileLogSink(path)
for batch in range(20):
    if is_batched:
        sink.begin_batch()
    for index in range(50):
        sink.write_signal_record(SignalRecord(name, "p" * 300, ProbeSignal(), sequence=batch * 50 + index))
    sink.flush()
"""


def test_processes_append_whole_lines_to_one_file(path: Path) -> None:
    names = {"first": "batched", "second": "batched", "third": "single"}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE_BATCHES, str(path), name, manner])
        for name, manner in names.items()
    ]
    assert [writer.wait(50) for writer in writers] == [0, 0, 0]
    records = records_of(path)
    for name in names:
        assert [r["sequence"] for r in records if r["request_id"] == name] == list(range(1000))


def test_a_renamed_file_is_followed(sink: FileLogSink, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.write_signal("before", "p", SIGNAL)
    rotated = path.with_suffix(".1")
    path.rename(rotated)
    sink.write_signal("soon", "p", SIGNAL)
    now = time.monotonic()
    monkeypatch.setattr("undercurrent.sinks.line_file.time.monotonic", lambda: now + 1.5)
    sink.write_signal("after", "p", SIGNAL)
    assert [record["request_id"] for record in records_of(rotated)] == ["before", "soon"]
    assert [record["request_id"] for record in records_of(path)] == ["after"]


def test_a_file_that_cannot_be_opened_again_is_used_on(
    sink: FileLogSink, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink.write_signal("before", "p", SIGNAL)
    rotated = path.with_suffix(".1")
    path.rename(rotated)
    path.mkdir()
    now = time.monotonic()
    monkeypatch.setattr("undercurrent.sinks.line_file.time.monotonic", lambda: now + 1.5)
    sink.write_signal("after", "p", SIGNAL)
    assert [record["request_id"] for record in records_of(rotated)] == ["before", "after"]
    assert "cannot be opened again" in caplog.text


def test_half_a_line_of_a_killed_writer_does_not_spoil_the_next(sink: FileLogSink, path: Path) -> None:
    path.write_bytes(b'{"kind":"signal"}\n{"kind":"sig')
    sink.write_signal("r", "p", SIGNAL)
    with path.open("ab") as other:
        other.write(b'{"half')
    sink.write_signal("r", "p", SIGNAL)
    lines = path.read_bytes().splitlines()
    assert [line[:9] for line in lines] == [b'{"kind":"', b'{"kind":"', b'{"kind":"', b'{"half', b'{"kind":"']
    assert json.loads(lines[2])["request_id"] == json.loads(lines[4])["request_id"] == "r"
    assert sink.torn_tail_count == 2


def test_lines_of_others_need_no_repair(sink: FileLogSink, path: Path) -> None:
    sink.write_signal("r", "p", SIGNAL)
    with path.open("ab") as other:
        other.write(b"{}\n")
    sink.write_signal("r", "p", SIGNAL)
    assert len(records_of(path)) == 3
    assert sink.torn_tail_count == 0


WRITE_AND_BE_KILLED = """
import os, sys
from undercurrent.core import ProbeSignal
from undercurrent.sinks import FileLogSink
sink = FileLogSink(sys.argv[1])
for index in range(1_000_000):
    sink.write_signal(f"req-{index}", "p", ProbeSignal(metadata={"text": "x" * 200}))
    os.write(1, index.to_bytes(4, "little"))
"""


def test_lines_that_were_accepted_survive_kill_9(path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITE_AND_BE_KILLED, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    accepted = 0
    while accepted < 200:
        accepted = int.from_bytes(writer.stdout.read(4), "little")
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read()
    writer.stdout.close()
    writer.wait(30)
    if len(rest) >= 4:
        accepted = int.from_bytes(rest[-4 - len(rest) % 4 :][:4], "little")
    with FileLogSink(path) as sink:
        sink.write_signal("next", "p", SIGNAL)
    written = [line for line in path.read_bytes().splitlines() if line.endswith(b"}}")]
    ids = [json.loads(line)["request_id"] for line in written]
    assert ids[: accepted + 1] == [f"req-{index}" for index in range(accepted + 1)]
    assert ids[-1] == "next"


def write_signals(sink: FileLogSink, count: int) -> None:
    for index in range(count):
        sink.write_signal_record(SignalRecord("r", "p", SIGNAL, sequence=index))


Test = Callable[[FileLogSink, Path], None]


def with_small_files(test: Test) -> Test:
    """Runs the test in a child whose files may have 10,000 bytes: what a full disk answers is an error of `write` too.

    Not in this process, where the test run's own output would meet the limit.
    """

    @functools.wraps(test)
    def run(sink: FileLogSink, path: Path) -> None:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            said = b""
            try:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                allow_files_of(10_000)
                test(sink, path)
            except BaseException:
                said = traceback.format_exc().encode()
            finally:
                os.write(write_end, said[-4000:])
                os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        assert not said, said.decode()

    return run


def allow_files_of(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@with_small_files
def test_a_line_that_does_not_fit_is_an_error_and_its_half_is_ended(sink: FileLogSink, path: Path) -> None:
    with pytest.raises(FileSinkError, match="not written") as caught:
        write_signals(sink, 100)
    assert caught.value.errno == errno.EFBIG
    rotated = path.with_suffix(".1")
    path.rename(rotated)
    sink.close()
    sink.write_signal("after", "p", SIGNAL)
    assert [record["request_id"] for record in records_of(path)] == ["after"]


@with_small_files
def test_lines_of_a_batch_wait_for_room(sink: FileLogSink, path: Path) -> None:
    sink.begin_batch()
    write_signals(sink, 100)
    with pytest.raises(FileSinkError):
        sink.flush()
    allow_files_of(10_000_000)
    sink.flush()
    whole = []
    for line in path.read_bytes().splitlines():
        try:
            whole.append(json.loads(line)["sequence"])
        except ValueError:
            assert sink.torn_tail_count == 1
    assert whole == list(range(100))


@with_small_files
def test_a_batch_that_waits_too_long_gives_lines_up_and_counts_them(sink: FileLogSink, path: Path) -> None:
    path.write_bytes(b"x" * 9_999 + b"\n")
    sink.begin_batch()
    large = ProbeSignal(metadata={"text": "x" * 200_000})
    refused = 0
    for _ in range(40):
        try:
            sink.write_signal("r", "p", large)
        except FileSinkError:
            refused += 1
    assert refused > 0
    assert sink.lost_count > 0
    allow_files_of(100_000_000)
    sink.flush()
    assert len(path.read_bytes().splitlines()) == 1 + 40 - sink.lost_count


def test_a_child_of_fork_writes_on_and_repeats_nothing(sink: FileLogSink, path: Path) -> None:
    sink.begin_batch()
    sink.write_signal("parent", "p", SIGNAL)
    with sink._lock:
        child = os.fork()
        if child == 0:
            try:
                sink.write_signal("child", "p", SIGNAL)
                sink.close()
            finally:
                os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    sink.flush()
    assert [record["request_id"] for record in records_of(path)] == ["child", "parent"]


def test_a_device_takes_lines_without_being_asked_for_its_end() -> None:
    with FileLogSink("/dev/null") as sink:
        sink.write_signal("r", "p", SIGNAL)
    assert sink.torn_tail_count == 0
