"""The archive's database: its schema, and how it is opened for reading without a byte being written."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from undercurrent.runtime.archive_files import DATABASE_FILE
from undercurrent.runtime.archive_rows import CoalitionRecord, decode_row
from undercurrent.runtime.errors import (
    ArchiveAccessError,
    ArchiveCorruptError,
    ArchiveNotFoundError,
    ManifestVersionError,
)
from undercurrent.runtime.lease import is_held

__all__ = ["ARCHIVE_SCHEMA_VERSION", "ReadOnlyDatabase", "create_schema"]

ARCHIVE_SCHEMA_VERSION = 4
"""SQLite's `user_version`."""
BUSY_S = 5.0
"""How long a statement waits for another connection's lock."""

UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What the sqlite3 module raises on a damaged file: names that are no UTF-8 come as the second."""

# Bytes 18 and 19 of the file: 1 is a rollback journal, 2 is WAL. See https://www.sqlite.org/fileformat.html, 1.3.
_JOURNAL_BYTE = 18
_WAL = 2
_COPY_TRIES = 5
_TAILS = ("", "-wal", "-journal")

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS coalition_records (
    record_id INTEGER PRIMARY KEY AUTOINCREMENT,
    snapshot_id TEXT NOT NULL,
    coalition_key TEXT NOT NULL,
    mask_words BLOB NOT NULL,
    mask_n_bits INTEGER NOT NULL,
    absence_policy TEXT NOT NULL,
    model_id TEXT NOT NULL,
    elapsed_ms REAL NOT NULL,
    cache_hit INTEGER NOT NULL,
    generation_text TEXT NOT NULL,
    logprobs TEXT
);
CREATE TABLE IF NOT EXISTS archive_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS coalition_values (record_id INTEGER PRIMARY KEY, payload TEXT NOT NULL);
PRAGMA user_version = {ARCHIVE_SCHEMA_VERSION};
COMMIT;
"""
_COLUMNS = (
    "record_id, snapshot_id, coalition_key, mask_words, mask_n_bits, absence_policy, model_id, elapsed_ms, cache_hit, "
    "generation_text, logprobs"
)
_ROWS = f"SELECT {_COLUMNS} FROM coalition_records WHERE record_id > ? ORDER BY record_id LIMIT ?"
_ROWS_WITH_VALUES = (
    f"SELECT {_COLUMNS}, payload FROM coalition_records LEFT JOIN coalition_values USING (record_id) "
    "WHERE record_id > ? ORDER BY record_id LIMIT ?"
)

_KEYS = "SELECT coalition_key, record_id FROM coalition_records WHERE ? < 0 OR record_id <= ? ORDER BY record_id"


def create_schema(connection: sqlite3.Connection) -> None:
    """Makes the tables where there are none, in one transaction."""
    connection.executescript(_SCHEMA)


def check_schema(connection: sqlite3.Connection, database: Path) -> None:
    """Refuses a database that is no archive of ours.

    Raises:
        ManifestVersionError: `user_version` is another.
        ArchiveCorruptError: it cannot be read, or lacks a table.
    """
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except UNREADABLE as error:
        raise ArchiveCorruptError(f"{database} cannot be read as an SQLite database: {error}") from error
    if version != ARCHIVE_SCHEMA_VERSION:
        raise ManifestVersionError(
            f"{database} must be of schema {ARCHIVE_SCHEMA_VERSION}, got {version}; read it with the package that "
            "wrote it, or run again into another folder"
        )
    if missing := {"coalition_records", "archive_meta"} - tables:
        raise ArchiveCorruptError(f"{database} lacks the table {min(missing)!r}; it is no run archive")


