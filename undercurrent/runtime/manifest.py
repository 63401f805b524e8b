"""The manifest of a run: what it was asked to do, as a JSON object beside the database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from undercurrent.runtime.archive_files import MANIFEST_FILE
from undercurrent.runtime.errors import (
    ArchiveAccessError,
    ArchiveCorruptError,
    ArchiveNotFoundError,
    ManifestVersionError,
    RuntimeTypeError,
)
from undercurrent.runtime.protocols import ManifestPayloadSource

__all__ = ["MANIFEST_SCHEMA_VERSION", "check_manifest_schema_version", "first_difference", "read_manifest_payload"]

MANIFEST_SCHEMA_VERSION = 4
"""Our files are those of schema 4: the values of a row lie in a table of their own, which other readers pass over."""


def read_manifest_payload(path: Path | str) -> dict[str, object]:
    """The JSON object of a manifest; `path` is the file, or the archive's folder.

    Raises:
        ArchiveNotFoundError: there is no such file.
        ArchiveAccessError: it may not be read.
        ArchiveCorruptError: it is no JSON object.
    """
    path = Path(path)
    if path.is_dir():
        path = path / MANIFEST_FILE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArchiveNotFoundError(f"{path} does not exist; a folder with a run archive was expected") from error
    except OSError as error:
        raise ArchiveAccessError(f"{path} cannot be read: {error.strerror}") from error
    try:
        payload = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ArchiveCorruptError(f"{path} must hold a JSON object: {error}") from error
    if not isinstance(payload, dict):
        raise ArchiveCorruptError(f"{path} must hold a JSON object, got {type(payload).__name__}")
    return payload


def check_manifest_schema_version(payload: Mapping[str, object]) -> None:
    """Refuses a manifest of another schema.

    Raises:
        ManifestVersionError: `schema_version` is not `MANIFEST_SCHEMA_VERSION`, or missing.
    """
    version = payload.get("schema_version")
    if type(version) is not int or version != MANIFEST_SCHEMA_VERSION:
        raise ManifestVersionError(
            f"`schema_version` must be {MANIFEST_SCHEMA_VERSION}, got {version!r}; read the archive with the package "
            "that wrote it, or run again into another folder"
        )


def render_manifest(manifest: ManifestPayloadSource | Mapping[str, object]) -> bytes:
    """The content of `manifest.json`; `schema_version` is added where it is missing.

    Raises:
        RuntimeTypeError: the manifest is no JSON object.
        ManifestVersionError: it is of another schema.
    """
    source = manifest if isinstance(manifest, Mapping) else manifest.to_dict()
    payload = {"schema_version": MANIFEST_SCHEMA_VERSION, **source}
    check_manifest_schema_version(payload)
    try:
        text = json.dumps(payload, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()
    except (TypeError, ValueError) as error:
        raise RuntimeTypeError(f"a manifest must be a JSON object: {error}") from error


def first_difference(stored: object, given: object, path: str = "$") -> str | None:
    """Where two JSON values differ first, in the order of their sorted keys: a sentence, or None where they are equal.

    >>> first_difference({"seed": 1}, {"seed": 2})
    '$.seed is 1 in the archive and 2 in this run'
    """
    if isinstance(stored, dict) and isinstance(given, dict):
        for name in sorted(stored.keys() | given.keys()):
            if name not in given:
                return f"{path}.{name} is {stored[name]!r} in the archive and missing in this run"
            if name not in stored:
                return f"{path}.{name} is missing in the archive and {given[name]!r} in this run"
            if found := first_difference(stored[name], given[name], f"{path}.{name}"):
                return found
        return None
    if isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given):
        for index, (left, right) in enumerate(zip(stored, given, strict=True)):
            if found := first_difference(left, right, f"{path}[{index}]"):
                return found
        return None
    if stored == given and isinstance(stored, bool) == isinstance(given, bool):
        return None
    return f"{path} is {stored!r} in the archive and {given!r} in this run"
