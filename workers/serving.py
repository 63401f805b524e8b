"""One binding as its worker sees it: a ring on one side, a probe instance on the other.

Everything here runs on the worker's one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from undercurrent.core import (
    Coverage,
    Probe,
    ProbeResult,
    ProbeSignal,
    RequestContext,
)
from undercurrent.ipc import Batch, ConsumerRing
from undercurrent.ipc.layout import HAND_COUNT
from undercurrent.spec import ExtractionPoint, SampleBy
from undercurrent.workers import frames
from undercurrent.workers import messages as m
from undercurrent.workers.batch import RingBatch, make_record
from undercurrent.workers.meters import PointMeter
from undercurrent.workers.plans import USER_ACTIVATIONS, USER_ERRORS, USER_LATENCY_NS, USER_SIGNALS

_logger = logging.getLogger("undercurrent.workers")

_REFUSALS = ("block_timeout", "no_memory", "unsupported", "too_large")


class ProbeMaker(Protocol):
    """What a binding needs of a `ProbeFactory`."""

    def spawn(self, request_id: str, extraction_point_name: str, **extra: Any) -> Probe:
        """Returns a new probe instance."""


class SignalTaker(Protocol):
    """Where a binding's signals go: the sinks of the worker."""

    def take_signal(self, binding: ServedBinding, header: Any, signal: ProbeSignal) -> None:
        """Called once per signal, in the order of the records."""

    def send(self, frame: m.Frame) -> None:
        """Sends `frame` to the engine, behind everything said before it."""