class ReadOnlyDatabase:
    """A database that is read and not written: no file of its folder is made, changed or removed.

    A database that was left in WAL mode cannot be read in place without a side file being written. Without a living
    writer it is read as immutable where its journal is empty, else from a private copy in the temporary folder. Beside
    a living writer it is read in place, as SQLite means it; the side files are the writer's.
    """

    def __init__(self, root: Path, *, has_writer: bool | None = None) -> None:
        """Opens the database of a folder; `has_writer` says whether its lease is held, None looks.

        Raises:
            ArchiveNotFoundError: there is none.
            ArchiveAccessError: it may not be read.
            ArchiveCorruptError: it is no database of an archive.
            ManifestVersionError: it is of another schema.
        """
        self.path = root / DATABASE_FILE
        self._connection = self._open(is_held(root) if has_writer is None else has_writer)
        try:
            check_schema(self._connection, self.path)
            self._has_values = self._ask("SELECT 1 FROM sqlite_master WHERE name = 'coalition_values'") is not None
        except BaseException:
            self._connection.close()
            raise

    @property
    def is_complete(self) -> bool:
        """The run has finished."""
        row = self._ask("SELECT value FROM archive_meta WHERE key = 'complete'")
        return row is not None and row[0] == "1"

    @property
    def row_count(self) -> int:
        """Number of rows."""
        row = self._ask("SELECT count(*) FROM coalition_records")
        return 0 if row is None else int(str(row[0]))

    def rows(self, *, after: int = 0, limit: int = -1) -> Iterator[CoalitionRecord]:
        """Streams the rows with a larger `record_id` than `after`, in its order, decoded one by one.

        Raises:
            ArchiveCorruptError: a page or a row cannot be read.
        """
        has_values = self._has_values and self._ask("SELECT 1 FROM coalition_values LIMIT 1") is not None
        try:
            if has_values:
                for *row, values in self._connection.execute(_ROWS_WITH_VALUES, (after, limit)):
                    yield decode_row(tuple(row), values)
            else:
                yield from map(decode_row, self._connection.execute(_ROWS, (after, limit)))
        except UNREADABLE as error:
            raise ArchiveCorruptError(f"{self.path} cannot be read: {error}") from error

    def keyed_ids(self, *, until: int | None = None) -> Iterator[tuple[str, int]]:
        """Yields the key and `record_id` of each row, in order, up to and with `until`.

        Raises:
            ArchiveCorruptError: a page cannot be read.
        """
        limit = -1 if until is None else until
        try:
            yield from self._connection.execute(_KEYS, (limit, limit))
        except UNREADABLE as error:
            raise ArchiveCorruptError(f"{self.path} cannot be read: {error}") from error

    def close(self) -> None:
        """Closes the connection; idempotent."""
        self._connection.close()

    def _ask(self, query: str) -> tuple[object, ...] | None:
        try:
            row: tuple[object, ...] | None = self._connection.execute(query).fetchone()
        except UNREADABLE as error:
            raise ArchiveCorruptError(f"{self.path} cannot be read: {error}") from error
        return row

    def _open(self, has_writer: bool) -> sqlite3.Connection:
        try:
            is_wal = read_header(self.path)[_JOURNAL_BYTE : _JOURNAL_BYTE + 1] == bytes([_WAL])
            has_journal = any(_size(self.path, tail) > 0 for tail in ("-wal", "-journal"))
        except FileNotFoundError as error:
            raise ArchiveNotFoundError(f"{self.path} does not exist; a run archive was expected") from error
        except OSError as error:
            raise ArchiveAccessError(f"{self.path} cannot be read: {error.strerror}") from error
        if has_writer or not (is_wal or has_journal):
            return connect(self.path, "mode=ro")
        if not has_journal:
            return connect(self.path, "mode=ro&immutable=1")
        return self._open_copy()

    def _open_copy(self) -> sqlite3.Connection:
        """Opens a copy of database and journal whose names are gone again, so that it ends with the process."""
        with tempfile.TemporaryDirectory(prefix="undercurrent-archive-") as folder:
            copy = Path(folder) / self.path.name
            for _ in range(_COPY_TRIES):
                before = _traces(self.path)
                self._copy_to(copy)
                # Somebody without a lease may have written meanwhile.
                if _traces(self.path) == before:
                    break
            connection = connect(copy, "mode=rw")
            try:
                # Opens the journal and its index, or rolls it back: no name is needed after that.
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            except UNREADABLE as error:
                connection.close()
                raise ArchiveCorruptError(f"{self.path} cannot be read as an SQLite database: {error}") from error
        return connection

    def _copy_to(self, copy: Path) -> None:
        try:
            for tail in _TAILS:
                Path(f"{copy}{tail}").unlink(missing_ok=True)
                if _size(self.path, tail) > 0:
                    with suppress(FileNotFoundError):
                        shutil.copyfile(f"{self.path}{tail}", f"{copy}{tail}")
        except OSError as error:
            raise ArchiveAccessError(f"{self.path} cannot be copied to be read: {error}") from error


def connect(path: Path, query: str) -> sqlite3.Connection:
    """Opens a database by URI, in autocommit mode, for any one thread at a time.

    Raises:
        ArchiveCorruptError: SQLite cannot open it.
    """
    try:
        return sqlite3.connect(
            f"file:{quote(str(path))}?{query}", uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_S
        )
    except sqlite3.Error as error:
        raise ArchiveCorruptError(f"{path} cannot be opened as an SQLite database: {error}") from error


def read_header(path: Path) -> bytes:
    """The first 100 bytes of a database."""
    with path.open("rb") as file:
        return file.read(100)


def _size(path: Path, tail: str) -> int:
    try:
        return Path(f"{path}{tail}").stat().st_size
    except FileNotFoundError:
        return 0


def _traces(path: Path) -> list[tuple[int, int] | None]:
    return [_trace(Path(f"{path}{tail}")) for tail in _TAILS]


def _trace(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns
