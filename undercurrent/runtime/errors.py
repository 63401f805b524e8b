"""What the coalition runtime raises on purpose; each error is also the builtin a caller would catch."""

from __future__ import annotations

from undercurrent.errors import UndercurrentError

__all__ = [
    "ArchiveAccessError",
    "ArchiveCorruptError",
    "ArchiveError",
    "ArchiveExistsError",
    "ArchiveIncompleteError",
    "ArchiveLockedError",
    "ArchiveMismatchError",
    "ArchiveNotFoundError",
    "ArchiveStateError",
    "ArchiveWriteError",
    "GenerationTypeError",
    "JobCancelledError",
    "JobTimeoutError",
    "ManifestVersionError",
    "RuntimeStateError",
    "RuntimeTypeError",
    "RuntimeValueError",
]


class RuntimeValueError(UndercurrentError, ValueError):
    """A value is of the right type and not acceptable."""


class RuntimeTypeError(UndercurrentError, TypeError):
    """A value is of the wrong type."""


class RuntimeStateError(UndercurrentError, RuntimeError):
    """The call is right and comes at the wrong time."""


class GenerationTypeError(RuntimeTypeError):
    """A generator returned something that is neither text nor a generation."""


class JobCancelledError(RuntimeStateError):
    """A job ended by cancellation nobody outside asked for; a run never counts it as done."""


class JobTimeoutError(UndercurrentError, TimeoutError):
    """A job, its retries included, was not done by its deadline."""


class ArchiveError(UndercurrentError):
    """The root of what archives raise."""


class ArchiveExistsError(ArchiveError, FileExistsError):
    """The folder holds a finished archive, and nobody asked to replace it."""


class ArchiveNotFoundError(ArchiveError, FileNotFoundError):
    """The folder lacks `manifest.json` or `archive.sqlite`."""


class ArchiveCorruptError(ArchiveError, ValueError):
    """The manifest is no JSON object, or the database cannot be read."""


class ArchiveIncompleteError(ArchiveError, ValueError):
    """The archive is of a run that has not finished."""


class ManifestVersionError(ArchiveError, ValueError):
    """The manifest or the database is of a schema this package does not read."""


class ArchiveMismatchError(ArchiveError, ValueError):
    """The archive is of another run; the message names the first difference of the manifests."""


class ArchiveAccessError(ArchiveError, PermissionError):
    """The system refuses the folder or one of its files."""


class ArchiveStateError(ArchiveError, RuntimeError):
    """The archive is closed, complete, read-only, or belongs to the process this one was forked from."""


class ArchiveWriteError(ArchiveError, OSError):
    """A commit failed (disk full, media gone). What was reported before is safe; no later row is taken."""


class ArchiveLockedError(ArchiveError, BlockingIOError):
    """A living writer has the archive; `pid` and `host` name it where it could be read, else None."""

    def __init__(self, message: str, *, pid: int | None = None, host: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.pid = pid
        self.host = host

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _locked_error, (self.message, self.pid, self.host)


def _locked_error(message: str, pid: int | None, host: str | None) -> ArchiveLockedError:
    return ArchiveLockedError(message, pid=pid, host=host)
