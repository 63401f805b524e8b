"""An archive is followed while it grows, and its rows are handed to sinks as they are committed."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from runtime_jobs import MANIFEST, fingerprint, make_draft

from undercurrent.runtime import (
    ArchiveFollower,
    ArchiveNotFoundError,
    CoalitionRecord,
    FollowState,
    ProbeValue,
    RowSink,
    RunArchive,
)
from undercurrent.runtime.row_relay import BACKLOG_ROWS_MAX, RowRelay


class ListSink:
    def __init__(self) -> None:
        self.rows: list[CoalitionRecord] = []
        self.threads: set[str] = set()

    def write_row(self, record: CoalitionRecord) -> None:
        self.rows.append(record)
        self.threads.add(threading.current_thread().name)


def ids(records: list[CoalitionRecord]) -> list[int]:
    return [record.record_id for record in records]


def test_a_follower_sees_rows_when_they_are_committed_and_then_the_end(tmp_path: Path) -> None:
    follower = ArchiveFollower(tmp_path)
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        assert follower.read_new() == []
        archive.append(make_draft(0))
        archive.append(make_draft(1))
        archive.flush()
        assert ids(follower.read_new()) == [1, 2]
        assert (follower.read_new(), follower.state) == ([], FollowState.GROWING)
        archive.append(make_draft(2))
        archive.mark_complete()
        assert (ids(follower.read_new()), follower.state) == ([3], FollowState.COMPLETE)
    assert (follower.read_new(), follower.state) == ([], FollowState.COMPLETE)


def test_a_follower_is_not_in_the_way_of_the_writer_s_end(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.append(make_draft(0))
        archive.flush()
        ArchiveFollower(tmp_path).read_new()
        archive.mark_complete()
        assert not (tmp_path / "archive.sqlite-wal").exists()


def test_a_follower_knows_an_abandoned_run_and_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.append(make_draft(0))
    follower = ArchiveFollower(tmp_path)
    before = fingerprint(tmp_path)
    assert (ids(list(follower.rows())), follower.state) == ([1], FollowState.ABANDONED)
    assert fingerprint(tmp_path) == before
    with RunArchive.open(tmp_path, MANIFEST, on_exists="resume") as archive:
        archive.append(make_draft(1))
        archive.mark_complete()
    assert (ids(list(follower.rows())), follower.state) == ([2], FollowState.COMPLETE)


def test_a_follower_starts_behind_the_row_it_is_told(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        for number in range(1500):
            archive.append(make_draft(number % 256))
        archive.mark_complete()
    assert ids(list(ArchiveFollower(tmp_path, after=1497).rows())) == [1498, 1499, 1500]
    assert len(list(ArchiveFollower(tmp_path).rows())) == 1500


def test_following_nothing_is_an_error_and_a_timeout_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ArchiveNotFoundError):
        ArchiveFollower(tmp_path).read_new()
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.append(make_draft(0))
        archive.flush()
        follower = ArchiveFollower(tmp_path)
        assert ids(list(follower.rows(poll_s=0.001, timeout_s=0.01))) == [1]
        assert follower.state is FollowState.GROWING


def test_a_writer_that_is_still_making_its_database_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunArchive.open(tmp_path, MANIFEST):
        (tmp_path / "archive.sqlite").rename(tmp_path / "not yet")
        follower = ArchiveFollower(tmp_path)
        assert (follower.read_new(), follower.state) == ([], FollowState.GROWING)
        monkeypatch.setattr("undercurrent.runtime.follow.FAILING_S", -1.0)
        with pytest.raises(ArchiveNotFoundError):
            follower.read_new()
        (tmp_path / "not yet").rename(tmp_path / "archive.sqlite")
        assert follower.read_new() == []


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from runtime_jobs import MANIFEST, make_draft
from undercurrent.runtime import RunArchive
with RunArchive.open({root!r}, MANIFEST) as archive:
    print("open", flush=True)
    for number in range(3000):
        archive.append(make_draft(number % 256))
        if number % 100 == 0:
            archive.flush()
    archive.mark_complete()
"""


