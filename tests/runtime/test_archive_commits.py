"""Commits are grouped, off the event loop, and a row is told of when its commit returned, or not at all."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from runtime_jobs import MANIFEST, CountingModel, fingerprint, make_draft, make_jobs, text_of

from undercurrent.runtime import (
    ArchiveStateError,
    ArchiveWriteError,
    HotResultStore,
    InferenceScheduler,
    ProbeValue,
    RunArchive,
)
from undercurrent.runtime.archive_opening import connect_writer, leave_wal
from undercurrent.runtime.row_writer import GROUP_ROWS_MAX, WAITING_ROWS_MAX, RowWriter


class GatedDatabase:
    """A real database whose commits wait until they are let, and can be told to fail."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.threads: set[str] = set()
        self.failure: sqlite3.Error | None = None
        self.groups: list[int] = []
        root.mkdir(exist_ok=True)

    def connect(self) -> sqlite3.Connection:
        real = connect_writer(self.root)
        database = self

        class Connection:
            in_transaction = False

            def execute(self, query: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
                if query.startswith("INSERT"):
                    database.threads.add(threading.current_thread().name)
                    database.entered.set()
                    assert database.gate.wait(30)
                    if database.failure is not None:
                        raise database.failure
                return real.execute(query, parameters)

            def close(self) -> None:
                real.close()

        return Connection()  # type: ignore[return-value]

    def committed(self, rows: Sequence[object], values: Mapping[int, str]) -> None:
        self.groups.append(len(rows))

    def writer(self, rows_max: int | None = None) -> RowWriter:
        return RowWriter(self.connect, rows_max=rows_max, on_committed=self.committed)


@pytest.fixture
def database(tmp_path: Path) -> GatedDatabase:
    return GatedDatabase(tmp_path / "run")


def count_rows(root: Path) -> int:
    connection = sqlite3.connect(root / "archive.sqlite")
    (count,) = connection.execute("SELECT count(*) FROM coalition_records").fetchone()
    connection.close()
    return int(count)


def test_append_does_not_wait_for_the_commit_and_flush_does(database: GatedDatabase) -> None:
    writer = database.writer()
    assert [writer.append(make_draft(number)) for number in range(3)] == [1, 2, 3]
    assert database.entered.wait(30)
    assert writer.committed_id == 0
    flushing = threading.Thread(target=writer.flush)
    flushing.start()
    assert flushing.is_alive()
    database.gate.set()
    flushing.join()
    assert writer.committed_id == 3
    assert all(name.startswith("undercurrent-archive") for name in database.threads)
    writer.close(leave_wal)
    assert count_rows(database.root) == 3


def test_rows_that_come_during_a_commit_go_into_the_next_one(database: GatedDatabase) -> None:
    writer = database.writer()
    writer.append(make_draft(0))
    assert database.entered.wait(30)
    for number in range(1, 701):
        writer.append(make_draft(number % 256))
    database.gate.set()
    writer.close(leave_wal)
    assert GROUP_ROWS_MAX == 500
    assert database.groups == [1, 500, 200]


def test_a_number_caps_the_rows_of_a_group(database: GatedDatabase) -> None:
    writer = database.writer(rows_max=7)
    for number in range(20):
        writer.append(make_draft(number))
    database.gate.set()
    writer.close(leave_wal)
    assert max(database.groups) == 7
    assert sum(database.groups) == 20


def test_with_flush_every_1_append_returns_when_its_row_is_committed(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST, flush_every=1) as archive:
        for number in range(3):
            archive.append(make_draft(number))
            assert archive.row_count == number + 1


def test_append_waits_for_room_and_loses_nothing(database: GatedDatabase) -> None:
    writer = database.writer()
    done = threading.Event()

    def flood() -> None:
        for number in range(WAITING_ROWS_MAX + 1000):
            writer.append(make_draft(number % 256))
        done.set()

    flooding = threading.Thread(target=flood)
    flooding.start()
    assert database.entered.wait(30)
    assert not done.is_set()
    database.gate.set()
    flooding.join()
    writer.close(leave_wal)
    assert count_rows(database.root) == WAITING_ROWS_MAX + 1000
    assert max(database.groups) <= GROUP_ROWS_MAX


def test_rows_of_many_threads_all_arrive_under_ids_of_their_own(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        ids: list[int] = []

        def work() -> None:
            ids.extend([archive.append(make_draft(number)) for number in range(200)])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ids) == list(range(1, 801))
        assert [record.record_id for record in archive.history_lazy()] == list(range(1, 801))


def test_the_loop_runs_on_while_a_commit_takes_its_time(database: GatedDatabase) -> None:
    async def go() -> int:
        writer = database.writer()
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        writer.append(make_draft(0), waiter)
        turns = 0
        while not database.entered.is_set() or turns < 50:
            turns += 1
            await asyncio.sleep(0)
        assert not waiter.done()
        database.gate.set()
        record_id = await waiter
        await asyncio.to_thread(writer.close, leave_wal)
        return record_id

    assert asyncio.run(go()) == 1


def test_aappend_returns_when_the_row_is_committed(tmp_path: Path) -> None:
    async def go(archive: RunArchive) -> list[int]:
        ids = await asyncio.gather(*(archive.aappend(make_draft(number)) for number in range(30)))
        assert archive.row_count == 30
        archive.append(make_draft(30))
        await archive.aflush()
        assert archive.row_count == 31
        return ids

    with RunArchive.open(tmp_path, MANIFEST) as archive:
        assert asyncio.run(go(archive)) == list(range(1, 31))


def test_a_task_that_stops_waiting_leaves_its_row_in(tmp_path: Path) -> None:
    async def go(archive: RunArchive) -> None:
        task = asyncio.create_task(archive.aappend(make_draft(0)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await archive.aappend(make_draft(1))

    with RunArchive.open(tmp_path, MANIFEST) as archive:
        asyncio.run(go(archive))
        assert archive.row_count == 2


def test_a_failed_commit_is_told_to_all_who_wait_and_nothing_is_taken_after(database: GatedDatabase) -> None:
    async def go() -> None:
        writer = database.writer()
        loop = asyncio.get_running_loop()
        waiters = [loop.create_future() for _ in range(3)]
        for number, waiter in enumerate(waiters):
            writer.append(make_draft(number), waiter)
        database.failure = sqlite3.OperationalError("database or disk is full")
        database.gate.set()
        assert await asyncio.gather(*waiters) == [0, 0, 0]
        for use in (lambda: writer.append(make_draft(9)), writer.flush):
            with pytest.raises(ArchiveWriteError, match="rows 1 and later could not be committed: database or disk is"):
                use()
        writer.close(leave_wal)

    asyncio.run(go())
    assert count_rows(database.root) == 0
    assert issubclass(ArchiveWriteError, OSError)


def test_a_row_with_values_is_committed_with_them_or_not_at_all(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        for number in range(5):
            archive.append(make_draft(number, values={"danger": ProbeValue(float(number))} if number % 2 else None))
        rows = list(archive.history_lazy())
    assert [row.values and row.values["danger"].value for row in rows] == [None, 1.0, None, 3.0, None]


# A child that may write files of 300 kB and no larger: what a full disk looks like to SQLite.
FULL = """
import asyncio, os, resource, signal, sys
sys.path.insert(0, {tests!r})
from runtime_jobs import *
from undercurrent.runtime import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = HotResultStore(maxsize=4)
done = 0
class Progress:
    def on_coalitions_planned(self, total): pass
    def on_coalition_finished(self, count, total):
        global done
        done = count
async def generate(snapshot): return text_of(snapshot) * 40
archive = RunArchive.open({root!r}, MANIFEST, on_exists="resume")
if {limited}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
runner = InferenceScheduler(4, None, store, None, archive, progress=Progress())
jobs = [make_job(number, players=10) for number in range(1000)]
try:
    asyncio.run(runner.run(jobs, generate))
    archive.mark_complete()
    print("complete", done)
except ArchiveWriteError as error:
    print("full", done, error)
archive.close()
"""


def test_a_full_disk_fails_the_run_clearly_keeps_what_was_reported_and_can_be_resumed(tmp_path: Path) -> None:
    def run(limited: bool) -> list[str]:
        program = FULL.format(tests=str(Path(__file__).parent.parent), root=str(tmp_path), limited=limited)
        done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=50)
        assert done.returncode == 0, done.stderr
        return done.stdout.split(maxsplit=2)

    outcome, reported, error = run(limited=True)
    assert outcome == "full"
    assert "every row before is safe" in error
    with RunArchive.load(tmp_path) as loaded:
        kept = list(loaded.history_lazy())
        assert not loaded.is_complete
    assert len(kept) >= int(reported) > 100
    assert run(limited=False) == ["complete", "1000"]
    with RunArchive.load(tmp_path) as loaded:
        assert loaded.is_complete
        assert [record.generation_text for record in loaded.history_lazy()][: len(kept)] == [
            record.generation_text for record in kept
        ]
        assert loaded.row_count == 1000


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_full_file_system_loses_no_row_that_was_committed(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=30).returncode != 0:
        pytest.skip("this root may not mount")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", tmp_path], check=True, timeout=30)
    try:
        archive = RunArchive.open(tmp_path / "run", MANIFEST)
        committed = 0

        def fill() -> None:
            nonlocal committed
            for number in range(5000):
                archive.append(make_draft(number % 256, generation_text="x" * 400))
                archive.flush()
                committed += 1

        with pytest.raises(ArchiveWriteError, match="disk is full"):
            fill()
        archive.close()
        loaded = RunArchive.load(tmp_path / "run")
        assert loaded.row_count >= committed > 10
        loaded.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True, timeout=30)


def test_at_exit_without_close_the_rows_that_wait_are_committed(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from runtime_jobs import *\nfrom undercurrent.runtime import RunArchive\n"
        f"archive = RunArchive.open({str(tmp_path)!r}, MANIFEST)\n"
        "for number in range(200): archive.append(make_draft(number))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert RunArchive.load(tmp_path).row_count == 200


def test_a_run_asks_the_model_only_for_what_is_missing(tmp_path: Path) -> None:
    jobs = make_jobs(20)
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        runner = InferenceScheduler(2, None, HotResultStore(), archive=archive)
        asyncio.run(runner.run(jobs[:12], CountingModel()))
    model = CountingModel()
    with RunArchive.open(tmp_path, MANIFEST, on_exists="resume") as archive:
        metrics = asyncio.run(InferenceScheduler(2, None, HotResultStore(), archive=archive).run(jobs, model))
        archive.mark_complete()
    assert (metrics.requested, metrics.executed, metrics.cache_hits) == (20, 8, 12)
    assert model.asked == [job.snapshot for job in jobs[12:]]
    before = fingerprint(tmp_path)
    model = CountingModel()
    with RunArchive.open(tmp_path, MANIFEST, on_exists="resume") as archive:
        store = HotResultStore(maxsize=None)
        metrics = asyncio.run(InferenceScheduler(2, None, store, archive=archive).run(jobs, model))
        assert (metrics.executed, metrics.cache_hits, model.asked) == (0, 20, [])
        assert all(store.get(job.coalition_key) == text_of(job.snapshot) for job in jobs)
        extra = InferenceScheduler(2, None, store, archive=archive).run(make_jobs(21), model)
        with pytest.raises(ArchiveStateError, match="is not in the archive, which takes no rows"):
            asyncio.run(extra)
        assert model.asked == []
    assert fingerprint(tmp_path) == before
    assert RunArchive.load(tmp_path).row_count == 20
