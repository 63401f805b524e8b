"""Rows go in and come out whole and in order; what may not be written is refused by name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_jobs import MANIFEST, make_draft

from undercurrent.runtime import (
    ARCHIVE_SCHEMA_VERSION,
    BASE_GENERATION_FILE,
    MANIFEST_SCHEMA_VERSION,
    ArchiveAccessError,
    ArchiveCorruptError,
    ArchiveNotFoundError,
    ArchiveStateError,
    CoalitionRecordDraft,
    ManifestVersionError,
    PackedMask,
    ProbeValue,
    RunArchive,
    check_manifest_schema_version,
    pack_mask,
    read_manifest_payload,
    unpack_mask,
)
from undercurrent.runtime.archive_rows import decode_row, encode_columns, encode_values

FINITE = st.floats(allow_nan=False, allow_infinity=False)


class Manifest:
    """A manifest that says itself what is written."""

    def to_dict(self) -> dict[str, object]:
        return {**MANIFEST, "schema_version": 4}


def write(root: Path, count: int) -> None:
    with RunArchive.open(root, MANIFEST) as archive:
        for number in range(count):
            archive.append(make_draft(number))
        archive.mark_complete()


def test_rows_come_back_in_order_with_all_they_held(tmp_path: Path) -> None:
    drafts = [
        make_draft(0, logprobs=(-0.5, -math.inf, -0.0)),
        make_draft(1, cache_hit=True, elapsed_ms=0.0, generation_text=""),
        make_draft(2, values={"danger": ProbeValue(0.5, (0.25, 0.75)), "none": ProbeValue(-1.0)}),
        make_draft(3, generation_text="ünïcode \x00 🌊\n", logprobs=()),
    ]
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        assert [archive.append(draft) for draft in drafts] == [1, 2, 3, 4]
        archive.mark_complete()
    loaded = RunArchive.load(tmp_path)
    for number, (record, draft) in enumerate(zip(loaded.history_lazy(), drafts, strict=True), 1):
        assert record.record_id == number
        for name in CoalitionRecordDraft.__struct_fields__:
            assert getattr(record, name) == getattr(draft, name)
    loaded.close()


@given(
    text=st.text(),
    logprobs=st.none() | st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
    values=st.none()
    | st.dictionaries(st.text(), st.builds(ProbeValue, FINITE, st.lists(FINITE, max_size=2).map(tuple))),
    mask=st.lists(st.booleans(), max_size=70).map(pack_mask),
)
def test_a_row_is_decoded_to_what_was_encoded(
    text: str, logprobs: tuple[float, ...] | None, values: dict[str, ProbeValue] | None, mask: PackedMask
) -> None:
    draft = make_draft(0, generation_text=text, logprobs=logprobs, values=values, mask=mask)
    record = decode_row((1, *encode_columns(draft)), None if values is None else encode_values(values))
    assert (record.generation_text, record.logprobs, record.values, record.mask) == (text, logprobs, values, mask)


@given(st.lists(st.booleans(), max_size=70))
def test_a_mask_is_unpacked_to_what_was_packed(present: list[bool]) -> None:
    mask = pack_mask(present)
    assert unpack_mask(mask) == tuple(present)
    assert len(mask.words) == (len(present) + 7) // 8


@pytest.mark.parametrize("mask", [PackedMask(b"", 1), PackedMask(b"\x01\x00", 8), PackedMask(b"\x02", 1)])
def test_a_mask_of_the_wrong_length_is_refused(mask: PackedMask) -> None:
    with pytest.raises(ValueError, match=f"a mask of {mask.n_bits} players was expected"):
        unpack_mask(mask)


def test_history_is_read_lazily(tmp_path: Path) -> None:
    write(tmp_path, 100)
    with RunArchive.load(tmp_path) as loaded:
        rows = loaded.history_lazy()
        assert [next(rows).record_id for _ in range(50)] == list(range(1, 51))
        assert next(loaded.history_lazy()).record_id == 1
        assert next(rows).record_id == 51


def test_the_folder_holds_what_the_page_says(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, Manifest()) as archive:
        archive.write_base_generation("Grüße")
        archive.append(make_draft(0))
        archive.mark_complete()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["archive.sqlite", "manifest.json", BASE_GENERATION_FILE]
    )
    assert (tmp_path / BASE_GENERATION_FILE).read_text() == "Grüße"
    text = (tmp_path / "manifest.json").read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    connection = sqlite3.connect(tmp_path / "archive.sqlite")
    assert connection.execute("PRAGMA user_version").fetchone() == (ARCHIVE_SCHEMA_VERSION,) == (4,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert connection.execute("SELECT count(*), count(logprobs) FROM coalition_records").fetchone() == (1, 0)
    connection.close()
    assert MANIFEST_SCHEMA_VERSION == 4


def test_a_database_being_written_is_in_wal_mode(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.append(make_draft(0))
        archive.flush()
        assert (tmp_path / "archive.sqlite-wal").stat().st_size > 0


def test_base_generation_and_manifest_are_read_back_and_replaced(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        assert archive.read_base_generation() is None
        archive.write_base_generation("first\r\n")
        assert archive.read_base_generation() == "first\r\n"
        archive.write_manifest({**MANIFEST, "finished": True})
        assert archive.read_manifest() == {**MANIFEST, "finished": True, "schema_version": 4}
    assert RunArchive.load(tmp_path).read_base_generation() == "first\r\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_archive_is_complete_when_it_was_said_and_not_before(tmp_path: Path) -> None:
    archive = RunArchive.open(tmp_path, MANIFEST)
    archive.append(make_draft(0))
    assert not archive.is_complete
    archive.mark_complete()
    assert archive.is_complete
    archive.mark_complete()
    archive.close()
    archive.close()
    assert RunArchive.load(tmp_path).is_complete


def test_a_block_that_raises_keeps_its_rows_and_is_not_complete(tmp_path: Path) -> None:
    def run() -> None:
        with RunArchive.open(tmp_path, MANIFEST) as archive:
            archive.append(make_draft(0))
            raise KeyError("the model is gone")

    with pytest.raises(KeyError):
        run()
    loaded = RunArchive.load(tmp_path)
    assert (loaded.is_complete, loaded.row_count) == (False, 1)
    loaded.close()


WRITES: list[Callable[[RunArchive], object]] = [
    lambda archive: archive.append(make_draft(1)),
    lambda archive: asyncio.run(archive.aappend(make_draft(1))),
    lambda archive: archive.write_manifest(MANIFEST),
    lambda archive: archive.write_base_generation("x"),
]


@pytest.mark.parametrize("change", WRITES)
def test_a_complete_archive_takes_nothing_more(tmp_path: Path, change: Callable[[RunArchive], object]) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        archive.append(make_draft(0))
        archive.mark_complete()
        with pytest.raises(ArchiveStateError, match="is complete and takes nothing more"):
            change(archive)
        assert archive.row_count == 1


@pytest.mark.parametrize("change", [*WRITES, lambda archive: archive.mark_complete()])
def test_a_loaded_archive_takes_nothing(tmp_path: Path, change: Callable[[RunArchive], object]) -> None:
    RunArchive.open(tmp_path, MANIFEST).close()
    with RunArchive.load(tmp_path) as loaded, pytest.raises(ArchiveStateError, match="was loaded for reading"):
        change(loaded)


def test_a_closed_archive_takes_nothing(tmp_path: Path) -> None:
    archive = RunArchive.open(tmp_path, MANIFEST)
    archive.close()
    with pytest.raises(ArchiveStateError, match="the archive is closed"):
        archive.append(make_draft(0))


@pytest.mark.parametrize("missing", ["manifest.json", "archive.sqlite"])
def test_a_folder_without_one_of_the_two_files_holds_no_archive(tmp_path: Path, missing: str) -> None:
    write(tmp_path, 1)
    (tmp_path / missing).unlink()
    with pytest.raises(ArchiveNotFoundError, match=missing):
        RunArchive.load(tmp_path)
    assert issubclass(ArchiveNotFoundError, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        RunArchive.load(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b'{"schema_version": 4, "run_', b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_no_json_object_is_corrupt(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, 1)
    (tmp_path / "manifest.json").write_bytes(content)
    for read in (RunArchive.load, read_manifest_payload):
        with pytest.raises(ArchiveCorruptError, match="must hold a JSON object"):
            read(tmp_path)
    assert issubclass(ArchiveCorruptError, ValueError)


@pytest.mark.parametrize("version", [3, 5, "4", 4.0, True, None])
def test_another_schema_is_refused(tmp_path: Path, version: object) -> None:
    write(tmp_path, 1)
    (tmp_path / "manifest.json").write_text(json.dumps({"schema_version": version}))
    with pytest.raises(ManifestVersionError, match="`schema_version` must be 4"):
        RunArchive.load(tmp_path)
    with pytest.raises(ValueError, match="got None"):
        check_manifest_schema_version({})
    check_manifest_schema_version({"schema_version": 4})


def test_a_database_of_another_schema_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 1)
    connection = sqlite3.connect(tmp_path / "archive.sqlite")
    connection.execute("PRAGMA user_version = 5")
    connection.close()
    with pytest.raises(ManifestVersionError, match="must be of schema 4, got 5"):
        RunArchive.load(tmp_path)
    (tmp_path / "archive.sqlite").write_bytes(b"")
    with pytest.raises(ManifestVersionError, match="got 0"):
        RunArchive.load(tmp_path)


def test_a_database_that_cannot_be_read_is_corrupt(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / "archive.sqlite").write_bytes(b"no database " * 1000)
    with pytest.raises(ArchiveCorruptError, match="cannot be read as an SQLite database"):
        RunArchive.load(tmp_path)
    (tmp_path / "archive.sqlite").unlink()
    foreign = sqlite3.connect(tmp_path / "archive.sqlite")
    foreign.executescript("CREATE TABLE notes (text); PRAGMA user_version = 4;")
    foreign.close()
    with pytest.raises(ArchiveCorruptError, match="lacks the table 'archive_meta'"):
        RunArchive.load(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archives") / "whole"
    write(root, 30)
    return root


@settings(max_examples=100, deadline=None)
@given(position=st.integers(0, 2**40), flipped=st.integers(1, 255))
def test_a_damaged_database_is_read_or_refused_and_never_crashes(whole: Path, position: int, flipped: int) -> None:
    root = whole.parent / "damaged"
    root.mkdir(exist_ok=True)
    shutil.copyfile(whole / "manifest.json", root / "manifest.json")
    content = bytearray((whole / "archive.sqlite").read_bytes())
    content[position % len(content)] ^= flipped
    (root / "archive.sqlite").write_bytes(content)
    with contextlib.suppress(ArchiveCorruptError, ManifestVersionError), RunArchive.load(root) as loaded:
        assert len(list(loaded.history_lazy())) <= 30


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (make_draft(0, logprobs=(-1.0, math.nan)), "got NaN at index 1"),
        (make_draft(0, values={"danger": ProbeValue(math.nan)}), "a finite number was expected as value 'danger'"),
        (make_draft(0, values={"danger": ProbeValue(0.0, (math.inf,))}), "as value 'danger'"),
    ],
    ids=str,
)
def test_a_number_that_is_none_is_refused_before_it_is_a_row(
    tmp_path: Path, draft: CoalitionRecordDraft, message: str
) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        with pytest.raises(ValueError, match=message):
            archive.append(draft)
        assert archive.append(make_draft(0)) == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"generation_text": None}, TypeError, "`generation_text` must be str, got NoneType"),
        ({"generation_text": "half \ud83c"}, ValueError, "got half a surrogate pair at index 5"),
        ({"coalition_key": 7}, TypeError, "`coalition_key` must be str, got int"),
        ({"elapsed_ms": None}, TypeError, "`elapsed_ms` must be float"),
        ({"mask": PackedMask(None, 3)}, TypeError, "`mask.words` must be bytes"),
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_is_refused_before_it_is_a_row(
    tmp_path: Path, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        with pytest.raises(error, match=message):
            archive.append(make_draft(0, **changes))
        archive.append(make_draft(0, elapsed_ms=np.float32(2)))
        archive.append(make_draft(0, elapsed_ms=3))
        assert [row.elapsed_ms for row in archive.history_lazy()] == [2.0, 3.0]


def test_a_base_generation_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    with RunArchive.open(tmp_path, MANIFEST) as archive:
        with pytest.raises(ValueError, match="got half a surrogate pair at index 0"):
            archive.write_base_generation("\ud83c")
        (tmp_path / BASE_GENERATION_FILE).write_bytes(b"\xff")
        with pytest.raises(ArchiveCorruptError, match="must hold UTF-8"):
            archive.read_base_generation()


def test_any_folder_will_do_and_a_change_of_directory_does_not_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with RunArchive.open("run ?mode=memory#1 100%/é", MANIFEST) as archive:
        monkeypatch.chdir("/")
        archive.append(make_draft(0))
        archive.mark_complete()
    assert RunArchive.load(tmp_path / "run ?mode=memory#1 100%" / "é").row_count == 1


@pytest.mark.parametrize("manifest", [{"run": object()}, {"run": math.nan}, {1: {2: object()}}])
def test_a_manifest_that_is_no_json_is_refused(tmp_path: Path, manifest: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="a manifest must be a JSON object"):
        RunArchive.open(tmp_path / "new", manifest)
    assert not (tmp_path / "new").exists()


def test_a_manifest_of_another_schema_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ManifestVersionError):
        RunArchive.open(tmp_path, {"schema_version": 5})


def test_a_file_in_the_folder_s_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArchiveAccessError, match=r"file/run cannot be made"):
        RunArchive.open(tmp_path / "file" / "run", MANIFEST)


def test_unknown_ways_to_open_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'resume'"):
        RunArchive.open(tmp_path, MANIFEST, on_exists="resum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`flush_every` must be >= 1"):
        RunArchive.open(tmp_path, MANIFEST, flush_every=0)
    assert list(tmp_path.iterdir()) == []