@pytest.mark.parametrize("is_async", [False, True])
def test_another_process_s_archive_is_followed_to_its_end_without_a_gap(tmp_path: Path, is_async: bool) -> None:
    program = WRITER.format(tests=str(Path(__file__).parent.parent), root=str(tmp_path))
    with subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        follower = ArchiveFollower(tmp_path)

        async def follow() -> list[int]:
            return [record.record_id async for record in follower.arows(poll_s=0.001)]

        seen = asyncio.run(follow()) if is_async else ids(list(follower.rows(poll_s=0.001)))
        assert process.wait(30) == 0
    assert seen == list(range(1, 3001))
    assert follower.state is FollowState.COMPLETE


def test_a_sink_gets_each_row_once_in_order_after_its_commit(tmp_path: Path) -> None:
    sink = ListSink()
    assert isinstance(sink, RowSink)
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.append(make_draft(0))
        archive.flush()
        archive.add_row_sink(sink)
        archive.add_row_sink(sink)
        for number in range(1, 700):
            values = {"danger": ProbeValue(0.5)} if number == 1 else None
            archive.append(make_draft(number % 256, values=values, logprobs=(-0.5,)))
        archive.mark_complete()
        assert ids(sink.rows) == list(range(2, 701))
        assert sink.rows == list(archive.history_lazy())[1:]
    assert all(name.startswith("undercurrent-rows") for name in sink.threads)


def test_a_sink_that_raises_harms_neither_the_archive_nor_its_neighbour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def write_row(self, record: CoalitionRecord) -> None:
            raise ConnectionError("nobody listens")

    sink = ListSink()
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.add_row_sink(Broken())
        archive.add_row_sink(sink)
        with caplog.at_level(logging.ERROR, logger="undercurrent.runtime"):
            for number in range(3):
                archive.append(make_draft(number))
            archive.mark_complete()
        assert archive.sink_failures == 3
    assert ids(sink.rows) == [1, 2, 3]
    assert "failed on row 1" in caplog.text


def test_a_sink_that_is_removed_gets_nothing_more(tmp_path: Path) -> None:
    sink = ListSink()
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.add_row_sink(sink)
        archive.append(make_draft(0))
        archive.flush()
        while not sink.rows:
            archive.flush()
        archive.remove_row_sink(sink)
        archive.remove_row_sink(sink)
        archive.append(make_draft(1))
    assert ids(sink.rows) == [1]


class Stuck:
    """A sink that takes nothing until it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.count = 0

    def write_row(self, record: CoalitionRecord) -> None:
        self.entered.set()
        assert self.gate.wait(30)
        self.count += 1


def test_a_slow_sink_holds_up_no_commit_until_its_backlog_is_full(tmp_path: Path) -> None:
    sink = Stuck()
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.add_row_sink(sink)
        for number in range(1000):
            archive.append(make_draft(number % 256))
        archive.flush()
        assert archive.row_count == 1000
        assert sink.count == 0
        sink.gate.set()
    assert sink.count == 1000
    assert BACKLOG_ROWS_MAX >= 1000


def test_a_sink_that_takes_nothing_misses_rows_in_the_end_and_the_archive_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("undercurrent.runtime.row_relay.BACKLOG_ROWS_MAX", 1)
    monkeypatch.setattr("undercurrent.runtime.row_relay.ROOM_S", 0.01)
    sink = Stuck()
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.add_row_sink(sink)
        for number in range(4):
            archive.append(make_draft(number))
            archive.flush()
            assert sink.entered.wait(30)
        assert archive.row_count == 4
        sink.gate.set()
    assert "sinks miss rows" in caplog.text
    assert sink.count + archive.sink_failures == 4


def test_rows_a_sink_does_not_take_in_time_are_logged_and_stay_in_the_archive(caplog: pytest.LogCaptureFixture) -> None:
    relay, sink = RowRelay(), Stuck()
    relay.add(sink)
    draft = make_draft(0)
    row = (1, *(getattr(draft, n) for n in ("snapshot_id", "coalition_key")), b"", 0, "delete", "m", 1.0, 0, "t", None)
    relay.hand([row, row], {})
    assert sink.entered.wait(30)
    with caplog.at_level(logging.WARNING, logger="undercurrent.runtime"):
        relay.close(0.01)
    assert "did not take the last 2 rows within 0.01 s" in caplog.text
    sink.gate.set()
