"""Reads recordings: what was routed, in the order in which it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from undercurrent.engines.recording_format import (
    COLUMNS,
    FORMAT,
    MANIFEST_NAME,
    SHARD_PATTERN,
    VERSION,
    Manifest,
    RecordedRequest,
    ShardIndex,
)
from undercurrent.errors import MissingDependencyError, ProbingError
from undercurrent.spec import ProbeSpec, TensorType, UntilKind

__all__ = ["RecordedEvent", "RecordedRows", "Recording", "RecordingError", "RequestBegan", "RequestEnded"]

Column = np.ndarray[Any, np.dtype[Any]]


class RecordingError(ProbingError, ValueError):
    """A folder holds no recording, a damaged one, or one without what a spec reads."""


class RecordedRows(NamedTuple):
    """Records of one tensor that were routed together; entry i of each sequence belongs to `rows[i]`."""

    step: int
    layer: int
    tensor_type: TensorType
    rows: Any
    """`(records, …)`, a numpy array or a torch tensor as it was recorded; the replay's own."""
    requests: list[RecordedRequest]
    positions: np.ndarray[Any, np.dtype[np.int64]]
    is_generated: np.ndarray[Any, np.dtype[np.uint8]]
    timestamp: float


class RequestBegan(NamedTuple):
    """A request began."""

    request: RecordedRequest


class RequestEnded(NamedTuple):
    """A request ended."""

    request: RecordedRequest


RecordedEvent = RequestBegan | RequestEnded | RecordedRows


class Recording:
    """A recording, read shard by shard: no more than one shard is in memory."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Reads the manifest.

        Raises:
            RecordingError: `folder` holds no recording of this version, or a shard of it is missing.
        """
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        self._shards = sorted(self.folder.glob(SHARD_PATTERN))
        expected = self.manifest.shard_count if self.manifest.is_complete else len(self._shards)
        names = [f"shard-{number:06d}.safetensors" for number in range(expected)]
        if [shard.name for shard in self._shards] != names:
            missing = sorted(set(names) - {shard.name for shard in self._shards})
            raise RecordingError(f"{str(folder)!r} must hold shards 0 to {expected - 1}; missing: {', '.join(missing)}")

    def events(self) -> Iterator[RecordedEvent]:
        """What happened, in order: requests begin, rows are routed, requests end.

        Raises:
            RecordingError: a shard is damaged.
            MissingDependencyError: it holds torch tensors and torch is not installed.
        """
        for path in self._shards:
            yield from _read_shard(path)

    def find_problems(self, spec: ProbeSpec) -> list[str]:
        """One sentence per point that reads what was not recorded; empty if there is none."""
        known = {(tensor.layer, tensor.tensor_type) for tensor in self.manifest.tensors}
        held = ", ".join(f"{word} of layer {layer}" for layer, word in sorted(known)) or "nothing"
        problems = []
        for point in spec:
            word = TensorType(point.tensor_type).value
            missing = [layer for layer in point.layers if (layer, word) not in known]
            if missing:
                problems.append(
                    f"point {point.name!r}: the recording has no {word} of layer {', '.join(map(str, missing))}; it has"
                    f" {held}"
                )
            if point.position.needs_generation_length:
                problems.append(
                    f"point {point.name!r}: position {point.position.to_raw()!r} counts from the end of a generation;"
                    " use 'generated[*]' and keep the last record in the probe"
                )
            if point.until_rule.kind is UntilKind.STOP_TOKEN:
                problems.append(
                    f"point {point.name!r}: a recording holds no tokens, so `until: stop_token` cannot end it"
                )
        return problems


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise RecordingError(
            f"{str(folder)!r} holds no recording: {MANIFEST_NAME} cannot be read ({error.strerror}); give the folder"
            " that `undercurrent record` was told to make"
        ) from error
    except msgspec.MsgspecError as error:
        raise RecordingError(f"{str(path)!r} is no manifest of a recording: {error}") from error
    if manifest.format != FORMAT or manifest.version != VERSION:
        raise RecordingError(
            f"{str(path)!r} must have format {FORMAT!r} and version {VERSION}, got {manifest.format!r} and"
            f" {manifest.version!r}; it was written by another version of undercurrent"
        )
    return manifest


