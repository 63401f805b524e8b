"""One process at a time may write an archive, for as long as it lives, forked children not counted."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_jobs import MANIFEST, fingerprint, make_draft, write_archive

from undercurrent.runtime import (
    ArchiveLockedError,
    ArchiveStateError,
    RunArchive,
)
from undercurrent.runtime.lease import WriterLease, is_held

HOLDER = """
import os, sys, time
from pathlib import Path
from undercurrent.runtime.lease import WriterLease
lease = WriterLease.take(Path({root!r}))
{more}
os.write(1, b'%d\\n' % os.getpid())
sys.stdin.readline()
"""


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lease."""
    yield from start_holder(tmp_path, "")


def start_holder(root: Path, more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-c", HOLDER.format(root=str(root), more=more)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(process.pid)
        yield process
        process.kill()


@pytest.mark.parametrize("on_exists", ["error", "overwrite", "resume"])
def test_a_living_writer_is_always_refused_with_pid_and_host(
    tmp_path: Path, hold: subprocess.Popen[str], on_exists: str
) -> None:
    before = fingerprint(tmp_path)
    with pytest.raises(ArchiveLockedError, match=rf"written by process {hold.pid} on") as caught:
        RunArchive.open(tmp_path, MANIFEST, on_exists=on_exists)  # type: ignore[arg-type]
    assert (caught.value.pid, caught.value.host) == (hold.pid, socket.gethostname())
    assert isinstance(caught.value, BlockingIOError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.pid, copy.host) == (str(caught.value), caught.value.pid, caught.value.host)
    assert fingerprint(tmp_path) == before


def test_a_second_writer_of_one_process_is_refused(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.append(make_draft(0))
        with pytest.raises(ArchiveLockedError) as caught:
            RunArchive.open(tmp_path, MANIFEST, on_exists="overwrite")
        assert caught.value.pid == os.getpid()
        archive.append(make_draft(1))
    assert RunArchive.load(tmp_path).row_count == 2


def test_the_lease_of_a_killed_writer_is_free(tmp_path: Path, hold: subprocess.Popen[str]) -> None:
    assert is_held(tmp_path)
    hold.kill()
    hold.wait()
    assert (tmp_path / "writer.lock").exists()
    assert not is_held(tmp_path)
    write_archive(tmp_path, 1, complete=True)
    assert not (tmp_path / "writer.lock").exists()


def test_a_forked_child_does_not_keep_the_lease_of_its_dead_parent(tmp_path: Path) -> None:
    more = "if os.fork() == 0: os.write(1, b'child\\n'); os.close(1); time.sleep(60)"
    command = [sys.executable, "-P", "-c", HOLDER.format(root=str(tmp_path), more=more)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as p:
        assert p.stdout is not None
        assert {p.stdout.readline().strip() for _ in range(2)} == {"child", str(p.pid)}
        try:
            assert is_held(tmp_path)
            os.kill(p.pid, signal.SIGKILL)
            p.wait()
            assert not is_held(tmp_path)
            write_archive(tmp_path, 1, complete=False)
        finally:
            os.killpg(p.pid, signal.SIGKILL)


def test_a_child_started_by_exec_does_not_keep_the_lease(tmp_path: Path) -> None:
    lease = WriterLease.take(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as child:
        lease.release()
        lease.release()
        assert not is_held(tmp_path)
        WriterLease.take(tmp_path).release()
        child.kill()


def test_a_fork_may_not_use_the_archive_and_does_it_no_harm(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.append(make_draft(0))
        archive.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for use in (lambda: archive.append(make_draft(1)), archive.flush, archive.mark_complete):
                    with pytest.raises(ArchiveStateError, match="of which this one is a fork"):
                        use()
                archive.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert is_held(tmp_path)
        archive.append(make_draft(2))
        archive.mark_complete()
    assert RunArchive.load(tmp_path).row_count == 2


def test_an_archive_that_nobody_closed_and_nobody_has_gives_its_lease_back(tmp_path: Path) -> None:
    archive = RunArchive.open(tmp_path, MANIFEST)
    archive.append(make_draft(0))
    archive.flush()
    del archive
    gc.collect()
    assert not is_held(tmp_path)
    with RunArchive.open(tmp_path, MANIFEST, on_exists="resume") as archive:
        assert archive.row_count == 1


def test_reading_the_folder_s_files_does_not_end_the_lease(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST):
        fingerprint(tmp_path)
        assert is_held(tmp_path)


def test_many_threads_that_race_for_a_lease_get_one(tmp_path: Path) -> None:
    won: list[WriterLease] = []
    start = threading.Barrier(8)

    def race() -> None:
        start.wait()
        with contextlib.suppress(ArchiveLockedError):
            won.append(WriterLease.take(tmp_path))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].release()


def test_writers_that_hand_over_never_meet(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(30):
            try:
                lease = WriterLease.take(tmp_path)
            except ArchiveLockedError:
                continue
            inside.append(1)
            most.append(len(inside))
            inside.pop()
            lease.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


def test_a_writer_of_another_package_holds_no_lease_and_is_refused_all_the_same(tmp_path: Path) -> None:
    write_archive(tmp_path, 3, complete=False)
    foreign = sqlite3.connect(tmp_path / "archive.sqlite", isolation_level=None)
    foreign.execute("PRAGMA journal_mode = WAL")
    foreign.execute("DELETE FROM coalition_values")
    with pytest.raises(ArchiveLockedError, match="without a lease"):
        RunArchive.open(tmp_path, MANIFEST, on_exists="overwrite")
    foreign.close()
    assert RunArchive.load(tmp_path).row_count == 3
