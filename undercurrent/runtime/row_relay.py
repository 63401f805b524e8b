"""Hands committed rows to sinks, on a thread of its own, so that a slow sink holds up no commit."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from undercurrent.runtime.archive_rows import CoalitionRecord, Row, decode_row
from undercurrent.runtime.protocols import RowSink

__all__ = ["RowRelay"]

BACKLOG_ROWS_MAX = 8192
"""Rows that wait for the sinks; beyond it commits wait, so that no sink misses one."""
ROOM_S = 30.0
"""How long a commit waits for sinks that take nothing; then they miss its rows, which the archive has."""

_logger = logging.getLogger("undercurrent.runtime")


class RowRelay:
    """The sinks of an archive. Owned by the archive, which closes it; `hand` is called on the writer's thread."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._taken = threading.Condition(self._lock)
        self._sinks: tuple[RowSink, ...] = ()
        self._backlog: deque[CoalitionRecord] = deque()
        self._is_relaying = False
        self._is_closed = False
        self.failures = 0
        """Rows that a sink refused by an exception, or was too slow for."""

    def add(self, sink: RowSink) -> None:
        """Gives the rows committed from now on to a sink as well."""
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="undercurrent-rows")
            self._sinks = (*(known for known in self._sinks if known is not sink), sink)

    def remove(self, sink: RowSink) -> None:
        """Gives a sink nothing more; one that is not there is no error."""
        with self._lock:
            self._sinks = tuple(known for known in self._sinks if known is not sink)

    def hand(self, rows: Sequence[Row], values: Mapping[int, str]) -> None:
        """Takes a committed group. Waits while the sinks are too far behind."""
        if not self._sinks:
            return
        until_s = time.monotonic() + ROOM_S
        with self._lock:
            while len(self._backlog) >= BACKLOG_ROWS_MAX and (left_s := until_s - time.monotonic()) > 0:
                self._taken.wait(left_s)
            if len(self._backlog) >= BACKLOG_ROWS_MAX or self._is_closed or self._thread is None:
                self.failures += len(rows)
                _logger.error("archive: sinks miss rows %d to %d: they take nothing", rows[0][0], rows[-1][0])
                return
            self._backlog.extend(decode_row(row, values.get(row[0])) for row in rows)
            if not self._is_relaying:
                self._thread.submit(self._relay)
                self._is_relaying = True

    def drain(self, timeout_s: float) -> int:
        """Waits until the sinks have everything; returns how many rows they do not have at the deadline."""
        until_s = time.monotonic() + timeout_s
        with self._lock:
            while self._is_relaying and (left_s := until_s - time.monotonic()) > 0:
                self._taken.wait(left_s)
            return len(self._backlog) + (1 if self._is_relaying else 0)

    def close(self, timeout_s: float) -> None:
        """Drains and ends the thread; rows left at the deadline are logged, and stay in the archive. Idempotent."""
        left = self.drain(timeout_s)
        with self._lock:
            self._is_closed = True
            self._backlog.clear()
            self._taken.notify_all()
            thread, self._thread = self._thread, None
        if left:
            _logger.warning("archive: sinks did not take the last %d rows within %g s", left, timeout_s)
        if thread is not None:
            thread.shutdown(wait=not left)

    def _relay(self) -> None:
        while True:
            with self._lock:
                self._taken.notify_all()
                if not self._backlog:
                    self._is_relaying = False
                    return
                record = self._backlog.popleft()
                sinks = self._sinks
            for sink in sinks:
                try:
                    sink.write_row(record)
                except (Exception, SystemExit, KeyboardInterrupt):
                    self.failures += 1
                    _logger.exception("archive: sink %r failed on row %d", sink, record.record_id)