class _Shard(NamedTuple):
    """One shard in memory, its references checked."""

    names: ShardIndex
    columns: dict[str, Column]
    blocks: list[Any]


def _read_shard(path: Path) -> Iterator[RecordedEvent]:
    shard = _load_shard(path)
    index, columns = shard.names, shard.columns
    count = len(columns["step"])
    keys = np.stack([columns[name].astype(np.int64) for name in ("step", "layer", "tensor_type", "block")])
    borders = set((np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1).tolist())
    borders |= {event.place for event in index.events} | {0, count}
    events = iter(index.events)
    event = next(events, None)
    places = sorted(borders)
    for begin, end in zip(places, [*places[1:], count], strict=True):
        while event is not None and event.place == begin:
            request = index.requests[event.request]
            yield RequestEnded(request) if event.is_end else RequestBegan(request)
            event = next(events, None)
        if begin < end:
            yield _cut_rows(shard, slice(begin, end))


def _cut_rows(shard: _Shard, part: slice) -> RecordedRows:
    columns, first = shard.columns, part.start
    return RecordedRows(
        step=int(columns["step"][first]),
        layer=int(columns["layer"][first]),
        tensor_type=TensorType(shard.names.tensor_types[columns["tensor_type"][first]]),
        rows=shard.blocks[columns["block"][first]][columns["row"][part]],
        requests=[shard.names.requests[request] for request in columns["request"][part].tolist()],
        positions=columns["position"][part],
        is_generated=columns["is_generated"][part],
        timestamp=float(columns["timestamp"][first]),
    )


def _load_shard(path: Path) -> _Shard:
    try:
        with safe_open(path, framework="numpy") as file:
            index = msgspec.json.decode(file.metadata()["index"], type=ShardIndex)
        with safe_open(path, framework=_framework(path, index)) as file:
            columns = {name: np.asarray(file.get_tensor(name)) for name in COLUMNS}
            blocks = [
                file.get_tensor(f"rows.{number}") if kind == "torch" else np.asarray(file.get_tensor(f"rows.{number}"))
                for number, kind in enumerate(index.kinds)
            ]
    except (SafetensorError, msgspec.MsgspecError, KeyError, TypeError, OSError) as error:
        raise RecordingError(f"{str(path)!r} is no whole shard of a recording: {error}") from error
    shard = _Shard(index, columns, blocks)
    problem = _find_damage(shard)
    if problem:
        raise RecordingError(f"{str(path)!r} is damaged: {problem}")
    return shard


def _framework(path: Path, index: ShardIndex) -> str:
    if "torch" not in index.kinds:
        return "numpy"
    try:
        # Loading its reader is what needs torch.
        import safetensors.torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"{str(path)!r} holds torch tensors, and torch is not installed; run: pip install 'undercurrent[torch]'",
            name="torch",
        ) from error
    return "pt"


def _find_damage(shard: _Shard) -> str | None:
    """What a shard says that cannot be, or None: nothing of a file is trusted to be an index."""
    index, columns = shard.names, shard.columns
    count = len(columns["step"])
    for name, dtype in COLUMNS.items():
        if columns[name].dtype != dtype or columns[name].shape != (count,):
            return f"column {name!r} must be {count} x {dtype}, got {columns[name].shape} x {columns[name].dtype}"
    limits = {
        "request": len(index.requests),
        "tensor_type": len(index.tensor_types),
        "block": len(shard.blocks),
        "layer": np.iinfo(np.int32).max,
        "position": np.iinfo(np.int64).max,
    }
    for name, limit in limits.items():
        if count and not 0 <= columns[name].min() <= columns[name].max() < limit:
            return f"column {name!r} must lie from 0 to {limit - 1}"
    lengths = np.array([len(block) for block in shard.blocks], np.int64)
    if count and not ((columns["row"] >= 0) & (columns["row"] < lengths[columns["block"]])).all():
        return "a record lies behind the end of its block"
    unknown = set(index.tensor_types) - {kind.value for kind in TensorType}
    if unknown:
        return f"it has tensor types that this version does not know: {', '.join(sorted(unknown))}"
    places = [event.place for event in index.events]
    if places != sorted(places) or not all(0 <= place <= count for place in places):
        return "its requests begin and end out of order"
    if not all(0 <= event.request < len(index.requests) for event in index.events):
        return "a request begins or ends that it does not name"
    return None