class ServedBinding:
    """Owns one probe instance; `serve` feeds it from the ring, `finish` asks it for its verdict."""

    def __init__(
        self,
        *,
        binding_id: int,
        request_id: str,
        point: ExtractionPoint,
        ring: ConsumerRing,
        restarts: int,
        reasons: tuple[str, ...],
        taker: SignalTaker,
        note_call: Callable[[int], None],
        meter: PointMeter,
    ) -> None:
        """`note_call(binding_id)` is called before each call of user code, for the watch over hung probes.

        `meter` belongs to the worker's thread and to all its bindings of the point.
        """
        self.meter = meter
        self.binding_id = binding_id
        self.request_id = request_id
        self.point = point
        self.ring = ring
        self.context: RequestContext | None = None
        self.start_error: BaseException | None = None
        self.model: str | None = None
        """The model's name, where the engine told it."""
        self.is_ending = False
        self.drain_until: float | None = None
        self.activations = 0
        self.errors = 0
        self.latency_ns = 0
        self.signals = 0
        self._restarts = restarts
        self._reasons = list(reasons)
        if point.sample is not None and point.sample.by == SampleBy.RECORD:
            self._reasons.append("sampled")  # what was left out never came here
        self._taker = taker
        self._probe: Probe | None = None
        self._is_batching = False
        self._batch_max = min(point.batch or HAND_COUNT, HAND_COUNT)
        self._is_in_place = False
        self._note_call = note_call
        self._batch_number = 0
        for index in (USER_ACTIVATIONS, USER_ERRORS, USER_LATENCY_NS, USER_SIGNALS):
            ring.set_user(index, 0)  # a predecessor's counts are kept by the engine

    def start(self, factory: ProbeMaker, context: RequestContext) -> None:
        """Builds the probe and calls its `on_start`; what they raise is kept in `start_error`."""
        self.context = context
        model = context.prompt_metadata.get("model") if context.prompt_metadata else None
        self.model = model if isinstance(model, str) else None
        try:
            self._note_call(self.binding_id)
            probe = factory.spawn(self.request_id, self.point.name, **self.point.probe_args)
            probe.on_start(context)
        except BaseException as error:
            self.start_error = error
            self.add_reason("start_error")
            _logger.exception("probe of point %r of request %r did not start", self.point.name, self.request_id)
            return
        self._probe = probe
        self._is_batching = type(probe).on_activations is not Probe.on_activations
        self._is_in_place = bool(type(probe).reads_in_place)

    def add_reason(self, reason: str) -> None:
        """Adds a coverage reason once."""
        if reason not in self._reasons:
            self._reasons.append(reason)

    def number_of(self, header: Any) -> int:
        """The record's number within the binding, from 0; a ring counts from its `queue_depth` on."""
        return int(header["seq"]) - self.ring.queue_depth

    def serve(self, slice_until_ns: int) -> bool:
        """Handles waiting records until the ring is empty or the slice is over; True when records are left.

        Raises:
            RingCorruptError: the ring holds nonsense; the binding cannot go on.
        """
        if self.drain_until is None:
            self.drain_until = self.ring.asked_until
        while True:
            if self._is_past_drain():
                if self.ring.statistics().waiting:
                    self.add_reason("drain_timeout")
                return False
            batch = self.ring.take(self._batch_max)
            if batch is None:
                return False
            try:
                self._handle(batch)
            finally:
                self.ring.finish(batch)
            if batch.held:
                self._stop_reading_in_place()
            if time.monotonic_ns() >= slice_until_ns:
                return True

    def _stop_reading_in_place(self) -> None:
        """A view outlived its call: its slot stays with it, and the probe gets copies from now on."""
        self._is_in_place = False
        _logger.warning(
            "probe of point %r keeps a view beyond its call, request %r; it gets copies from now on. Copy what is kept,"
            " or leave `reads_in_place` out",
            self.point.name,
            self.request_id,
        )

    def finish(self) -> ProbeResult:
        """Calls `on_end` and returns the result with its coverage; never raises."""
        result = self._final_result()
        metadata = dict(result.metadata) if isinstance(result.metadata, dict) else {"metadata": result.metadata}
        metadata["coverage"] = self.coverage().to_dict()
        result.metadata = metadata
        return result

    def coverage(self) -> Coverage:
        """What the verdict is based on, from the ring's own counters."""
        whole_count = None if self._reasons or self.errors or self._restarts else self.ring.whole_count()
        if whole_count is not None:  # as most requests end, and in a fraction of the time
            return Coverage(routed=whole_count, seen=whole_count)
        counts = self.ring.statistics()
        reasons = [*self._reasons, *(name for name in _REFUSALS if getattr(counts, name))]
        if counts.dropped_oldest + counts.dropped_newest:
            reasons.append("dropped")
        return Coverage.settle(
            routed=counts.produced,
            seen=counts.consumed if self.start_error is None else 0,
            dropped=counts.dropped + counts.waiting,
            errors=self.errors,
            lost=counts.lost + counts.in_hand,
            restarts=self._restarts,
            reasons=reasons,
        )

    @property
    def is_over(self) -> bool:
        """Whether the verdict is due: after `serve` has said that nothing is left."""
        if self.is_ending:
            return True
        # A ring that was empty a moment ago may have got its last record, and its end, since.
        return (self.ring.at_end or self._is_past_drain()) and self.ring.asked_until is not None

    def _is_past_drain(self) -> bool:
        return self.drain_until is not None and time.monotonic() >= self.drain_until

    def _handle(self, batch: Batch) -> None:
        if self._probe is None:
            return
        count = len(batch)
        waited_ns = self._sample_wait(batch, count)
        frames.load_libraries_of(batch)
        started_ns = time.perf_counter_ns()
        if self._is_batching:
            self._handle_many(batch)
        else:
            for index in range(count):
                self._handle_one(batch, index)
        self.latency_ns += time.perf_counter_ns() - started_ns
        self.activations += count
        self.meter.note_wait(waited_ns, count)  # behind the calls, which somebody waits for
        set_user = self.ring.set_user
        set_user(USER_ACTIVATIONS, self.activations)
        set_user(USER_LATENCY_NS, self.latency_ns)
        set_user(USER_SIGNALS, self.signals)

    def _sample_wait(self, batch: Batch, count: int) -> int:
        """How long one record of a batch has waited, in ns; it stands for all of them, in each batch another one."""
        self._batch_number += 1
        return batch.age_ns(self._batch_number % count)

    def _handle_one(self, batch: Batch, index: int) -> None:
        assert self._probe is not None
        started_ns = 0
        try:
            record = make_record(batch, index, self.request_id, self.point, in_place=self._is_in_place)
            self._note_call(self.binding_id)
            started_ns = time.monotonic_ns()
            signal = self._probe.on_activation(record)
        except BaseException as error:
            if started_ns:
                self.meter.note_call(time.monotonic_ns() - started_ns)
            self._note_error(_header_of(batch, index), error)
            return
        self.meter.note_call(time.monotonic_ns() - started_ns)
        if signal is not None:
            self._taker.take_signal(self, _header_of(batch, index), signal)

    def _handle_many(self, batch: Batch) -> None:
        assert self._probe is not None
        activations = RingBatch(
            batch, self.request_id, self.point, in_place=self._is_in_place, first=self.ring.queue_depth
        )
        started_ns = time.monotonic_ns()
        try:
            self._note_call(self.binding_id)
            signals = self._probe.on_activations(activations)
        except BaseException as error:
            self.errors += len(batch) - 1
            self._note_error(_header_of(batch, 0), error)
            return
        finally:
            self.meter.note_call(time.monotonic_ns() - started_ns, len(batch))
            activations.detach()
        for index, signal in zip(range(len(batch)), signals or (), strict=False):
            if signal is not None:
                self._taker.take_signal(self, _header_of(batch, index), signal)

    def _note_error(self, header: Any, error: BaseException) -> None:
        """Counts and logs what a probe raised; `SystemExit` and `KeyboardInterrupt` end no worker either."""
        self.errors += 1
        self.ring.set_user(USER_ERRORS, self.errors)
        _logger.error(
            "probe of point %r raised %s on record %d of request %r",
            self.point.name,
            type(error).__name__,
            self.number_of(header),
            self.request_id,
            exc_info=error,
        )
        self._taker.take_signal(
            self,
            header,
            ProbeSignal(
                metadata={
                    "router_error": True,
                    "error_type": type(error).__name__,
                    "error": str(error),
                    "extraction_point_name": self.point.name,
                }
            ),
        )

    def _final_result(self) -> ProbeResult:
        empty = ProbeResult(self.request_id, self.point.name, None)
        if self._probe is None or self.context is None:
            if self.start_error is not None:
                empty.metadata = {"error_type": type(self.start_error).__name__, "error": str(self.start_error)}
            return empty
        try:
            self._note_call(self.binding_id)
            # Annotated wider than `Probe.on_end` says: 0.1.0 passed on whatever a probe returned.
            result: object = self._probe.on_end(self.context)
        except BaseException as error:
            _logger.error("`on_end` of point %r raised, request %r", self.point.name, self.request_id, exc_info=error)
            self.add_reason("probe_error")
            empty.metadata = {"error_type": type(error).__name__, "error": str(error)}
            return empty
        if isinstance(result, ProbeResult):
            return result
        empty.verdict = result
        return empty


def _header_of(batch: Batch, index: int) -> dict[str, int]:
    """What names a record where a signal of it is told."""
    _, sequence, layer, token_pos, _, _ = batch.facts(index)
    return {"seq": sequence, "layer": layer, "token_pos": token_pos}
