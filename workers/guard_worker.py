"""The guard's side of a bounded inline point: the worker's loop, with an answer to every record.

Runs in a process of its own at the engine's priority, or in a thread of the engine's in `worker_mode="thread"`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from undercurrent.core import ProbeSignal
from undercurrent.errors import ProbingTypeError, WorkerError
from undercurrent.ipc import Batch
from undercurrent.ipc.layout import FLAG_IS_GENERATED, HEADER_FORMAT
from undercurrent.spec import ActivationRecord
from undercurrent.workers import frames
from undercurrent.workers import messages as m
from undercurrent.workers.answers import ELSEWHERE, ERROR, encode_answer, encode_error
from undercurrent.workers.nursery_frames import SpawnOrder
from undercurrent.workers.plans import LOADING, USER_ACTIVATIONS, USER_LATENCY_NS
from undercurrent.workers.process import serve
from undercurrent.workers.serving import ServedBinding
from undercurrent.workers.tensors import load_torch
from undercurrent.workers.worker import Worker

__all__ = ["GuardWorker", "run"]

_read_header = struct.Struct(HEADER_FORMAT).unpack


class AnsweringBinding(ServedBinding):
    """A binding whose every record is answered, before anything else is done about it.

    Records come one at a time, as they do to every inline probe.
    """

    def _handle(self, batch: Batch) -> None:
        raw = batch.headers
        sequence, *_, token_pos, layer, flags, timestamp, published_ns, _ = _read_header(raw)
        probe, taken_ns = self._probe, time.monotonic_ns()
        if probe is None:
            error = self.start_error or WorkerError("the probe was never started")
            self._answer(sequence, ERROR, encode_error(error))
            return
        header = {"seq": sequence, "layer": layer, "token_pos": token_pos}
        called_ns = taken_ns
        try:
            frames.load_libraries(raw)
            tensor = frames.rebuild(raw, batch.copy(0))
            point, is_generated = self.point, bool(flags & FLAG_IS_GENERATED)
            record = ActivationRecord(
                self.request_id, point.name, layer, token_pos, point.tensor_type, tensor, is_generated, timestamp
            )
            self._note_call(self.binding_id)
            called_ns = time.monotonic_ns()
            signal = probe.on_activation(record)
            if signal is not None and not isinstance(signal, ProbeSignal):
                raise ProbingTypeError(
                    f"`on_activation` must return a ProbeSignal or None, got {type(signal).__name__}"
                )
            kind, data = encode_answer(signal)
        except BaseException as error:
            self._answer(sequence, ERROR, encode_error(error))
            self._count(called_ns, taken_ns - published_ns)
            self._note_error(header, error)
            return
        self._answer(sequence, kind, data)
        self._count(called_ns, taken_ns - published_ns)
        if signal is not None:
            self._taker.take_signal(self, header, signal)

    def _count(self, called_ns: int, waited_ns: int) -> None:
        call_ns = time.monotonic_ns() - called_ns
        self.meter.note_wait(waited_ns, 1)
        self.meter.note_call(call_ns)
        self.latency_ns += call_ns
        self.activations += 1
        self.ring.set_user(USER_ACTIVATIONS, self.activations)
        self.ring.set_user(USER_LATENCY_NS, self.latency_ns)

    def _answer(self, sequence: int, kind: int, data: bytes) -> None:
        if not self.ring.answer(sequence, kind, data):
            self._taker.send(m.Answered(self.binding_id, sequence, kind, data))
            self.ring.answer(sequence, ELSEWHERE, b"")


class GuardWorker(Worker):
    """A worker that somebody waits for: it answers, and it parks where others nap."""

    binding_type = AnsweringBinding

    def run(self) -> None:
        """See `Worker`."""
        self._lane.never_nap()
        super().run()

    def _take_frame(self, frame: m.ToWorker) -> None:
        if not isinstance(frame, (m.LoadTorch, m.LoadPoint)):
            super()._take_frame(frame)
            return
        # Imports take seconds, in which records wait: the engine must not take that for a guard that is stuck.
        self._lane.set_activity(LOADING)
        if isinstance(frame, m.LoadTorch):
            load_torch()
        else:
            super()._take_frame(frame)
        self._lane.set_activity(0)


def run(order: SpawnOrder, fds: Sequence[int]) -> None:
    """The entry of a guard process; see `process.run`."""
    serve(fds, GuardWorker)
