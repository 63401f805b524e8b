"""The format of a recording: a folder of activations that were routed.

`manifest.json` is written first, and again when the recording is complete. `shard-000000.safetensors` onwards are
renamed into place when they are whole, so that a run which is cut off leaves whole shards. Inside a shard, `rows.0`,
`rows.1` … hold the activations to the bit, one block `(records, …)` per dtype and shape; the columns in `COLUMNS` say
for each record, in the order of routing, whose it is; the safetensors metadata holds a `ShardIndex` as JSON under
`index`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

__all__ = [
    "COLUMNS",
    "FORMAT",
    "MANIFEST_NAME",
    "SHARD_PATTERN",
    "VERSION",
    "Manifest",
    "RecordedRequest",
    "RequestEvent",
    "ShardIndex",
    "TensorName",
]

FORMAT = "undercurrent-recording"
VERSION = 1
MANIFEST_NAME = "manifest.json"
SHARD_PATTERN = "shard-*.safetensors"
COLUMNS: dict[str, np.dtype[Any]] = {
    "step": np.dtype(np.int64),
    "request": np.dtype(np.int32),
    "layer": np.dtype(np.int32),
    "tensor_type": np.dtype(np.int32),
    "position": np.dtype(np.int64),
    "is_generated": np.dtype(np.uint8),
    "timestamp": np.dtype(np.float64),
    "block": np.dtype(np.int32),
    "row": np.dtype(np.int64),
}
"""One entry per record. `request`, `tensor_type` and `block` count in the lists of the `ShardIndex`; `step` counts the
engine's steps in the recording; `timestamp` is seconds since the epoch."""


class TensorName(msgspec.Struct, frozen=True):
    """A tensor of which a recording holds rows."""

    layer: int
    tensor_type: str


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request of a recording."""

    request_id: str
    prompt_len: int
    prompt: str | None = None
    """Kept only where the recorder was asked to."""


class RequestEvent(msgspec.Struct, frozen=True, array_like=True):
    """A request began or ended before record `place` of its shard."""

    place: int
    request: int
    is_end: bool


class ShardIndex(msgspec.Struct, frozen=True):
    """What the columns of a shard count in."""

    tensor_types: tuple[str, ...]
    requests: tuple[RecordedRequest, ...]
    events: tuple[RequestEvent, ...]
    kinds: tuple[str, ...]
    """`numpy` or `torch` for each block: what its rows were."""


class Manifest(msgspec.Struct, frozen=True):
    """What a recording is of."""

    format: str
    version: int
    model: str
    started_at: float
    """Seconds since the epoch."""
    spec: dict[str, Any]
    """The spec whose positions were recorded."""
    tensors: tuple[TensorName, ...]
    is_complete: bool = False
    """Whether the recorder was closed; a recording that was cut off holds what its shards hold."""
    shard_count: int = 0
    record_count: int = 0
