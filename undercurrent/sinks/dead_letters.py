"""The file of records that could not be delivered: each with the reason, one JSON object per line."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec

from undercurrent.sinks.line_file import FileSinkError, LineFile, check_path
from undercurrent.sinks.state_folder import state_folder

__all__ = ["DeadLetterFile"]

_FOLDER_MODE = 0o700


class DeadLetterFile:
    """Appends undeliverable records to `path`, or to a file in the state folder, which is made at the first of them.

    Thread-safe. What `write` has taken is in the file, where it survives the end of the process.

    Raises:
        FileSinkError: `path` cannot be appended to (its folder is missing: `FileSinkNotFoundError`).
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._is_default = path is None
        self.path = state_folder() / "webhook-dead-letters.ndjson" if path is None else Path(os.path.abspath(path))
        if not self._is_default:
            check_path(str(self.path))
        self.renew()

    def renew(self) -> None:
        """Makes the lock and the file anew; called in a child of fork, where a thread that held the lock is gone."""
        self._lock = threading.Lock()
        """Guards `_file`."""
        self._file = LineFile(str(self.path))

    def write(self, record: bytes, *, reason: str, attempts: int) -> None:
        """Appends a JSON object, given without a newline, with `"dead_letter": {"reason": …, "attempts": …}` added.

        Raises:
            FileSinkError: it is not in the file.
        """
        why = msgspec.json.encode({"reason": reason, "attempts": attempts})
        # A redaction may have left nothing of a record.
        comma = b"" if record == b"{}" else b","
        line = record[:-1] + comma + b'"dead_letter":' + why + b"}\n"
        with self._lock:
            if self._is_default:
                self._make_folder()
            self._file.append(line)

    def close(self) -> None:
        """Closes the file; `write` opens it again."""
        with self._lock:
            self._file.close()

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise FileSinkError(
                error.errno, f"the folder {str(self.path.parent)!r} cannot be made: {error.strerror}"
            ) from error
