"""Files that are whole or not there: written beside their place, put on disk, and renamed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["put_in_place", "write_whole"]


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file: a reader sees the old one or the new one, also after a power cut.

    Raises:
        OSError: the folder cannot be written; nothing of the new file is left then.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        put_in_place(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def put_in_place(temporary: Path, path: Path) -> None:
    """Renames a written file of the same folder, after its bytes are on disk.

    Raises:
        OSError: the disk is full or fails.
    """
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # A rename is on disk when its folder is (fsync(2)).
        os.fsync(folder)
    finally:
        os.close(folder)
