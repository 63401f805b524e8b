"""`FileLogSink`: one line of JSON per signal and result, appended to a file by whoever writes it."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any

from undercurrent.core import ProbeResult, ProbeSignal
from undercurrent.sinks.jsonable import to_jsonable
from undercurrent.sinks.line_file import FileSinkError, LineFile, check_path
from undercurrent.sinks.records import (
    ResultRecord,
    SignalRecord,
    encode_line,
    encode_result_line,
    encode_signal_line,
    result_fields,
    signal_fields,
)
from undercurrent.sinks.redaction import RedactFn
from undercurrent.sinks.sink import LogSink

__all__ = ["FileLogSink"]

_BATCH_BYTES_MAX = 256 * 1024
# What a full disk may leave waiting in a batch before lines are given up.
_WAITING_BYTES_MAX = 4 * 1024 * 1024


class FileLogSink(LogSink):
    """Appends one line of JSON per signal and result to `path`.

    A handle: it is pickled to the workers, each of which appends for itself, so the process that attached it does no
    work. The file is opened at the first line, mode 0600 if it is new, and kept open; it is followed within a second
    when `path` is renamed away. A call that returned has its line in the file, where it survives the end of the
    process; between `begin_batch` and `flush` of one thread, lines wait and are written together.

    Thread-safe; several processes and sinks may append to one file.

    Raises:
        FileSinkNotFoundError: the folder of `path` does not exist.
        FileSinkError: `path` is a folder or may not be written. The `write_*` methods and `flush` raise it too, when
            the disk is full or the folder is gone; the line of a `write_*` that raised is not kept.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with FileLogSink(f"{folder.name}/observations.ndjson") as sink:
    ...     sink.write_signal("req-1", "monitor", ProbeSignal(metadata={"score": 0.25}))
    >>> b'"score":0.25' in open(sink.path, "rb").read()
    True
    >>> folder.cleanup()
    """

    travels = True
    path: Path
    """Where the lines go, as it was given."""

    def __init__(self, path: str | os.PathLike[str], *, redact: RedactFn | None = None) -> None:
        super().__init__(redact=redact)
        self.path = Path(path)
        self._absolute_path = os.path.abspath(path)
        check_path(self._absolute_path)
        self.lost_count = 0
        """Lines of a batch that were given up because the file could not be written for too long."""
        self._open_state()

    def _open_state(self) -> None:
        self._lock = threading.Lock()
        """Guards `_file`."""
        self._file = LineFile(self._absolute_path)
        self._batches: dict[int, bytearray] = {}
        """Lines that wait, by the thread whose batch they are of; each entry is touched by its thread only."""
        _remember(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), os.fspath(self.path), self._absolute_path, self._redact)

    @property
    def torn_tail_count(self) -> int:
        """Half lines of killed writers that this sink found at the end of the file and ended with a newline."""
        return self._file.torn_tail_count

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        """Appends one signal."""
        if self._redact is None:
            self._append(encode_signal_line(request_id, extraction_point_name, signal))
        else:
            self._append_redacted(signal_fields(request_id, extraction_point_name, signal))

    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
        """Appends one result."""
        if self._redact is None:
            self._append(encode_result_line(request_id, extraction_point_name, result))
        else:
            self._append_redacted(result_fields(request_id, extraction_point_name, result))

    def write_signal_record(self, record: SignalRecord) -> None:
        """Appends one signal with what is known of its activation."""
        known = (record.sequence, record.layer, record.position, record.model)
        if self._redact is None:
            self._append(encode_signal_line(record.request_id, record.extraction_point_name, record.signal, *known))
        else:
            self._append_redacted(signal_fields(record.request_id, record.extraction_point_name, record.signal, *known))

    def write_result_record(self, record: ResultRecord) -> None:
        """Appends one result with what is known of its request."""
        request_id, name = record.request_id, record.extraction_point_name
        if self._redact is None:
            self._append(encode_result_line(request_id, name, record.result, record.model))
        else:
            self._append_redacted(result_fields(request_id, name, record.result, record.model))

    def write_raw(self, record: dict[str, Any]) -> None:
        """Appends a record that was made elsewhere, after redaction."""
        self._append_redacted(record)

    def begin_batch(self) -> None:
        """Lets the lines of the calling thread wait until `flush`, or until they fill a quarter of a mebibyte."""
        self._batches.setdefault(threading.get_ident(), bytearray())

    def flush(self) -> None:
        """Writes what waits of the calling thread's batch and ends the batch.

        When it raises, the lines that are not in the file wait for the next call.
        """
        thread = threading.get_ident()
        batch = self._batches.get(thread)
        if batch is None:
            return
        self._write_out(batch)
        del self._batches[thread]

    def close(self) -> None:
        """Writes what waits of every thread, and closes the file. A later `write_*` opens it again."""
        try:
            for thread, batch in list(self._batches.items()):
                self._write_out(batch)
                self._batches.pop(thread, None)
        finally:
            with self._lock:
                self._file.close()

    def _append(self, line: bytes) -> None:
        # Without a batch anywhere, which is one look at an empty dict, the line goes straight into the file.
        batch = self._batches.get(threading.get_ident()) if self._batches else None
        if batch is None:
            with self._lock:
                self._file.append(line)
            return
        if len(batch) + len(line) > _WAITING_BYTES_MAX:
            self.lost_count += 1
            return
        batch += line
        if len(batch) >= _BATCH_BYTES_MAX:
            self._write_out(batch)

    def _append_redacted(self, record: dict[str, Any]) -> None:
        redacted = self._apply_redaction(record)
        if redacted is not None:
            self._append(encode_line(to_jsonable(redacted)))

    def _write_out(self, batch: bytearray) -> None:
        if not batch:
            return
        try:
            with self._lock:
                self._file.append(batch)
        except FileSinkError as error:
            # What is half in the file is written again whole; the half is ended with a newline before it.
            del batch[: batch.rfind(b"\n", 0, error.written_bytes) + 1]
            raise
        batch.clear()


def _rebuild(cls: type[FileLogSink], path: str, absolute_path: str, redact: RedactFn | None) -> FileLogSink:
    """Makes the sink another process pickled. The folder was checked there; a worker may start in another one."""
    sink = cls.__new__(cls)
    LogSink.__init__(sink, redact=redact)
    sink.path = Path(path)
    sink._absolute_path = absolute_path
    sink.lost_count = 0
    sink._open_state()
    return sink


_living: weakref.WeakSet[FileLogSink] = weakref.WeakSet()
_is_fork_watched = False


def _remember(sink: FileLogSink) -> None:
    global _is_fork_watched
    _living.add(sink)
    if not _is_fork_watched:
        _is_fork_watched = True
        os.register_at_fork(after_in_child=_renew_in_child)


def _renew_in_child() -> None:
    """A child of fork gets sinks that nobody holds: a lock held by a thread of the parent would stay held for ever.

    The lines that wait in the parent are the parent's.
    """
    for sink in list(_living):
        sink._lock = threading.Lock()
        sink._batches = {}
