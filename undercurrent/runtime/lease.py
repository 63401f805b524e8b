"""Who may write an archive: one process, for as long as it lives.

The lease is a `flock` on `writer.lock`. The kernel gives it back when the last descriptor of the open file is closed,
however the process ends: a lease survives nobody. A forked child would inherit the descriptor and keep the lease alive
beyond its parent, so it closes its copy first thing. (A POSIX record lock is not inherited, but ends when any part of
the process closes any descriptor of the file: copying the folder would end it.) See flock(2), fcntl(2).

Over NFS Linux turns `flock` into a lock at the server (since 2.6.12), unless the mount says `nolock` or `local_lock`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from functools import cache
from pathlib import Path

from undercurrent.runtime.archive_files import LEASE_FILE, named_access
from undercurrent.runtime.errors import ArchiveAccessError, ArchiveLockedError

__all__ = ["WriterLease", "is_held"]

# `is_held` takes the lease, shared, for an instant; a writer that meets it comes back.
_TRIES = 20
_PAUSE_S = 0.005
_HOLDER_BYTES_MAX = 4096

_held: weakref.WeakSet[WriterLease] = weakref.WeakSet()


class WriterLease:
    """The right to write the archive in one folder. Owned by the archive that took it; `release` is idempotent."""

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self.path = path

    @classmethod
    def take(cls, root: Path) -> WriterLease:
        """Takes the lease of a folder, or says who has it.

        Raises:
            ArchiveLockedError: a living writer has it, in this process or another.
            ArchiveAccessError: the folder cannot be written.
        """
        _close_in_children()
        lease = cls(root / LEASE_FILE)
        # Known before it is locked: a fork in between must not carry the descriptor away.
        _held.add(lease)
        for attempt in range(_TRIES):
            with named_access(root, "written"):
                is_taken = lease._try()
            if is_taken:
                return lease
            if attempt + 1 < _TRIES:
                time.sleep(_PAUSE_S)
        raise _locked(root)

    def release(self) -> None:
        """Gives the lease back and removes its file."""
        if self._descriptor < 0:
            return
        # While the lease is held nobody else may hold this file, so the name is ours to remove.
        try:
            self.path.unlink(missing_ok=True)
        finally:
            self._close()

    def __del__(self) -> None:
        # Of an archive nobody closed: the file stays, as after a death.
        self._close()

    def _try(self) -> bool:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A writer that ended removed the name: then this is a file nobody else will find.
            if not _same_file(self._descriptor, self.path):
                self._close()
                return False
            holder = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()
            with open(self._descriptor, "r+b", buffering=0, closefd=False) as file:
                file.truncate(0)
                file.write(holder)
        except BlockingIOError:
            self._close()
            return False
        except OSError as error:
            self._close()
            if error.errno in (errno.ENOLCK, errno.ENOTSUP):
                raise ArchiveAccessError(f"{self.path} is on a file system without locks: {error.strerror}") from error
            raise
        return True

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def is_held(root: Path) -> bool:
    """Tells whether a living writer has the lease of a folder. Writes nothing; works on read-only media."""
    try:
        descriptor = os.open(root / LEASE_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _locked(root: Path) -> ArchiveLockedError:
    pid, host = _holder(root / LEASE_FILE)
    who = "another process" if pid is None else f"process {pid} on {host}"
    return ArchiveLockedError(
        f"{root} is being written by {who}; wait for it, end it, or choose another folder", pid=pid, host=host
    )


def _holder(path: Path) -> tuple[int | None, str | None]:
    try:
        with path.open("rb") as file:
            holder = json.loads(file.read(_HOLDER_BYTES_MAX))
        return int(holder["pid"]), str(holder["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@cache
def _close_in_children() -> None:
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    for lease in list(_held):
        lease._close()
