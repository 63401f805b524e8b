"""An archive read while it grows, by this process or another."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from undercurrent.runtime.archive_files import MANIFEST_FILE
from undercurrent.runtime.archive_rows import CoalitionRecord
from undercurrent.runtime.database import ReadOnlyDatabase
from undercurrent.runtime.errors import ArchiveCorruptError, ArchiveNotFoundError, ManifestVersionError
from undercurrent.runtime.lease import is_held
from undercurrent.runtime.manifest import check_manifest_schema_version, read_manifest_payload

__all__ = ["ArchiveFollower", "FollowState"]

POLL_S = 0.05
ROWS_MAX = 1000
"""Rows of one look beside a living writer."""
FAILING_S = 10.0
"""How long looks may fail beside a living writer, which may be making the database, or folding its journal into it."""


class FollowState(enum.Enum):
    """What a follower may still expect."""

    GROWING = "growing"
    """A writer lives."""
    COMPLETE = "complete"
    """The run has finished, and every row was read."""
    ABANDONED = "abandoned"
    """The run has not finished and no writer lives; every row was read. A resumed run can be followed again."""


class ArchiveFollower:
    """Reads rows as they are committed; holds nothing open between two looks, so it is never in a writer's way.

    Owned by one thread or task at a time. Writes nothing to the folder that its writer does not write.
    """

    def __init__(self, root: Path | str, *, after: int = 0) -> None:
        """Follows the archive in a folder, from the row behind `record_id` `after` on."""
        self.root = Path(root)
        self.last_id = after
        """The `record_id` of the last row that was read."""
        self.state = FollowState.GROWING
        self._failing_since_s: float | None = None

    def read_new(self) -> list[CoalitionRecord]:
        """The rows that were committed since the last look, in order; `state` then says whether more may come.

        Beside a living writer up to 1,000 at a time, else all of them.

        Raises:
            ArchiveNotFoundError: there is no archive.
            ArchiveCorruptError, ManifestVersionError: what is there is not one of ours.
        """
        check_manifest_schema_version(read_manifest_payload(self.root / MANIFEST_FILE))
        # Asked before the rows: a writer that ends in between has committed before it ended.
        has_writer = is_held(self.root)
        try:
            database = ReadOnlyDatabase(self.root, has_writer=has_writer)
            try:
                is_complete = database.is_complete
                records = list(database.rows(after=self.last_id, limit=ROWS_MAX if has_writer else -1))
            finally:
                database.close()
        except (ArchiveNotFoundError, ArchiveCorruptError, ManifestVersionError):
            now_s = time.monotonic()
            if self._failing_since_s is None:
                self._failing_since_s = now_s
            if not has_writer or now_s - self._failing_since_s > FAILING_S:
                raise
            return []
        self._failing_since_s = None
        if records:
            self.last_id = records[-1].record_id
        if has_writer and (len(records) == ROWS_MAX or not is_complete):
            self.state = FollowState.GROWING
        else:
            self.state = FollowState.COMPLETE if is_complete else FollowState.ABANDONED
        return records

    def rows(self, *, poll_s: float = POLL_S, timeout_s: float | None = None) -> Iterator[CoalitionRecord]:
        """Yields rows until the run is complete or abandoned, or until `timeout_s` passed; `state` says which."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            records = self.read_new()
            yield from records
            if self._is_over(until_s):
                return
            if not records:
                time.sleep(poll_s)

    async def arows(self, *, poll_s: float = POLL_S, timeout_s: float | None = None) -> AsyncIterator[CoalitionRecord]:
        """`rows` for an event loop: looks are taken on a thread."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            records = await asyncio.to_thread(self.read_new)
            for record in records:
                yield record
            if self._is_over(until_s):
                return
            if not records:
                await asyncio.sleep(poll_s)

    def _is_over(self, until_s: float | None) -> bool:
        return self.state is not FollowState.GROWING or (until_s is not None and time.monotonic() >= until_s)
