"""`save_probe` and `load_probe`: saved probes as safetensors files.

No pickle is read or written: a file holds arrays and one JSON document, and what it says is checked as what a stranger
says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from undercurrent.core.aggregation import Aggregation
from undercurrent.core.calibration import Calibration
from undercurrent.core.saved import SavedProbe
from undercurrent.core.weights import KNOTS
from undercurrent.core.whole_files import write_whole
from undercurrent.errors import (
    ProbeFileError,
    ProbeFileNotFoundError,
    ProbingError,
    ProbingTypeError,
)

__all__ = ["FILE_SIZE_BYTES_MAX", "load_probe", "save_probe"]

FILE_SIZE_BYTES_MAX = 1 << 32
"""A larger file is refused unread."""

_HEADER_KEY = "undercurrent_probe"
_FORMAT_VERSION = 1
_LISTED_MAX = 8


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON document under `undercurrent_probe` in a file's metadata."""

    format_version: int
    kind: str
    layer: int
    tensor_type: str
    model: str | None
    labels: list[str]
    threshold: float | None
    calibration: Calibration | None
    aggregation: Aggregation | None
    training: dict[str, Any]
    settings: dict[str, Any]


def save_probe(path: str | os.PathLike[str], probe: SavedProbe) -> None:
    """Writes `probe` to `path`, whole or not at all; an earlier file is replaced.

    Raises:
        ProbingTypeError: `probe` is no `SavedProbe`.
        OSError: the folder cannot be written.
    """
    if not isinstance(probe, SavedProbe):
        raise ProbingTypeError(
            f"`probe` must be a SavedProbe, got {type(probe).__name__}; make one with `SavedProbe(…)`,"
            " `from_sklearn(…)` or `undercurrent.core.training`"
        )
    header = _Header(
        format_version=_FORMAT_VERSION,
        kind=probe.kind,
        layer=probe.layer,
        tensor_type=probe.tensor_type,
        model=probe.model,
        labels=list(probe.labels),
        threshold=probe.threshold,
        calibration=probe.calibration,
        aggregation=probe.aggregation,
        training=dict(probe.training),
        settings=dict(probe.settings),
    )
    metadata = {_HEADER_KEY: msgspec.json.encode(header).decode()}
    write_whole(Path(path), save(dict(probe.weights), metadata=metadata))


def load_probe(path: str | os.PathLike[str]) -> SavedProbe:
    """The probe in `path`; every size, dtype and field is checked.

    Raises:
        ProbeFileNotFoundError: no such file.
        ProbeFileError: the file is no saved probe, is cut off, or holds what does not fit together.
    """
    where = Path(path)
    try:
        size = where.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise ProbeFileNotFoundError(
            f"no probe file at {os.fspath(path)!r}, looked for from {os.getcwd()!r}; write one with `save_probe` or"
            " `undercurrent probe train`"
        ) from None
    if not where.is_file():
        raise ProbeFileError(f"{os.fspath(path)!r} must be a file, got a folder or device")
    if size > FILE_SIZE_BYTES_MAX:
        raise ProbeFileError(f"{os.fspath(path)!r} has {size} bytes; a probe has at most {FILE_SIZE_BYTES_MAX}")
    metadata, weights = _read_file(where)
    header = _read_header(metadata, list(weights), where)
    try:
        return SavedProbe(
            header.kind,
            weights,
            layer=header.layer,
            tensor_type=header.tensor_type,
            model=header.model,
            labels=tuple(header.labels),
            threshold=header.threshold,
            calibration=header.calibration,
            aggregation=header.aggregation,
            training=header.training,
            settings=header.settings,
        )
    except ProbingError as error:
        raise ProbeFileError(f"{os.fspath(path)!r}: {error}") from error


def _read_file(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray[Any, Any]]]:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            weights: dict[str, np.ndarray[Any, Any]] = {}
            for name in file.keys():  # noqa: SIM118 (the handle is no mapping)
                dtype = file.get_slice(name).get_dtype()
                expected = "F64" if name in KNOTS else "F32"
                if _HEADER_KEY in metadata and dtype != expected:
                    raise ProbeFileError(f"{str(path)!r}: {name!r} must be of dtype {expected}, got {dtype}")
                weights[name] = file.get_tensor(name) if dtype == expected else np.empty(0, np.float32)
    except SafetensorError as error:
        raise ProbeFileError(
            f"{str(path)!r} is no safetensors file, or is cut off ({error}); write it again with `save_probe`. Pickles"
            " (.pkl, .pt, .joblib) are never loaded: bring a scikit-learn estimator over with `from_sklearn`"
        ) from None
    return metadata, weights


def _read_header(metadata: dict[str, str], names: list[str], path: Path) -> _Header:
    text = metadata.get(_HEADER_KEY)
    if text is None:
        listed = ", ".join(map(repr, names[:_LISTED_MAX])) + (" …" if len(names) > _LISTED_MAX else "")
        raise ProbeFileError(
            f"{str(path)!r} is a safetensors file without the {_HEADER_KEY!r} header, so no saved probe; it holds"
            f" {listed or 'no tensors'}. Put its arrays into a `SavedProbe` and write that with `save_probe`"
        )
    try:
        version = msgspec.json.decode(text.encode(), type=dict[str, Any]).get("format_version")
        if version != _FORMAT_VERSION:
            raise ProbeFileError(
                f"{str(path)!r} has format version {version!r}; this release reads version {_FORMAT_VERSION}"
            )
        return msgspec.json.decode(text.encode(), type=_Header)
    except msgspec.MsgspecError as error:
        raise ProbeFileError(f"{str(path)!r} has a damaged {_HEADER_KEY!r} header: {error}") from None
