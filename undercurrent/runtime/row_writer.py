"""Commits rows in groups, on a thread of its own, and says when each row is safe."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeVar

from undercurrent.runtime.archive_rows import CoalitionRecordDraft, Row, encode_columns, encode_values
from undercurrent.runtime.errors import ArchiveStateError, ArchiveWriteError

__all__ = ["GROUP_ROWS_MAX", "RowWriter"]

T = TypeVar("T")

GROUP_ROWS_MAX = 500
"""Most rows of one commit."""
GROUP_AGE_S = 0.005
"""Longest a row waits for others to join its commit."""
WAITING_ROWS_MAX = 2 * GROUP_ROWS_MAX
"""Rows that wait for a commit; beyond it `append` waits, until half of them are taken.

Two groups and no more: a thread that appends without a pause would keep the interpreter's lock for 5 ms each time the
writer asks for it. One that waits at every second group gives it away when it is needed, and fills the next group
while SQLite writes the last.
"""

NOT_COMMITTED = 0
"""What a waiter gets in place of a `record_id` when the commit failed: an exception nobody fetches would be logged."""

# One statement inserts many rows: the thread takes the interpreter's lock once per statement, and a statement per row
# would wait for that lock once per row. Few sizes, so that SQLite compiles few statements.
_STATEMENT_ROWS = (GROUP_ROWS_MAX, 256, 128, 64, 32, 16, 8, 4, 2, 1)
_PLACES = f"({','.join('?' * 11)})"
_INSERTS = {
    count: f"INSERT INTO coalition_records VALUES {','.join(itertools.repeat(_PLACES, count))}"
    for count in _STATEMENT_ROWS
}
_INSERT_VALUES = "INSERT INTO coalition_values VALUES (?, ?)"

_logger = logging.getLogger("undercurrent.runtime")


class RowWriter:
    """The one writer of a database. Rows may come from any thread; owned by the archive, which closes it.

    `on_committed` is called on the writer's thread with the rows of each group and, by `record_id`, the values of those
    that have some: after the commit and before anybody is told of it.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        rows_max: int | None,
        on_committed: Callable[[Sequence[Row], Mapping[int, str]], None],
        lease: object = None,
    ) -> None:
        """Opens the connection on the writer's thread; `rows_max` is at least 1, or None for 500.

        `lease` is kept for as long as rows may still be written: of an archive that nobody closed and nobody has.
        """
        self._lease = lease
        self._rows_max = min(rows_max or GROUP_ROWS_MAX, GROUP_ROWS_MAX)
        self._on_committed = on_committed
        self._pid = os.getpid()
        # An executor's threads are joined at exit, behind the work they have: rows that wait are still committed then.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="undercurrent-archive")
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)  # a group is full, or somebody waits for it
        self._taken = threading.Condition(self._lock)  # rows have left the queue
        self._written = threading.Condition(self._lock)  # a commit has ended
        self._waiting: deque[Row] = deque()
        self._values: dict[int, str] = {}  # of waiting rows that have some, by `record_id`
        self._waiters: dict[int, asyncio.Future[int]] = {}  # of waiting rows that a task waits for
        self._oldest_s = 0.0
        self._is_urgent = False
        self._is_draining = False
        self._is_closed = False
        self._failure: ArchiveWriteError | None = None
        try:
            self._connection = self._thread.submit(connect).result()
            self._appended_id = self._committed_id = self._last_id()
        except BaseException:
            self._thread.shutdown()
            raise

    @property
    def committed_id(self) -> int:
        """The last `record_id` that is committed; 0 before the first."""
        return self._committed_id

    @property
    def is_forked(self) -> bool:
        """This process is a fork of the writer's: the connection, the thread and perhaps the lock are the parent's."""
        return self._pid != os.getpid()

    def append(self, draft: CoalitionRecordDraft, waiter: asyncio.Future[int] | None = None) -> int:
        """Takes a row and returns its `record_id`; `waiter` gets it when the row is committed, or
        `NOT_COMMITTED` when that fails.

        Raises:
            ArchiveWriteError: an earlier commit failed.
            ArchiveStateError: the archive is closed, or belongs to the process this one was forked from.
        """
        columns = encode_columns(draft)
        values = encode_values(draft.values) if draft.values else None
        if self._pid != os.getpid():
            self._require_parent()
        with self._lock:
            if self._failure is not None or self._is_closed:
                self._refuse()
            while len(self._waiting) >= WAITING_ROWS_MAX:
                self._await_room()
            if not self._is_draining:
                self._start_draining()
            if not self._waiting:
                self._oldest_s = time.monotonic()
            self._appended_id = record_id = self._appended_id + 1
            self._waiting.append((record_id, *columns))
            if values is not None:
                self._values[record_id] = values
            if waiter is not None:
                self._waiters[record_id] = waiter
                self._is_urgent = True
                self._filled.notify()
            elif len(self._waiting) == self._rows_max:
                self._filled.notify()
        return record_id

    def flush(self) -> None:
        """Returns when every row appended before is committed.

        Raises:
            ArchiveWriteError: a commit failed.
            ArchiveStateError: as `append`.
        """
        self._require_parent()
        with self._lock:
            until_id = self._appended_id
            self._hurry()
            # Bounded by the commits themselves: each ends, or fails and sets the failure.
            while self._committed_id < until_id and self._failure is None:
                self._written.wait()
            if self._failure is not None or self._is_closed:
                self._refuse()

    def ask(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs work on the writer's thread, behind the rows appended before, and returns what it returns."""
        self.flush()
        return self._thread.submit(work, self._connection).result()

    def close(self, before_closing: Callable[[sqlite3.Connection], None]) -> None:
        """Commits what waits and closes the connection, `before_closing` in between; idempotent.

        A commit that fails now leaves rows that nobody was told of; it is logged.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._hurry()
            while self._is_draining:
                self._written.wait()

        def end() -> None:
            try:
                before_closing(self._connection)
            finally:
                self._connection.close()

        try:
            self._thread.submit(end).result()
        finally:
            self._thread.shutdown()

    def _refuse(self) -> NoReturn:
        if self._failure is not None:
            # A new one each time: an exception that is raised twice grows its traceback.
            raise ArchiveWriteError(*self._failure.args) from self._failure.__cause__
        raise ArchiveStateError("the archive is closed; open it with on_exists='resume' to go on")

    def _require_parent(self) -> None:
        # Asked before the lock is taken: in a fork its owner may not exist.
        if self.is_forked:
            raise ArchiveStateError(
                f"the archive belongs to process {self._pid}, of which this one is a fork; open another in the child"
            )

    def _await_room(self) -> None:
        """Waits until half of the waiting rows are taken: room for one row would mean a wake-up per row."""
        self._hurry()
        while len(self._waiting) > WAITING_ROWS_MAX // 2 and self._failure is None:
            self._taken.wait()
        if self._failure is not None or self._is_closed:
            self._refuse()

    def _hurry(self) -> None:
        if self._waiting:
            self._is_urgent = True
            self._filled.notify()

    def _start_draining(self) -> None:
        try:
            self._thread.submit(self._drain)
        except RuntimeError as error:  # the interpreter is on its way out
            raise ArchiveStateError("the interpreter is exiting; no row is taken any more") from error
        self._is_draining = True

    def _drain(self) -> None:
        """Commits group after group until no row waits. Runs on the writer's thread."""
        while True:
            with self._lock:
                self._await_group()
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._rows_max))]
                self._oldest_s = time.monotonic()
                if not group:
                    self._is_urgent = self._is_draining = False
                    self._written.notify_all()
                    return
                values = _take_of(group, self._values)
                self._taken.notify_all()
            failure = self._commit(group, values)
            with self._lock:
                if failure is None:
                    self._committed_id = group[-1][0]
                else:
                    self._failure = failure
                    group += self._waiting
                    self._waiting.clear()
                self._written.notify_all()
                self._taken.notify_all()
                waiters = _take_of(group, self._waiters)
            _tell(waiters, is_committed=failure is None)

    def _await_group(self) -> None:
        while self._waiting and len(self._waiting) < self._rows_max and not self._is_urgent:
            left_s = self._oldest_s + GROUP_AGE_S - time.monotonic()
            if left_s <= 0:
                return
            self._filled.wait(left_s)

    def _commit(self, group: Sequence[Row], values: Mapping[int, str]) -> ArchiveWriteError | None:
        try:
            self._insert(group, values)
        except Exception as error:
            self._roll_back()
            _logger.error("archive: a commit failed, %d rows were not written: %s", len(group), error)
            failure = ArchiveWriteError(
                f"rows {group[0][0]} and later could not be committed: {error}; every row before is safe: make room, "
                "then resume"
            )
            failure.__cause__ = error
            return failure
        try:
            self._on_committed(group, values)
        except Exception:
            _logger.exception("archive: rows %d to %d are committed and were not handed on", group[0][0], group[-1][0])
        return None

    def _insert(self, group: Sequence[Row], values: Mapping[int, str]) -> None:
        execute = self._connection.execute
        # One statement is a transaction by itself.
        is_one = len(group) in _INSERTS and not values
        if not is_one:
            execute("BEGIN IMMEDIATE")
        start = 0
        for count in _STATEMENT_ROWS:
            while len(group) - start >= count:
                execute(_INSERTS[count], list(itertools.chain.from_iterable(group[start : start + count])))
                start += count
        if values:
            self._connection.executemany(_INSERT_VALUES, values.items())
        if not is_one:
            execute("COMMIT")

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            # SQLite rolls back by itself on the errors of a full or failing disk; the file is as it was.
            _logger.debug("archive: rollback after a failed commit: %s", error)

    def _last_id(self) -> int:
        def ask() -> int:
            (last,) = self._connection.execute("SELECT max(record_id) FROM coalition_records").fetchone()
            return last or 0

        return self._thread.submit(ask).result()


def _take_of(group: Sequence[Row], by_id: dict[int, T]) -> dict[int, T]:
    """Takes away what belongs to the rows of a group; most rows have nothing."""
    return {row[0]: by_id.pop(row[0]) for row in group if row[0] in by_id} if by_id else {}


def _tell(waiters: Mapping[int, asyncio.Future[int]], *, is_committed: bool) -> None:
    """Wakes the tasks that wait for rows of a group: one call per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], int]]] = {}
    for record_id, waiter in waiters.items():
        outcome = record_id if is_committed else NOT_COMMITTED
        by_loop.setdefault(waiter.get_loop(), []).append((waiter, outcome))
    for loop, waiting in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, waiting)
        except RuntimeError:  # the loop is closed: nobody waits any more
            _logger.debug("archive: %d rows were committed for a loop that is closed", len(waiting))


def _settle(waiting: Sequence[tuple[asyncio.Future[int], int]]) -> None:
    for waiter, outcome in waiting:
        if not waiter.done():
            waiter.set_result(outcome)
