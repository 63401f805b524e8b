"""The guard's side of a bounded inline point: the worker's loop, with an answer to every record.

Runs in a process of its own at the engine's priority, or in a thread of the engine's in `worker_mode="thread"`.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence

from undercurrent.core import ProbeSignal
from undercurrent.errors import ProbingTypeError, RingError, WorkerError
from undercurrent.ipc import Batch
from undercurrent.ipc.layout import FLAG_IS_GENERATED, HEADER_FORMAT
from undercurrent.spec import ActivationRecord
from undercurrent.workers import frames, kinds
from undercurrent.workers import messages as m
from undercurrent.workers.answers import ELSEWHERE, ERROR, NOTHING, encode_answer, encode_error
from undercurrent.workers.guard_place import CallersPlace, take_short_turns
from undercurrent.workers.nursery_frames import SpawnOrder
from undercurrent.workers.plans import LOADING, USER_ACTIVATIONS, USER_LATENCY_NS
from undercurrent.workers.process import serve
from undercurrent.workers.serving import ServedBinding
from undercurrent.workers.tensors import load_torch
from undercurrent.workers.worker import PARK_S, Worker

__all__ = ["GuardWorker", "run"]

_LOOK_NS = int(PARK_S * 1e9)
_TORCH_KINDS = (kinds.TORCH, kinds.PACKED_TENSOR)
_read_header = struct.Struct(HEADER_FORMAT).unpack


class AnsweringBinding(ServedBinding):
    """A binding whose every record is answered, before anything else is done about it.

    Records come one at a time, as they do to every inline probe.
    """

    last_call_ns = 0
    """How long the probe took over the record answered last."""

    def answer_waiting(self, until_ns: int) -> bool:
        """Answers what waits in the ring; False when more is to be done about it than that: see `Worker._serve`."""
        ring = self.ring
        if self.is_ending or ring.asked_until is not None:
            return False
        try:
            while (batch := ring.take(1)) is not None:
                try:
                    self._handle(batch)
                finally:
                    ring.finish(batch)
                if time.monotonic_ns() >= until_ns:
                    return False
        except RingError:
            return False
        finally:
            self._note_call(0)
        return True

    def _handle(self, batch: Batch) -> None:
        taken_ns = time.monotonic_ns()
        raw = batch.headers
        sequence, _, _, kind, _, _, _, _, _, _, _, token_pos, layer, flags, timestamp, published_ns, _ = _read_header(
            raw
        )
        probe = self._probe
        if probe is None:
            error = self.start_error or WorkerError("the probe was never started")
            self._answer(sequence, ERROR, encode_error(error))
            return
        called_ns = taken_ns
        try:
            if kind in _TORCH_KINDS:
                frames.load_libraries(raw)
            point = self.point
            record = ActivationRecord(
                self.request_id,
                point.name,
                layer,
                token_pos,
                point.tensor_type,
                frames.rebuild(raw, batch.copy(0)),
                bool(flags & FLAG_IS_GENERATED),
                timestamp,
            )
            self._note_call(self.binding_id)
            called_ns = time.monotonic_ns()
            signal = probe.on_activation(record)
            if signal is None:
                kind, data = NOTHING, b""
            elif isinstance(signal, ProbeSignal):
                kind, data = encode_answer(signal)
            else:
                raise ProbingTypeError(
                    f"`on_activation` must return a ProbeSignal or None, got {type(signal).__name__}"
                )
        except BaseException as error:
            call_ns = time.monotonic_ns() - called_ns
            self._answer(sequence, ERROR, encode_error(error))
            self._count(call_ns, taken_ns - published_ns)
            self._note_error({"seq": sequence, "layer": layer, "token_pos": token_pos}, error)
            return
        call_ns = time.monotonic_ns() - called_ns
        self._answer(sequence, kind, data)
        # The caller was woken on this CPU, and its turns are longer: it would wait for what follows.
        os.sched_yield()
        self._count(call_ns, taken_ns - published_ns)
        if signal is not None:
            self._taker.take_signal(self, {"seq": sequence, "layer": layer, "token_pos": token_pos}, signal)

    def _count(self, call_ns: int, waited_ns: int) -> None:
        self.last_call_ns = call_ns
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
    _by_ring: dict[int, AnsweringBinding]  # type: ignore[assignment]
    place: CallersPlace | None = None
    """What keeps it near its callers, in a process of its own."""

    def run(self) -> None:
        """See `Worker`."""
        self._lane.never_nap()
        super().run()

    def _sleep(self) -> None:
        """Sleeps and answers, in few steps, until there is something else to do or it is time to look around."""
        lane, rings, until_ns = self._lane, self._by_ring, time.monotonic_ns() + _LOOK_NS
        if self.place is not None:
            self.place.free_others()
        is_quiet = True
        while is_quiet and lane.wait(PARK_S):
            ready = lane.take_ready()
            # Mail that was sent before these records were published holds for them.
            is_quiet = lane.mail == self._mail_seen
            for index in ready:
                binding = rings.get(index)
                if binding is None:
                    continue
                if not (is_quiet and binding.answer_waiting(until_ns)):
                    is_quiet = False
                    lane.mark_ready(index)
                if self.place is not None:
                    self.place.note_caller(binding.ring.caller_cpu(), binding.last_call_ns)
            if self.outlets.has_unwritten:
                self.outlets.flush()

    def _take_frame(self, frame: m.ToWorker) -> None:
        if self.place is not None:  # constructors, `on_start` and `on_end` run, which may start threads and processes
            self.place.leave()
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


class CallersGuard(GuardWorker):
    """A guard in a process of its own, near those that wait for it."""

    def run(self) -> None:
        """See `Worker`."""
        self.place = CallersPlace()
        super().run()


def run(order: SpawnOrder, fds: Sequence[int]) -> None:
    """The entry of a guard process; see `process.run`."""
    take_short_turns()
    serve(fds, CallersGuard if order.threads == 1 else GuardWorker)
