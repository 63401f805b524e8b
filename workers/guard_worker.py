"""The guard's side of a bounded inline point: the worker's loop, with an answer to every record.

Runs in a process of its own at the engine's priority, or in a thread of the engine's in `worker_mode="thread"`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from undercurrent.core import RequestContext
from undercurrent.errors import WorkerError
from undercurrent.ipc import Batch
from undercurrent.workers import frames
from undercurrent.workers import messages as m
from undercurrent.workers.answers import ELSEWHERE, ERROR, encode_answer, encode_error
from undercurrent.workers.batch import make_record
from undercurrent.workers.nursery_frames import SpawnOrder
from undercurrent.workers.process import serve
from undercurrent.workers.serving import ProbeMaker, ServedBinding
from undercurrent.workers.tensors import load_torch
from undercurrent.workers.worker import Worker

__all__ = ["GuardWorker", "run"]


class AnsweringBinding(ServedBinding):
    """A binding whose every record is answered, before anything else is done about it."""

    def start(self, factory: ProbeMaker, context: RequestContext) -> None:
        """See `ServedBinding`; records come one at a time, as they do to every inline probe."""
        super().start(factory, context)
        self._is_batching = False

    def _handle(self, batch: Batch) -> None:
        if self._probe is None:
            error = self.start_error or WorkerError("the probe was never started")
            self._answer(int.from_bytes(batch.headers[:8], "little"), ERROR, encode_error(error))
        super()._handle(batch)

    def _handle_one(self, batch: Batch, header: Any, index: int) -> None:
        assert self._probe is not None
        sequence = int(header["seq"])
        started_ns = time.monotonic_ns()
        try:
            tensor = frames.rebuild(header, batch.copy(index))
            record = make_record(header, tensor, self.request_id, self.point)
            self._note_call(self.binding_id)
            started_ns = time.monotonic_ns()
            signal = self._probe.on_activation(record)
            kind, data = encode_answer(signal)
        except BaseException as error:
            self._answer(sequence, ERROR, encode_error(error))
            self.meter.note_call(time.monotonic_ns() - started_ns)
            self._note_error(header, error)
            return
        self._answer(sequence, kind, data)
        self.meter.note_call(time.monotonic_ns() - started_ns)
        if signal is not None:
            self._taker.take_signal(self, header, signal)

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
        if isinstance(frame, m.LoadTorch):
            load_torch()
        else:
            super()._take_frame(frame)


def run(order: SpawnOrder, fds: Sequence[int]) -> None:
    """The entry of a guard process; see `process.run`."""
    serve(fds, GuardWorker)
