"""The files of an archive: their names, how they are replaced whole, and how old ones are moved aside."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from undercurrent.runtime.errors import ArchiveAccessError, ArchiveWriteError

__all__ = ["BASE_GENERATION_FILE", "DATABASE_FILE", "LEASE_FILE", "MANIFEST_FILE", "REPLACED_PREFIX"]

MANIFEST_FILE = "manifest.json"
DATABASE_FILE = "archive.sqlite"
BASE_GENERATION_FILE = "base_generation.txt"
LEASE_FILE = "writer.lock"
REPLACED_PREFIX = "replaced-"

# The database goes first: where a move is cut short, no half of an archive looks like a whole one. `blobs` is a folder
# of archives older than schema 4.
_MOVED = (
    DATABASE_FILE,
    f"{DATABASE_FILE}-wal",
    f"{DATABASE_FILE}-shm",
    f"{DATABASE_FILE}-journal",
    MANIFEST_FILE,
    BASE_GENERATION_FILE,
    f".{MANIFEST_FILE}.new",
    f".{BASE_GENERATION_FILE}.new",
    "blobs",
)
_NAMES_MAX = 1000


@contextmanager
def named_access(path: Path, wish: str) -> Iterator[None]:
    """Turns what the system refuses inside into errors of ours that name the path.

    Raises:
        ArchiveAccessError: no permission, or a read-only file system.
        ArchiveWriteError: any other failure of the system.
    """
    try:
        yield
    except (PermissionError, NotADirectoryError) as error:
        raise ArchiveAccessError(f"{path} cannot be {wish}: {error.strerror}") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise ArchiveAccessError(f"{path} cannot be {wish}: {error.strerror}") from error
        raise ArchiveWriteError(f"{path} cannot be {wish}: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file so that a crash leaves either the old content or the new one.

    Raises:
        ArchiveAccessError: no permission.
        ArchiveWriteError: the disk is full, or fails.
    """
    fresh = path.with_name(f".{path.name}.new")
    with named_access(path, "written"):
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError:
            with suppress(OSError):
                fresh.unlink()
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_aside(root: Path) -> Path | None:
    """Moves the files of an archive to a new folder `replaced-<UTC time>` below `root`; None where there are none.

    Files that are no part of an archive stay where they are.
    """
    present = [root / name for name in _MOVED if os.path.lexists(root / name)]
    if not present:
        return None
    with named_access(root, "cleared for a new run"):
        folder = _new_folder(root)
        for path in present:
            path.rename(folder / path.name)
        sync_folder(folder)
        sync_folder(root)
    return folder


def _new_folder(root: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, _NAMES_MAX):
        folder = root / f"{REPLACED_PREFIX}{stamp}{f'-{number}' if number > 1 else ''}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise ArchiveWriteError(f"{root} holds {_NAMES_MAX} replaced archives of one second")
