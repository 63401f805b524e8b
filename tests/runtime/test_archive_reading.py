"""Reading an archive writes nothing, on any media, whoever wrote it and however it was left."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_jobs import MANIFEST, fingerprint, make_draft

from undercurrent.runtime import ArchiveAccessError, ArchiveStateError, RunArchive

FIXTURE = Path(__file__).parent / "fixtures" / "mllm-shap-0.7.1"
WRITER = """
import os, sys
sys.path.insert(0, {tests!r})
from runtime_jobs import MANIFEST, make_draft
from undercurrent.runtime import RunArchive
archive = RunArchive.open({root!r}, MANIFEST)
for number in range(40):
    archive.append(make_draft(number))
archive.flush()
print("written", flush=True)
sys.stdin.readline()
os._exit(9)
"""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """An archive that mllm-shap 0.7.1 wrote: `explain` of four words with its mock model, exact Shapley."""
    return Path(shutil.copytree(FIXTURE, tmp_path / "published"))


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    with RunArchive.open(tmp_path / "complete", MANIFEST) as archive:
        for number in range(40):
            archive.append(make_draft(number))
        archive.mark_complete()
    return tmp_path / "complete"


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A process that has committed 40 rows, and dies without a word when its input ends."""
    root = tmp_path / "written"
    program = WRITER.format(tests=str(Path(__file__).parent.parent), root=str(root))
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        yield root, process
        process.kill()


@pytest.fixture
def abandoned(writer: tuple[Path, subprocess.Popen[str]]) -> Path:
    root, process = writer
    process.kill()
    process.wait()
    assert (root / "archive.sqlite-wal").stat().st_size > 0
    return root


def read_all(root: Path) -> list[int]:
    with RunArchive.load(root) as archive:
        return [record.record_id for record in archive.history_lazy()]


def test_loading_a_complete_archive_leaves_the_folder_byte_identical(complete: Path) -> None:
    before = fingerprint(complete)
    archive = RunArchive.load(complete)
    rows = archive.history_lazy()
    next(rows)
    assert fingerprint(complete) == before
    assert len(list(rows)) == 39
    archive.close()
    assert fingerprint(complete) == before


def test_loading_an_abandoned_archive_leaves_the_folder_byte_identical(abandoned: Path) -> None:
    before = fingerprint(abandoned)
    assert read_all(abandoned) == list(range(1, 41))
    assert not RunArchive.load(abandoned).is_complete
    assert fingerprint(abandoned) == before


