"""The worker's loop: one function over a lane, the same in a process of its own and in a thread of the engine's.

It serves ready rings in turn, a slice each, reads the lane's socket when mail is announced, and sleeps on the doorbell.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import socket
import time
from collections.abc import Callable, Mapping

from undercurrent.core import Probe, RequestContext
from undercurrent.errors import RingError
from undercurrent.ipc import ConsumerLane
from undercurrent.spec import ExtractionPoint
from undercurrent.workers import messages as m
from undercurrent.workers.channel import Channel, ChannelClosedError
from undercurrent.workers.contexts import decode_context
from undercurrent.workers.last_words import BY_FRAME, PLAIN, VALUE, encode_plain, encode_value_word
from undercurrent.workers.measures import PointKey
from undercurrent.workers.meters import PointMeter
from undercurrent.workers.outlets import Outlets
from undercurrent.workers.serving import ProbeMaker, ServedBinding
from undercurrent.workers.sink_transfer import unpack_handles
from undercurrent.workers.transfer import unpack_bare_point, unpack_point

_logger = logging.getLogger("undercurrent.workers")

SLICE_NS = 3_000_000
"""A binding is served this long before its neighbours get their turn."""
PARK_S = 1.0
"""The longest sleep; at its end the worker looks whether the engine still lives."""
ORPHAN_DRAIN_S = 2.0
"""How long a worker whose engine is gone goes on with what waits in its rings."""


Definitions = Mapping[int, tuple[ProbeMaker, ExtractionPoint]]


class Worker:
    """Serves one lane until it is told to stop or its engine is gone. Not thread-safe; `run()` owns it."""

    binding_type: type[ServedBinding] = ServedBinding

    def __init__(
        self,
        lane: ConsumerLane,
        sock: socket.socket,
        *,
        engine_pidfd: int | None,
        definitions: Definitions | None = None,
        is_pickle_allowed: bool = True,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """`engine_pidfd` is None in thread mode, where `definitions` holds the probes themselves.

        `prepare` is called when the engine was told that the worker runs, before the first look at mail and rings.
        """
        self._prepare = prepare
        self._lane = lane
        self._channel: Channel[m.ToWorker] = Channel(sock, m.worker_decoder)
        self._engine_poll = select.poll()
        if engine_pidfd is not None:
            self._engine_poll.register(engine_pidfd, select.POLLIN)
        self._shared_definitions = definitions
        self._definitions: dict[int, tuple[ProbeMaker, ExtractionPoint]] = {}
        self._meters: dict[int, PointMeter] = {}  # by point id
        self._is_pickle_allowed = is_pickle_allowed
        self._bindings: dict[int, ServedBinding] = {}
        self._by_ring: dict[int, ServedBinding] = {}
        self._mail_seen = -1
        self._is_stopping = False
        self.outlets = Outlets(self._channel, self._is_engine_gone, is_pickle_allowed=is_pickle_allowed)

    def run(self) -> None:
        """Loops until stopped; returns after every binding has been closed one way or the other."""
        self.outlets.send(m.WorkerReady(os.getpid()))
        if self._prepare is not None:
            self._prepare()
        last_look = time.monotonic()
        try:
            while not self._is_stopping:
                self._read_mail()
                is_busy = self._serve_ready()
                if self._channel.has_unsent:
                    self.outlets.push(0.05)
                if not is_busy and not self._is_stopping:
                    self._sleep()
                now = time.monotonic()
                if now - last_look >= PARK_S:
                    last_look = now
                    self._report_measures()
                    if self._is_engine_gone():
                        break
        except ChannelClosedError:
            pass
        if not self._is_stopping:
            self._close_orphans()
        self._close()

    def _sleep(self) -> None:
        """Waits for records or mail, at most `PARK_S`."""
        self._lane.wait(PARK_S)

    # ---- mail --------------------------------------------------------------------------------------------------

    def _read_mail(self) -> None:
        mail = self._lane.mail
        if mail == self._mail_seen:
            return
        for frame in self._channel.receive():
            self._take_frame(frame)
        self._mail_seen = mail
        self.outlets.flush()

    def _take_frame(self, frame: m.ToWorker) -> None:
        match frame:
            case m.OpenBinding():
                self._open(frame)
            case m.EndBinding():
                self._end(frame)
            case m.LoadPoint():
                self._load(frame)
            case m.UnloadPoint():
                self._report_point(frame.point_id)
                self._definitions.pop(frame.point_id, None)
                self._meters.pop(frame.point_id, None)
            case m.DropBinding():
                self._drop(frame.binding_id)
            case m.ConfirmStart():
                self._confirm(frame.binding_id)
            case m.SetSinks():
                self.outlets.set_sinks(unpack_handles(frame.handles), frame.is_relaying)
            case m.FlushSinks():
                self._flush(frame.token)
            case m.StopWorker():
                self._is_stopping = True

    def _load(self, frame: m.LoadPoint) -> None:
        if self._shared_definitions is not None:
            self._definitions[frame.point_id] = self._shared_definitions[frame.point_id]
            return
        try:
            self._definitions[frame.point_id] = unpack_point(frame.packed)
        except BaseException as error:
            _logger.exception("a probe definition could not be loaded")
            self._definitions[frame.point_id] = (_RaisingFactory(error), unpack_bare_point(frame.packed))

    def _open(self, frame: m.OpenBinding) -> None:
        factory, point = self._definitions[frame.point_id]
        ring = self._lane.attach_ring(
            frame.ring_index,
            queue_depth=frame.queue_depth,
            policy=frame.policy,
            generation=frame.binding_id,
        )
        try:
            context = decode_context(frame.request_id, frame.context, pickle_allowed=self._is_pickle_allowed)
        except BaseException as error:  # whatever unpickling a value of the user's raises
            factory, context = _RaisingFactory(error), RequestContext(frame.request_id, {}, None)
        binding = self.binding_type(
            binding_id=frame.binding_id,
            request_id=frame.request_id,
            point=point,
            ring=ring,
            restarts=frame.restarts,
            reasons=frame.reasons,
            taker=self.outlets,
            note_call=self._lane.set_activity,
            meter=self._meters.setdefault(frame.point_id, PointMeter()),
        )
        self._bindings[frame.binding_id] = binding
        self._by_ring[frame.ring_index] = binding
        binding.start(factory, context)
        self._lane.set_activity(0)
        self._lane.mark_ready(frame.ring_index)

    def _confirm(self, binding_id: int) -> None:
        binding = self._bindings.get(binding_id)
        error = binding.start_error if binding is not None else None
        if error is None:
            self.outlets.send(m.Started(binding_id))
        else:
            self.outlets.send(m.StartFailed(binding_id, type(error).__name__, str(error), _pickled(error)))

    def _end(self, frame: m.EndBinding) -> None:
        binding = self._bindings.get(frame.binding_id)
        if binding is None:
            return
        binding.is_ending = True
        binding.drain_until = frame.drain_until
        if self._serve(binding):
            self._lane.mark_ready(binding.ring.ring_index)

    def _drop(self, binding_id: int) -> None:
        binding = self._bindings.get(binding_id)
        if binding is not None:
            self._forget(binding)
        self.outlets.send(m.Dropped(binding_id))

    def _flush(self, token: int) -> None:
        for binding in list(self._bindings.values()):
            # What waits now, and not what a busy engine goes on to route: that would never end.
            counts = binding.ring.statistics()
            goal = counts.consumed + counts.waiting
            while self._serve(binding):
                if binding.ring.statistics().consumed >= goal:
                    self._lane.mark_ready(binding.ring.ring_index)
                    break
        self.outlets.flush()
        self._report_measures()
        self.outlets.send(m.Flushed(token))

    # ---- rings -------------------------------------------------------------------------------------------------

    def _serve_ready(self) -> bool:
        """Gives every ready ring its slice; True when some ring was ready."""
        ready = self._lane.take_ready()
        # Mail that was sent before these records were published holds for them: a sink attached just now, say.
        self._read_mail()
        for ring_index in ready:
            binding = self._by_ring.get(ring_index)
            if binding is not None and self._serve(binding):
                self._lane.mark_ready(ring_index)
        if ready:
            self.outlets.flush()
        return bool(ready)

    def _serve(self, binding: ServedBinding) -> bool:
        """Serves one slice; True when records are left. Finishes a binding that is ending and drained."""
        try:
            has_more = binding.serve(time.monotonic_ns() + SLICE_NS)
            if not has_more and binding.is_over:
                self._finish(binding)
            return has_more
        except RingError:
            _logger.exception("ring of request %r, point %r is corrupt", binding.request_id, binding.point.name)
            binding.add_reason("unseen")
            self._finish(binding)
            return False
        finally:
            self._lane.set_activity(0)

    def _finish(self, binding: ServedBinding) -> None:
        result = binding.finish()
        self.outlets.take_result(binding, result)
        self.outlets.write_sinks()
        measured = binding.meter.take()
        self._let_go(binding)
        ring = binding.ring
        is_asked = ring.asked_until is not None
        if is_asked and not self.outlets.is_relaying:
            plain = encode_plain(result, measured)
            if plain is not None and ring.answer_end(PLAIN, plain):
                return
        encoded = self.outlets.encode_result(binding, result)
        if is_asked:
            if not self.outlets.is_relaying and ring.answer_end(VALUE, encode_value_word(encoded, measured)):
                return
            ring.answer_end(BY_FRAME, b"")
        ring.detach()
        self.outlets.queue(m.Finished(binding.binding_id, encoded, measured))

    def _forget(self, binding: ServedBinding) -> None:
        self._let_go(binding)
        binding.ring.detach()

    def _let_go(self, binding: ServedBinding) -> None:
        self._bindings.pop(binding.binding_id, None)
        if self._by_ring.get(binding.ring.ring_index) is binding:
            del self._by_ring[binding.ring.ring_index]

    # ---- measures ----------------------------------------------------------------------------------------------

    def _report_measures(self) -> None:
        """Tells the engine what was measured since it was last told."""
        for point_id in self._meters:
            self._report_point(point_id)
        self.outlets.report_measures()

    def _report_point(self, point_id: int) -> None:
        meter = self._meters.get(point_id)
        if meter is not None and meter.is_dirty:
            self.outlets.queue(m.MeasuredPoint(*PointKey.of(self._definitions[point_id][1]), meter.take()))

    # ---- the end -----------------------------------------------------------------------------------------------

    def _is_engine_gone(self) -> bool:
        return bool(self._engine_poll.poll(0))

    def _close_orphans(self) -> None:
        """The engine is gone: drains what it left, within a bound, and writes an unfinished result per binding."""
        until = time.monotonic() + ORPHAN_DRAIN_S
        for binding in list(self._bindings.values()):
            binding.drain_until = until
            binding.add_reason("producer_gone")
            try:
                while binding.serve(time.monotonic_ns() + SLICE_NS):
                    pass
            except RingError:
                binding.add_reason("unseen")
            self.outlets.take_result(binding, binding.finish())
            self._forget(binding)
        self.outlets.flush()

    def _close(self) -> None:
        for binding in list(self._bindings.values()):
            self._forget(binding)
        self._report_measures()
        self.outlets.close()
        self._lane.close()
        self._channel.close()


class _RaisingFactory:
    """Stands for a definition that could not be loaded: each of its bindings fails to start with that error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def spawn(self, request_id: str, extraction_point_name: str, **_: object) -> Probe:
        raise self._error


def _pickled(error: BaseException) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # an exception class that cannot travel arrives by its name and message
        return b""
    return data


def run_in_thread(worker: Worker, on_exit: Callable[[], None]) -> None:
    """Body of the thread of `worker_mode="thread"`."""
    try:
        worker.run()
    finally:
        on_exit()
