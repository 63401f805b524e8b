"""What stands in a folder when a writer comes is refused, resumed or moved aside; nothing is deleted unasked."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from runtime_jobs import MANIFEST, fingerprint, make_draft, write_archive

from undercurrent.runtime import (
    ArchiveAccessError,
    ArchiveCorruptError,
    ArchiveExistsError,
    ArchiveMismatchError,
    ManifestVersionError,
    RunArchive,
)
from undercurrent.runtime.manifest import first_difference


def replaced(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.name.startswith("replaced-"))


def test_error_is_the_default_and_refuses_a_finished_archive(tmp_path: Path) -> None:
    write_archive(tmp_path, 2, complete=True)
    before = fingerprint(tmp_path)
    with pytest.raises(ArchiveExistsError, match="holds a finished archive; on_exists='resume'"):
        RunArchive.open(tmp_path, MANIFEST)
    assert issubclass(ArchiveExistsError, FileExistsError)
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize(("on_exists", "complete"), [("error", False), ("overwrite", False), ("overwrite", True)])
def test_starting_anew_moves_the_old_archive_whole_and_leaves_foreign_files(
    tmp_path: Path, on_exists: str, complete: bool
) -> None:
    write_archive(tmp_path, 3, complete=complete)
    (tmp_path / "base_generation.txt").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    with RunArchive.open(tmp_path, {"run_id": "run-2"}, on_exists=on_exists) as archive:  # type: ignore[arg-type]
        assert archive.row_count == 0
        assert archive.read_base_generation() is None
        archive.append(make_draft(0))
    (folder,) = replaced(tmp_path)
    assert re.fullmatch(r"replaced-\d{8}T\d{6}Z(-\d+)?", folder.name)
    with RunArchive.load(folder) as old:
        assert (old.row_count, old.is_complete, old.read_base_generation()) == (3, complete, "old")
        assert old.read_manifest()["run_id"] == "run-1"
    assert RunArchive.load(tmp_path).read_manifest()["run_id"] == "run-2"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_several_replaced_archives_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    for _ in range(4):
        write_archive(tmp_path, 1, complete=False)
    assert len(replaced(tmp_path)) == 3
    assert all(RunArchive.load(folder).row_count == 1 for folder in replaced(tmp_path))


def test_an_unfinished_archive_of_a_killed_writer_is_moved_with_its_journal(tmp_path: Path) -> None:
    kill_a_writer(tmp_path, 5)
    write_archive(tmp_path, 1, complete=True)
    (folder,) = replaced(tmp_path)
    assert RunArchive.load(folder).row_count == 5


def kill_a_writer(root: Path, count: int) -> None:
    program = (
        f"import os, sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from runtime_jobs import *\nfrom undercurrent.runtime import RunArchive\n"
        f"archive = RunArchive.open({str(root)!r}, MANIFEST)\n"
        f"for number in range({count}): archive.append(make_draft(number))\n"
        "archive.flush(); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], timeout=30)
    assert done.returncode == -signal.SIGKILL


def test_resume_goes_on_where_the_manifest_is_equal(tmp_path: Path) -> None:
    kill_a_writer(tmp_path, 5)
    with RunArchive.open(tmp_path, MANIFEST, on_exists="resume") as archive:
        assert archive.row_count == 5
        assert archive.recorded_keys() == {make_draft(number).coalition_key for number in range(5)}
        assert archive.append(make_draft(5)) == 6
        archive.flush()
        assert not archive.has_recorded(make_draft(5).coalition_key)
        archive.mark_complete()
    assert [record.record_id for record in RunArchive.load(tmp_path).history_lazy()] == list(range(1, 7))
    assert replaced(tmp_path) == []


def test_what_is_recorded_is_what_was_there_before_whoever_asks_first(tmp_path: Path) -> None:
    write_archive(tmp_path, 2, complete=False)
    with RunArchive.open(tmp_path, MANIFEST, on_exists="resume") as archive:
        archive.append(make_draft(2))
        archive.flush()
        assert archive.lookup(make_draft(2).coalition_key) is None
        assert archive.lookup(make_draft(1).coalition_key) is not None


def test_resume_of_nothing_starts_a_run(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path / "new", MANIFEST, on_exists="resume") as archive:
        archive.append(make_draft(0))
        archive.mark_complete()
    assert RunArchive.load(tmp_path / "new").is_complete


def test_resume_of_a_finished_archive_reads_it_and_changes_nothing(tmp_path: Path) -> None:
    write_archive(tmp_path, 2, complete=True)
    before = fingerprint(tmp_path)
    with RunArchive.open(tmp_path, MANIFEST, on_exists="resume") as archive:
        assert archive.is_complete
        assert archive.is_read_only
        assert archive.lookup(make_draft(1).coalition_key) is not None
        archive.mark_complete()
    assert fingerprint(tmp_path) == before


def test_resume_of_another_run_names_the_first_difference(tmp_path: Path) -> None:
    write_archive(tmp_path, 2, complete=False)
    before = fingerprint(tmp_path)
    other = {**MANIFEST, "decoding": {"seed": 8, "stop": ["\n"]}, "estimand": "banzhaf"}
    with pytest.raises(ArchiveMismatchError, match=r"\$\.decoding\.seed is 7 in the archive and 8 in this run"):
        RunArchive.open(tmp_path, other, on_exists="resume")
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize(
    ("stored", "given", "difference"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, None),
        ({"a": 1}, {"a": 1.0}, None),
        ({"a": True}, {"a": 1}, "$.a is True in the archive and 1 in this run"),
        ({"a": 1}, {}, "$.a is 1 in the archive and missing in this run"),
        ({}, {"a": None}, "$.a is missing in the archive and None in this run"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "$.a[1] is 2 in the archive and 3 in this run"),
        ({"a": [1]}, {"a": [1, 2]}, "$.a is [1] in the archive and [1, 2] in this run"),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, "$.a is 1 in the archive and 2 in this run"),
    ],
)
def test_the_first_difference_of_two_manifests(stored: object, given: object, difference: str | None) -> None:
    assert first_difference(stored, given) == difference


@pytest.mark.parametrize("left", ["manifest", "empty database", "database without tables"])
def test_resume_goes_on_from_a_writer_that_was_killed_while_it_started(tmp_path: Path, left: str) -> None:
    write_archive(tmp_path, 1, complete=False)
    (tmp_path / "archive.sqlite").unlink()
    if left == "empty database":
        (tmp_path / "archive.sqlite").touch()
    elif left == "database without tables":
        connection = sqlite3.connect(tmp_path / "archive.sqlite")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
    (tmp_path / ".manifest.json.new").write_text("{ half")
    with RunArchive.open(tmp_path, MANIFEST, on_exists="resume") as archive:
        assert archive.append(make_draft(0)) == 1
        archive.mark_complete()
    assert RunArchive.load(tmp_path).row_count == 1


def test_a_half_written_manifest_is_refused_by_resume_and_moved_by_a_new_run(tmp_path: Path) -> None:
    write_archive(tmp_path, 1, complete=False)
    (tmp_path / "manifest.json").write_text('{"schema_version": 4, "run_')
    with pytest.raises(ArchiveCorruptError, match="must hold a JSON object"):
        RunArchive.open(tmp_path, MANIFEST, on_exists="resume")
    write_archive(tmp_path, 1, complete=True)
    (folder,) = replaced(tmp_path)
    assert (folder / "manifest.json").read_text() == '{"schema_version": 4, "run_'


def test_a_database_without_a_manifest_is_nobody_s_to_resume(tmp_path: Path) -> None:
    write_archive(tmp_path, 1, complete=False)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ArchiveCorruptError, match=r"and no manifest\.json"):
        RunArchive.open(tmp_path, MANIFEST, on_exists="resume")


def foreign_database(path: Path, version: int) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(f"CREATE TABLE notes (text); PRAGMA user_version = {version};")
    connection.close()


@pytest.mark.parametrize("kind", ["other schema", "no database"])
def test_a_database_nobody_can_read_is_never_replaced_unasked(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "archive.sqlite"
    if kind == "other schema":
        foreign_database(path, 5)
    else:
        path.write_bytes(b"somebody's bytes" * 100)
    content = path.read_bytes()
    with pytest.raises(ArchiveExistsError, match="a database that is no archive of ours"):
        RunArchive.open(tmp_path, MANIFEST)
    (tmp_path / "manifest.json").write_text(json.dumps({**MANIFEST, "schema_version": 4}))
    with pytest.raises((ManifestVersionError, ArchiveCorruptError)):
        RunArchive.open(tmp_path, MANIFEST, on_exists="resume")
    assert path.read_bytes() == content
    RunArchive.open(tmp_path, MANIFEST, on_exists="overwrite").close()
    (folder,) = replaced(tmp_path)
    assert (folder / "archive.sqlite").read_bytes() == content


def test_a_folder_that_may_not_be_written_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path, 1, complete=True)
    before = fingerprint(tmp_path)

    def refuse(*arguments: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("undercurrent.runtime.lease.os.open", refuse)
    with pytest.raises(ArchiveAccessError, match="cannot be written: Read-only file system"):
        RunArchive.open(tmp_path, MANIFEST, on_exists="overwrite")
    monkeypatch.undo()
    assert fingerprint(tmp_path) == before
