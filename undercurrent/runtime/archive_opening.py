"""What stands in a folder when a writer comes, and what becomes of it."""

from __future__ import annotations

import enum
import json
import logging
import sqlite3
from pathlib import Path

from undercurrent.runtime.archive_files import DATABASE_FILE, MANIFEST_FILE, move_aside, named_access, write_whole
from undercurrent.runtime.database import (
    BUSY_S,
    UNREADABLE,
    ReadOnlyDatabase,
    connect,
    create_schema,
    read_header,
)
from undercurrent.runtime.errors import (
    ArchiveCorruptError,
    ArchiveExistsError,
    ArchiveLockedError,
    ArchiveMismatchError,
    ArchiveNotFoundError,
    ArchiveWriteError,
    ManifestVersionError,
)
from undercurrent.runtime.manifest import check_manifest_schema_version, first_difference, read_manifest_payload

__all__ = ["connect_writer", "leave_wal", "prepare", "record_completion"]

_logger = logging.getLogger("undercurrent.runtime")


class _Found(enum.Enum):
    NOTHING = "nothing"
    EMPTY = "a database without tables, as a writer leaves it that was killed while it made them"
    UNFINISHED = "an unfinished archive"
    FINISHED = "a finished archive"
    UNREADABLE = "a database that is no archive of ours"


def prepare(root: Path, manifest: bytes, on_exists: str) -> bool:
    """Clears the folder for a new run, or checks that the old one can go on; True where that one is finished.

    The caller holds the lease.

    Raises:
        ArchiveExistsError, ArchiveMismatchError, ArchiveCorruptError, ManifestVersionError, ArchiveLockedError: see
            `RunArchive.open`.
    """
    found = _look(root)
    if on_exists == "resume" and (found is not _Found.NOTHING or (root / MANIFEST_FILE).exists()):
        _check_resumable(root, manifest, found)
        return found is _Found.FINISHED
    if on_exists == "error" and found in (_Found.FINISHED, _Found.UNREADABLE):
        raise ArchiveExistsError(
            f"{root} holds {found.value}; on_exists='resume' goes on with it, on_exists='overwrite' moves it to a "
            "folder beside the new one"
        )
    if found is _Found.UNFINISHED:
        _close_journal(root / DATABASE_FILE)
    if replaced := move_aside(root):
        _logger.info("archive: moved %s to %s", found.value, replaced)
    # The manifest comes first: a database without one belongs to nobody, a manifest without one is a run without rows.
    write_whole(root / MANIFEST_FILE, manifest)
    return False


def connect_writer(root: Path) -> sqlite3.Connection:
    """Opens the database for the writer, in WAL mode: readers and the writer do not wait for each other.

    A commit reaches the system's cache, so it survives the death of the process; a power cut may take the last commits
    and leaves the rest whole (`synchronous=NORMAL`).

    Raises:
        ArchiveWriteError: the disk is full, or fails.
        ArchiveCorruptError: it is no database.
    """
    path = root / DATABASE_FILE
    connection = connect(path, "mode=rwc")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        create_schema(connection)
    except sqlite3.Error as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError):
            raise ArchiveWriteError(f"{path} cannot be written: {error}") from error
        raise ArchiveCorruptError(f"{path} cannot be read as an SQLite database: {error}") from error
    return connection


def record_completion(connection: sqlite3.Connection) -> None:
    """Says that the run has finished, then leaves WAL mode.

    Raises:
        ArchiveWriteError: it could not be said.
    """
    try:
        connection.execute("INSERT OR REPLACE INTO archive_meta VALUES ('complete', '1')")
    except sqlite3.Error as error:
        raise ArchiveWriteError(f"the end of the run could not be written: {error}; make room, then resume") from error
    leave_wal(connection)


def leave_wal(connection: sqlite3.Connection) -> None:
    """Folds the journal into the database and leaves WAL mode, so that reading needs no side file.

    Where a reader is in the way for longer than SQLite's patience, the archive stays in WAL mode: readers then take a
    private copy.
    """
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        _logger.info("archive: stays in WAL mode: %s", error)


def _look(root: Path) -> _Found:
    path = root / DATABASE_FILE
    if not path.exists():
        return _Found.NOTHING
    with named_access(path, "read"):
        if not read_header(path):
            return _Found.EMPTY
    try:
        # Read as if nobody wrote: the lease is ours, and what is refused must stay as it was.
        database = ReadOnlyDatabase(root, has_writer=False)
    except (ArchiveCorruptError, ManifestVersionError, ArchiveNotFoundError):
        return _Found.EMPTY if _has_no_tables(path) else _Found.UNREADABLE
    try:
        return _Found.FINISHED if database.is_complete else _Found.UNFINISHED
    finally:
        database.close()


def _has_no_tables(path: Path) -> bool:
    connection = connect(path, "mode=ro&immutable=1")
    try:
        return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    except UNREADABLE:
        return False
    finally:
        connection.close()


def _check_resumable(root: Path, manifest: bytes, found: _Found) -> None:
    try:
        stored = read_manifest_payload(root / MANIFEST_FILE)
    except ArchiveNotFoundError as error:
        raise ArchiveCorruptError(
            f"{root} holds {found.value} and no {MANIFEST_FILE}, so nobody can tell whether it is of this run; "
            "on_exists='overwrite' moves it aside"
        ) from error
    check_manifest_schema_version(stored)
    if difference := first_difference(stored, json.loads(manifest)):
        raise ArchiveMismatchError(
            f"{root} is of another run: {difference}; choose another folder, or on_exists='overwrite'"
        )
    if found is _Found.UNREADABLE:
        ReadOnlyDatabase(root, has_writer=False).close()  # raises what is wrong with it


def _close_journal(path: Path) -> None:
    """Folds what a dead writer left into the one file that is then moved.

    Raises:
        ArchiveLockedError: a process that knows no lease, such as a writer of another package, has it open.
    """
    connection = connect(path, "mode=rw")
    try:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 100)}")
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise ArchiveLockedError(
                f"{path} is open in a process without a lease, a writer of another package or a reader; end it first"
            ) from error
        _logger.info("archive: the journal of %s stays beside it: %s", path, error)
    finally:
        connection.close()
