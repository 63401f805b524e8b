"""A run's record on disk: every generation, what it was asked with, and whether the run is complete."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

from undercurrent.errors import did_you_mean, one_of
from undercurrent.runtime.archive_files import (
    BASE_GENERATION_FILE,
    DATABASE_FILE,
    MANIFEST_FILE,
    named_access,
    write_whole,
)
from undercurrent.runtime.archive_opening import connect_writer, leave_wal, prepare, record_completion
from undercurrent.runtime.archive_rows import CoalitionRecord, CoalitionRecordDraft, encode_text
from undercurrent.runtime.database import ARCHIVE_SCHEMA_VERSION, ReadOnlyDatabase
from undercurrent.runtime.errors import (
    ArchiveAccessError,
    ArchiveCorruptError,
    ArchiveNotFoundError,
    ArchiveStateError,
    RuntimeValueError,
)
from undercurrent.runtime.lease import WriterLease
from undercurrent.runtime.manifest import (
    MANIFEST_SCHEMA_VERSION,
    check_manifest_schema_version,
    read_manifest_payload,
    render_manifest,
)
from undercurrent.runtime.protocols import ManifestPayloadSource, RowSink
from undercurrent.runtime.row_relay import RowRelay
from undercurrent.runtime.row_writer import NOT_COMMITTED, RowWriter
from undercurrent.runtime.store import StoredGeneration

__all__ = [
    "ARCHIVE_SCHEMA_VERSION",
    "BASE_GENERATION_FILE",
    "MANIFEST_SCHEMA_VERSION",
    "CoalitionRecord",
    "CoalitionRecordDraft",
    "ManifestPayloadSource",
    "RunArchive",
    "check_manifest_schema_version",
    "read_manifest_payload",
]

OnExists: TypeAlias = Literal["error", "overwrite", "resume"]
_ON_EXISTS = ("error", "overwrite", "resume")
SINKS_S = 30.0
"""How long `close` and `mark_complete` wait for sinks."""


class RunArchive:
    """One run's archive: `open` writes one, `load` reads one.

    `append`, `flush` and `lookup` may be called from any thread; the other methods from one at a time. Who opens it
    closes it; it is a context manager, and a block that raises keeps the rows it appended.
    """

    def __init__(self, root: Path, *, lease: WriterLease | None, flush_every: int | None = None) -> None:
        """Use `open` or `load`."""
        self.root = root
        self._lease = lease
        self._relay = RowRelay()
        self._database: ReadOnlyDatabase | None = None
        self._reading_lock = threading.Lock()
        self._recorded: dict[str, int] | None = None  # by key, the first row; read when first asked for
        self._recorded_until: int | None = None  # later rows are of this run
        self._is_complete = False
        self._is_closed = False
        self._is_each_awaited = flush_every == 1
        self._writer: RowWriter | None = None
        if lease is None:
            self._database = ReadOnlyDatabase(root)
            self._is_complete = self._database.is_complete
        else:
            self._writer = RowWriter(
                lambda: connect_writer(root), rows_max=flush_every, on_committed=self._relay.hand, lease=lease
            )
            self._recorded_until = self._writer.committed_id

    @classmethod
    def open(
        cls,
        root: Path | str,
        manifest: ManifestPayloadSource | Mapping[str, object],
        flush_every: int | None = None,
        on_exists: OnExists = "error",
    ) -> RunArchive:
        """Opens a folder for writing; it is made where it does not exist.

        Args:
            flush_every: most rows of one commit. None groups up to 500 rows or 5 ms. With 1, `append` returns when its
                row is committed.
            on_exists: `error` refuses a finished archive and starts anew over an unfinished one; `overwrite` starts
                anew; `resume` goes on where the manifest is equal. Starting anew moves what was there to
                `<root>/replaced-<time>/`; files that are no part of an archive are left alone. A finished archive is
                resumed read-only: it has every row already.

        Raises:
            ArchiveLockedError: a living writer has the folder; always refused.
            ArchiveExistsError: a finished archive, or a database nobody can read, under `error`.
            ArchiveMismatchError: `resume` of a run with another manifest; names the first difference.
            ArchiveCorruptError, ManifestVersionError: `resume` of what is not an archive of ours.
            ArchiveAccessError: the folder may not be written.
            ArchiveWriteError: the disk is full, or fails.
        """
        if on_exists not in _ON_EXISTS:
            raise RuntimeValueError(
                f"`on_exists` must be {one_of(_ON_EXISTS)}, got {on_exists!r}{did_you_mean(str(on_exists), _ON_EXISTS)}"
            )
        if flush_every is not None and flush_every < 1:
            raise RuntimeValueError(f"`flush_every` must be >= 1, or None to group by time, got {flush_every!r}")
        content = render_manifest(manifest)
        root = Path(root).absolute()
        with named_access(root, "made"):
            root.mkdir(parents=True, exist_ok=True)
        lease = WriterLease.take(root)
        try:
            if not prepare(root, content, on_exists):
                return cls(root, lease=lease, flush_every=flush_every)
        except BaseException:
            lease.release()
            raise
        lease.release()
        return cls(root, lease=None)

    @classmethod
    def load(cls, root: Path | str) -> RunArchive:
        """Opens an archive for reading. Writes nothing: the folder stays byte-identical and may be on read-only media.

        An unfinished archive can be loaded as well; beside a living writer it shows the rows committed so far.

        Raises:
            ArchiveNotFoundError: `manifest.json` or `archive.sqlite` is missing.
            ArchiveAccessError: one of them may not be read.
            ArchiveCorruptError: the manifest is no JSON object, or the database cannot be read.
            ManifestVersionError: either is of another schema.
        """
        root = Path(root).absolute()
        payload = read_manifest_payload(root / MANIFEST_FILE)
        if not (root / DATABASE_FILE).exists():
            raise ArchiveNotFoundError(f"{root / DATABASE_FILE} does not exist; a run archive was expected")
        check_manifest_schema_version(payload)
        return cls(root, lease=None)

    @property
    def is_complete(self) -> bool:
        """The run has finished; what is loaded says what it said when it was loaded."""
        return self._is_complete

    @property
    def is_read_only(self) -> bool:
        """The archive was loaded."""
        return self._writer is None

    @property
    def row_count(self) -> int:
        """Rows that are committed."""
        return self._writer.committed_id if self._writer is not None else self._reading().row_count

    @property
    def sink_failures(self) -> int:
        """Rows that a sink refused by an exception, or was too slow for."""
        return self._relay.failures

    def read_manifest(self) -> dict[str, object]:
        """The manifest as it is on disk."""
        return read_manifest_payload(self.root / MANIFEST_FILE)

    def write_manifest(self, manifest: ManifestPayloadSource | Mapping[str, object]) -> None:
        """Replaces the manifest, whole or not at all."""
        self._require_unfinished()
        write_whole(self.root / MANIFEST_FILE, render_manifest(manifest))

    def write_base_generation(self, text: str) -> None:
        """Records the generation of the grand coalition, whole or not at all."""
        self._require_unfinished()
        write_whole(self.root / BASE_GENERATION_FILE, encode_text(text))

    def read_base_generation(self) -> str | None:
        """The generation of the grand coalition; None before it was written."""
        path = self.root / BASE_GENERATION_FILE
        try:
            return path.read_bytes().decode()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise ArchiveCorruptError(f"{path} must hold UTF-8: {error}") from error
        except OSError as error:
            raise ArchiveAccessError(f"{path} cannot be read: {error.strerror}") from error

    def append(self, draft: CoalitionRecordDraft) -> int:
        """Takes a row and returns its `record_id`. The row is safe when `flush` returned, or with `flush_every=1` now.

        Waits for room while 1,000 rows wait to be committed.

        Raises:
            ArchiveStateError: the archive is read-only, complete, closed, or a parent process's.
            ArchiveWriteError: this or an earlier commit failed.
            RuntimeValueError: a log-probability or value is NaN, or the text is no Unicode.
            RuntimeTypeError: a field is of another type than it says.
        """
        writer = self._require_unfinished()
        record_id = writer.append(draft)
        if self._is_each_awaited:
            writer.flush()
        return record_id

    async def aappend(self, draft: CoalitionRecordDraft) -> int:
        """`append` that returns when the row is committed; the event loop runs on meanwhile."""
        writer = self._require_unfinished()
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        writer.append(draft, waiter)
        record_id = await waiter
        if record_id == NOT_COMMITTED:
            writer.flush()  # raises what the commit met
        return record_id

    def flush(self) -> None:
        """Returns when every row appended before is committed.

        Raises:
            ArchiveWriteError: a commit failed.
        """
        if self._writer is not None:
            self._writer.flush()

    async def aflush(self) -> None:
        """`flush` that blocks no event loop."""
        await asyncio.to_thread(self.flush)

    def lookup(self, coalition_key: str) -> StoredGeneration | None:
        """The generation of a key that was recorded before this archive was opened; None where there is none.

        What is appended since is the scheduler's store to know: an archive keeps no map of its growing rows.
        """
        if self._recorded is not None and coalition_key not in self._recorded:
            return None
        with self._reading_lock:
            record_id = self._recorded_ids().get(coalition_key)
            if record_id is None:
                return None
            # A list: a row that is only begun would hold the journal open.
            (record,) = list(self._reading().rows(after=record_id - 1, limit=1))
        return StoredGeneration(record.generation_text, record.logprobs, record.values)

    def has_recorded(self, coalition_key: str) -> bool:
        """Tells whether `lookup` knows a key."""
        recorded = self._recorded
        if recorded is None:
            with self._reading_lock:
                recorded = self._recorded_ids()
        return coalition_key in recorded

    def recorded_keys(self) -> frozenset[str]:
        """The keys that `lookup` knows."""
        with self._reading_lock:
            return frozenset(self._recorded_ids())

    def history_lazy(self) -> Iterator[CoalitionRecord]:
        """Streams the committed rows in order, decoded one by one."""
        if self._writer is None:
            yield from self._reading().rows()
            return
        self.flush()
        database = ReadOnlyDatabase(self.root, has_writer=True)
        try:
            yield from database.rows()
        finally:
            database.close()

    def add_row_sink(self, sink: RowSink) -> None:
        """Hands the rows committed from now on to a sink, in order, on a thread of the archive."""
        self._require_unfinished()
        self._relay.add(sink)

    def remove_row_sink(self, sink: RowSink) -> None:
        """Hands a sink nothing more."""
        self._relay.remove(sink)

    def mark_complete(self) -> None:
        """Commits what waits, says that the run has finished, and leaves WAL mode: one file that any reader can read.

        Raises:
            ArchiveWriteError: that could not be written; the run is then unfinished and can be resumed.
        """
        if self._is_complete:
            return
        writer = self._require_unfinished()
        writer.flush()
        self._relay.drain(SINKS_S)
        self._close_reading()
        writer.ask(record_completion)
        self._is_complete = True

    async def amark_complete(self) -> None:
        """`mark_complete` that blocks no event loop."""
        await asyncio.to_thread(self.mark_complete)

    def close(self) -> None:
        """Commits what waits, leaves WAL mode and gives the lease back; idempotent. Does nothing in a fork."""
        if self._writer is not None and self._writer.is_forked:
            return
        self._close_reading()
        self._is_closed = True
        if self._writer is None:
            return
        try:
            self._writer.close(leave_wal)
            self._relay.close(SINKS_S)
        finally:
            if self._lease is not None:
                self._lease.release()

    def __enter__(self) -> RunArchive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _require_unfinished(self) -> RowWriter:
        if self._is_complete:
            raise ArchiveStateError(f"{self.root} is complete and takes nothing more; open another folder")
        if self._writer is None:
            raise ArchiveStateError(f"{self.root} was loaded for reading; open it with on_exists='resume' to write")
        return self._writer

    def _reading(self) -> ReadOnlyDatabase:
        if self._is_closed:
            raise ArchiveStateError(f"the archive {self.root} is closed")
        if self._database is None:
            self._database = ReadOnlyDatabase(self.root, has_writer=self._writer is not None)
        return self._database

    def _close_reading(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _recorded_ids(self) -> dict[str, int]:
        if self._recorded is None:
            recorded: dict[str, int] = {}
            if self._recorded_until != 0:
                for key, record_id in self._reading().keyed_ids(until=self._recorded_until):
                    recorded.setdefault(key, record_id)
            self._recorded = recorded
        return self._recorded
