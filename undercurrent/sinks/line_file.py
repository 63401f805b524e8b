"""A file of whole lines that several processes append to.

One `write` on an `O_APPEND` descriptor is one place in the file (the kernel holds the inode's lock for it), so whole
lines of several writers never mix. What a kill can leave is half a line at the end; the next writer ends it with a
newline, so that its own first line stays readable.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time

from undercurrent.errors import ProbingError

__all__ = ["FileSinkError", "FileSinkNotFoundError", "LineFile", "check_path"]

_logger = logging.getLogger("undercurrent.sinks.file_sink")

_FILE_MODE = 0o600
_ROTATION_CHECK_S = 1.0
_TAIL_LOOKS_MAX = 16


class FileSinkError(ProbingError, OSError):
    """A sink's file cannot be opened, or not everything could be written to it."""

    written_bytes = 0
    """How much of what was to be written is in the file."""


class FileSinkNotFoundError(FileSinkError, FileNotFoundError):
    """The folder of a sink's file does not exist."""


def check_path(path: str) -> None:
    """Finds out, without creating anything, whether `path` can be appended to.

    Raises:
        FileSinkNotFoundError: its folder does not exist.
        FileSinkError: it is a folder, or may not be written.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise FileSinkNotFoundError(
            errno.ENOENT, f"the folder of a sink's file must exist; create {folder!r} before the sink for {path!r}"
        )
    if os.path.isdir(path):
        raise FileSinkError(errno.EISDIR, f"a sink's file must be a file, {path!r} is a folder")
    target = path if os.path.exists(path) else folder
    if not os.access(target, os.W_OK):
        raise FileSinkError(errno.EACCES, f"a sink's file must be writable, {target!r} is not for this user")


class LineFile:
    """An open file and the way back to it after rotation. Not thread-safe; who owns it brings the lock."""

    __slots__ = ("_checked_until", "_descriptor", "_end", "_identity", "_is_regular", "_path", "torn_tail_count")

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._identity = (0, 0)
        self._checked_until = 0.0
        self._is_regular = False
        # Where this process's last line ended; the file is longer when another process has written since.
        self._end = 0
        self.torn_tail_count = 0

    def append(self, lines: bytes | bytearray) -> None:
        """Appends whole lines in one `write`; the file is opened, or followed to where its path leads now, first.

        Raises:
            FileSinkError: not everything was written; `written_bytes` says how much.
        """
        now = time.monotonic()
        if now >= self._checked_until:
            self._follow(now)
        if not self._is_regular:
            self._write(lines)
            return
        # The common case, in as few calls as it takes: nobody else has written since, and the whole of it fits.
        descriptor = self._descriptor
        start = os.lseek(descriptor, 0, os.SEEK_END)
        if start != self._end:
            if self._is_tail_torn(start):
                self.torn_tail_count += 1
                self._write(b"\n")
            self._write(lines)
            self._end = os.lseek(descriptor, 0, os.SEEK_CUR)
            return
        self._write(lines)
        self._end = start + len(lines)

    def close(self) -> None:
        """Closes the file; `append` opens it again. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        self._checked_until = 0.0
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, lines: bytes | bytearray) -> None:
        written = 0
        try:
            written = os.write(self._descriptor, lines)
            while written < len(lines):
                # A signal or a full disk cut it short; the next call goes on, or says which.
                written += os.write(self._descriptor, memoryview(lines)[written:])
        except OSError as error:
            refused = FileSinkError(
                error.errno, f"{len(lines) - written} bytes were not written to {self._path!r}: {error.strerror}"
            )
            refused.written_bytes = written
            raise refused from error

    def _is_tail_torn(self, end: int) -> bool:
        """Whether the file, `end` bytes long, ends inside a line that nobody is writing any more."""
        for _ in range(_TAIL_LOOKS_MAX):
            if end == 0 or os.pread(self._descriptor, 1, end - 1) == b"\n":
                return False
            # Another process may be in the middle of its write. It holds the inode's lock, and setting the times takes
            # the same lock: behind this call that write is over, or its process is dead.
            os.utime(self._descriptor)
            length = os.lseek(self._descriptor, 0, os.SEEK_END)
            if length == end:
                return True
            end = length
        return False

    def _follow(self, now: float) -> None:
        """Opens the file, or the new one after the path was renamed away; a failure keeps the old one in use."""
        try:
            if self._descriptor >= 0:
                found = os.stat(self._path)
                if (found.st_dev, found.st_ino) == self._identity:
                    self._checked_until = now + _ROTATION_CHECK_S
                    return
        except OSError:
            pass  # renamed away: opening makes a new file
        try:
            self._open()
        except OSError as error:
            if self._descriptor < 0:
                cls = FileSinkNotFoundError if isinstance(error, FileNotFoundError) else FileSinkError
                raise cls(error.errno, f"the file {self._path!r} cannot be opened: {error.strerror}") from error
            _logger.warning("%r cannot be opened again (%s); its old file is used on", self._path, error.strerror)
        self._checked_until = now + _ROTATION_CHECK_S

    def _open(self) -> None:
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        is_readable = True
        try:
            descriptor = os.open(self._path, flags | os.O_RDWR, _FILE_MODE)
        except PermissionError:
            # A file that may be written and not read: its tail cannot be looked at.
            is_readable = False
            descriptor = os.open(self._path, flags | os.O_WRONLY, _FILE_MODE)
        opened = os.fstat(descriptor)
        self.close()
        self._descriptor = descriptor
        self._identity = (opened.st_dev, opened.st_ino)
        self._is_regular = is_readable and stat.S_ISREG(opened.st_mode)
        self._end = 0