def test_the_private_copy_of_an_abandoned_archive_has_no_name(
    abandoned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    with RunArchive.load(abandoned) as archive:
        assert list(place.iterdir()) == []
        assert [record.record_id for record in archive.history_lazy()] == list(range(1, 41))
        assert archive.lookup(make_draft(3).coalition_key) is not None
        assert archive.row_count == 40


def test_loading_beside_a_living_writer_shows_what_is_committed(writer: tuple[Path, subprocess.Popen[str]]) -> None:
    root, process = writer
    before = fingerprint(root)
    assert read_all(root) == list(range(1, 41))
    after = fingerprint(root)
    assert process.poll() is None
    # The index of the journal is shared memory of the writer; nothing else may change.
    assert {name for name in before | after if before.get(name) != after.get(name)} <= {"archive.sqlite-shm"}


def test_an_archive_of_mllm_shap_is_loaded_and_left_byte_identical(published: Path) -> None:
    before = fingerprint(published)
    with RunArchive.load(published) as archive:
        records = list(archive.history_lazy())
        manifest = archive.read_manifest()
        base = archive.read_base_generation()
        assert archive.is_complete
    assert fingerprint(published) == before
    assert manifest["mllm_shap_version"] == "0.7.1"
    assert manifest["schema_version"] == 4
    players = manifest["player_ids"]
    assert isinstance(players, list)
    # The grand coalition was generated first and is a hit of the store; 16 coalitions of 4 players in all.
    assert sorted(record.mask.words[0] for record in records) == list(range(16))
    assert {record.mask.n_bits for record in records} == {len(players)} == {4}
    assert {record.generation_text for record in records if record.mask.words == b"\x0f"} == {base}
    assert {record.snapshot_id for record in records} == {"fixture"}
    assert sum(record.cache_hit for record in records) == 1


def test_an_archive_of_mllm_shap_can_be_resumed_by_its_manifest(published: Path) -> None:
    manifest = RunArchive.load(published).read_manifest()
    with RunArchive.open(published, manifest, on_exists="resume") as archive:
        assert archive.is_complete
        assert len(archive.recorded_keys()) == 16


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("state", ["complete", "abandoned", "published"])
def test_a_folder_without_write_permission_is_read(state: str, request: pytest.FixtureRequest) -> None:
    check_read_only(request.getfixturevalue(state))


NOBODY = 65534


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("state", ["complete", "abandoned", "published"])
def test_another_user_reads_a_folder_without_write_permission(state: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(state)
    place = Path("/tmp") / f"undercurrent-read-{os.getpid()}"
    shutil.copytree(root, place)
    try:
        for path in [place, *place.iterdir()]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = fingerprint(place)
        # A fork: nobody may not reach root's interpreter.
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                code = 0 if len(read_all(place)) >= 16 else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert fingerprint(place) == before
    finally:
        shutil.rmtree(place)


def may_mount() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=30).returncode == 0


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
@pytest.mark.parametrize("state", ["complete", "abandoned", "published"])
def test_read_only_media_are_read(state: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if not may_mount():
        pytest.skip("this root may not mount")
    root: Path = request.getfixturevalue(state)
    media = tmp_path / "media"
    media.mkdir()
    subprocess.run(["mount", "--bind", root, media], check=True, timeout=30)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", media], check=True, timeout=30)
        assert len(read_all(media)) >= 16
        with pytest.raises(ArchiveAccessError, match="cannot be written: Read-only file system"):
            RunArchive.open(media, MANIFEST, on_exists="overwrite")
    finally:
        subprocess.run(["umount", media], check=True, timeout=30)


def check_read_only(root: Path) -> None:
    before = fingerprint(root)
    for path in [*root.iterdir(), root]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert len(read_all(root)) >= 16
        assert fingerprint(root) == before
    finally:
        root.chmod(0o755)


@pytest.mark.parametrize("read", ["manifest.read_bytes", "database.read_header"])
def test_a_file_that_may_not_be_read_is_no_corrupt_archive(
    complete: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    if read == "database.read_header":
        monkeypatch.setattr("undercurrent.runtime.database.read_header", refuse)
    else:
        monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ArchiveAccessError, match="cannot be read: Permission denied"):
        RunArchive.load(complete)


def test_a_recorded_key_is_looked_up(complete: Path) -> None:
    with RunArchive.load(complete) as archive:
        draft = make_draft(7)
        stored = archive.lookup(draft.coalition_key)
        assert stored is not None
        assert stored.text == draft.generation_text
        assert archive.lookup("nobody's") is None
        assert archive.has_recorded(draft.coalition_key)
        assert archive.row_count == len(archive.recorded_keys()) == 40
    with pytest.raises(ArchiveStateError, match="is closed"):
        archive.lookup(draft.coalition_key)


def test_a_journal_that_was_left_hot_is_rolled_back_in_a_copy(tmp_path: Path) -> None:
    root, torn = tmp_path / "whole", tmp_path / "torn"
    with RunArchive.open(root, MANIFEST) as archive:
        for number in range(2000):
            archive.append(make_draft(number % 256, generation_text="x" * 300))
    connection = sqlite3.connect(root / "archive.sqlite", isolation_level=None)
    connection.execute("PRAGMA cache_size = 5")
    connection.execute("BEGIN IMMEDIATE")
    # More than the cache holds: pages reach the file before the transaction ends.
    connection.execute("UPDATE coalition_records SET generation_text = 'torn'")
    shutil.copytree(root, torn)
    connection.execute("ROLLBACK")
    connection.close()
    assert (torn / "archive.sqlite").read_bytes() != (root / "archive.sqlite").read_bytes()
    before = fingerprint(torn)
    with RunArchive.load(torn) as loaded:
        assert {record.generation_text for record in loaded.history_lazy()} == {"x" * 300}
    assert fingerprint(torn) == before
