"""One shard of a recording while it is filled, and how it is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError

from undercurrent.engines.recording_format import (
    COLUMNS,
    FORMAT,
    VERSION,
    RecordedRequest,
    RequestEvent,
    ShardIndex,
)
from undercurrent.errors import UnsupportedPayloadError

__all__ = ["ShardBuilder", "row_size_bytes"]


class ShardBuilder:
    """Collects records until it is saved; owned by one recorder, used under its lock."""

    def __init__(self) -> None:
        self.record_count = 0
        self.size_bytes = 0
        """Bytes of the rows; the columns are not counted."""
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._tensor_types: dict[str, int] = {}
        self._requests: dict[str, int] = {}
        self._recorded: list[RecordedRequest] = []
        self._events: list[RequestEvent] = []
        self._blocks: dict[tuple[str, str, tuple[int, ...]], int] = {}
        self._pieces: list[list[Any]] = []
        self._row_counts: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened since the last shard."""
        return not self.record_count and not self._events

    def add_event(self, request: RecordedRequest, *, is_end: bool) -> None:
        """A request began, or ended."""
        self._events.append(RequestEvent(self.record_count, self._place(request), is_end))

    def add_rows(
        self,
        rows: Any,
        indices: Sequence[int],
        *,
        requests: Sequence[RecordedRequest],
        layer: int,
        tensor_type: str,
        step: int,
        positions: Sequence[int],
        is_generated: Sequence[bool],
        timestamp: float,
    ) -> None:
        """Copies `rows[indices]` of one tensor; entry i of each sequence belongs to `indices[i]`."""
        count = len(indices)
        kind = row_kind(rows)
        key = (kind, str(rows.dtype), tuple(rows.shape[1:]))
        block = self._blocks.setdefault(key, len(self._blocks))
        if block == len(self._pieces):
            self._pieces.append([])
            self._row_counts.append(0)
        self._pieces[block].append(rows[list(indices)])
        first = self._row_counts[block]
        self._row_counts[block] += count
        columns: dict[str, Any] = {
            "step": [step] * count,
            "request": [self._place(request) for request in requests],
            "layer": [layer] * count,
            "tensor_type": [self._tensor_types.setdefault(tensor_type, len(self._tensor_types))] * count,
            "position": positions,
            "is_generated": is_generated,
            "timestamp": [timestamp] * count,
            "block": [block] * count,
            "row": range(first, first + count),
        }
        for name, values in columns.items():
            self._columns[name].append(np.asarray(values, COLUMNS[name]))
        self.record_count += count
        self.size_bytes += count * row_size_bytes(rows)

    def save(self, path: Path) -> None:
        """Writes the shard.

        Raises:
            OSError: it cannot be written.
        """
        index = ShardIndex(
            tensor_types=tuple(self._tensor_types),
            requests=tuple(self._recorded),
            events=tuple(self._events),
            kinds=tuple(kind for kind, _, _ in self._blocks),
        )
        metadata = {"format": FORMAT, "version": str(VERSION), "index": msgspec.json.encode(index).decode()}
        try:
            self._write(path, index, metadata)
        except SafetensorError as error:
            # What it says of a full disk is no OSError.
            raise OSError(f"{path.name!r} cannot be written: {error}") from error

    def _write(self, path: Path, index: ShardIndex, metadata: dict[str, str]) -> None:
        tensors: dict[str, Any] = {
            name: np.concatenate(parts) if parts else np.empty(0, COLUMNS[name])
            for name, parts in self._columns.items()
        }
        if "torch" not in index.kinds:
            from safetensors.numpy import save_file as save_arrays

            blocks = {f"rows.{number}": np.concatenate(pieces) for number, pieces in enumerate(self._pieces)}
            save_arrays({**tensors, **blocks}, path, metadata)
            return
        import torch
        from safetensors.torch import save_file as save_tensors

        tensors = {name: torch.from_numpy(column) for name, column in tensors.items()}
        for number, (kind, pieces) in enumerate(zip(index.kinds, self._pieces, strict=True)):
            block = torch.cat(pieces) if kind == "torch" else torch.from_numpy(np.concatenate(pieces))
            tensors[f"rows.{number}"] = block.contiguous()
        save_tensors(tensors, path, metadata)

    def _place(self, request: RecordedRequest) -> int:
        place = self._requests.setdefault(request.request_id, len(self._recorded))
        if place == len(self._recorded):
            self._recorded.append(request)
        return place


def row_kind(rows: Any) -> str:
    """`numpy` or `torch`.

    Raises:
        UnsupportedPayloadError: `rows` is neither.
    """
    if isinstance(rows, np.ndarray):
        return "numpy"
    if type(rows).__module__.partition(".")[0] == "torch":
        return "torch"
    raise UnsupportedPayloadError(
        f"a recording holds rows of numpy arrays and torch tensors, got {type(rows).__name__}; convert them first"
    )


def row_size_bytes(rows: Any) -> int:
    """Bytes of one row of a block; at least 1."""
    row_kind(rows)
    count = int(np.prod(rows.shape[1:], dtype=np.int64))
    return max(1, count * int(rows.itemsize))
