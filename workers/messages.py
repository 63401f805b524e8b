"""Frames of the lane's socket: what an engine process and a worker say to each other besides activations.

Every frame is one msgspec struct, encoded as a msgpack array with a tag. Activations never travel here.
See `workers/README.md` for the order in which they are sent.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A message on a lane's socket."""


class LoadPoint(Frame, frozen=True, tag="load"):
    """Engine to worker: the probe definition that later `OpenBinding` frames name by `point_id`."""

    point_id: int
    packed: bytes
    """What `transfer.pack_point` made; empty in thread mode, where the definition is handed over in memory."""


class UnloadPoint(Frame, frozen=True, tag="unload"):
    """Engine to worker: no binding uses `point_id` any more, forget it."""

    point_id: int


class OpenBinding(Frame, frozen=True, tag="open"):
    """Engine to worker: serve the ring `ring_index` with a new probe instance."""

    binding_id: int
    point_id: int
    ring_index: int
    queue_depth: int
    policy: int
    request_id: str
    context: bytes
    restarts: int
    reasons: tuple[str, ...]
    """Coverage reasons known before this worker took over, such as `worker_died`."""


class LoadTorch(Frame, frozen=True, tag="torch"):
    """Engine to guard: import torch now, as records will hold tensors and have a deadline."""


class ConfirmStart(Frame, frozen=True, tag="confirm"):
    """Engine to worker: answer `Started` or `StartFailed` for a binding opened before."""

    binding_id: int


class EndBinding(Frame, frozen=True, tag="end"):
    """Engine to worker: the ring is closed; drain it, call `on_end`, answer `Finished`."""

    binding_id: int
    drain_until: float | None
    """`time.monotonic()` (one clock for all processes of a boot) after which waiting records are left unseen."""


class DropBinding(Frame, frozen=True, tag="drop"):
    """Engine to worker: forget the binding without a result, answer `Dropped`."""

    binding_id: int


class SetSinks(Frame, frozen=True, tag="sinks"):
    """Engine to worker: the sinks of this worker from now on."""

    handles: bytes
    """Sink handles as `sink_transfer.join_handles` makes them, which the worker opens and writes itself."""
    is_relaying: bool
    """Whether the engine's process has sink objects that want every signal and result as frames."""


class FlushSinks(Frame, frozen=True, tag="flush"):
    """Engine to worker: serve what waits in the rings now, flush the sinks, answer `Flushed`."""

    token: int


class StopWorker(Frame, frozen=True, tag="stop"):
    """Engine to worker: end after the record in hand."""


class WorkerReady(Frame, frozen=True, tag="ready"):
    """Worker to engine: the loop runs."""

    pid: int


class Started(Frame, frozen=True, tag="started"):
    """Worker to engine: the probe was built and its `on_start` returned."""

    binding_id: int


class StartFailed(Frame, frozen=True, tag="start_failed"):
    """Worker to engine: the probe's constructor or `on_start` raised."""

    binding_id: int
    error_type: str
    message: str
    packed: bytes
    """The pickled exception where it can be pickled, else empty."""


class Signalled(Frame, frozen=True, tag="signal"):
    """Worker to engine: one signal of one record, for the sink objects of the engine's process."""

    binding_id: int
    sequence: int
    layer: int
    token_pos: int
    signal: bytes


class Answered(Frame, frozen=True, tag="answered"):
    """Guard to engine: the answer to one record, which no answer cell can hold."""

    binding_id: int
    sequence: int
    kind: int
    data: bytes


class Finished(Frame, frozen=True, tag="finished"):
    """Worker to engine: the binding is over, its ring is detached, its sinks are flushed."""

    binding_id: int
    result: bytes
    measured: bytes = b""
    """What the worker measured of the binding's point since it last said: `PointMeter.take`."""


class Dropped(Frame, frozen=True, tag="dropped"):
    """Worker to engine: the binding of a `DropBinding` is gone and its ring is detached."""

    binding_id: int


class Flushed(Frame, frozen=True, tag="flushed"):
    """Worker to engine: everything a `FlushSinks` asked for is written."""

    token: int


class MeasuredPoint(Frame, frozen=True, tag="measured"):
    """Worker to engine, once a second at most: what it measured of a point since it last said."""

    point: str
    probe: str
    mode: str
    words: bytes
    """`PointMeter.take`."""


class MeasuredSink(Frame, frozen=True, tag="measured_sink"):
    """Worker to engine, once a second at most: what it measured of a sink since it last said."""

    sink: str
    words: bytes
    """`SinkMeter.take`."""
    events: dict[str, int]
    """What the sink counted itself, such as lines it gave up."""


class Logged(Frame, frozen=True, tag="log"):
    """Worker to engine: a log event, emitted again under the same logger in the engine's process."""

    logger: str
    level: int
    message: str


ToWorker: TypeAlias = (
    LoadPoint
    | UnloadPoint
    | LoadTorch
    | OpenBinding
    | ConfirmStart
    | EndBinding
    | DropBinding
    | SetSinks
    | FlushSinks
    | StopWorker
)
ToEngine: TypeAlias = (
    WorkerReady
    | Started
    | StartFailed
    | Signalled
    | Answered
    | Finished
    | Dropped
    | Flushed
    | MeasuredPoint
    | MeasuredSink
    | Logged
)

_encoder = msgspec.msgpack.Encoder()
worker_decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
engine_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


def encode_frame(frame: Frame) -> bytes:
    """Returns `frame` with its length in front: 4 bytes, little-endian, then the msgpack body."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(4, "little") + body
