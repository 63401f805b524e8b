"""Where a worker's signals and results go: sink handles written here, and frames for the engine's sink objects.

Everything here runs on the worker's one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from undercurrent.core import ProbeResult, ProbeSignal
from undercurrent.errors import ValuePathError
from undercurrent.sinks import ResultRecord, SignalRecord, takes_record
from undercurrent.sinks.counting import SinkCounts
from undercurrent.workers import messages as m
from undercurrent.workers.channel import Channel, ChannelClosedError
from undercurrent.workers.frames import encode_value
from undercurrent.workers.meters import SinkMeter
from undercurrent.workers.serving import ServedBinding

_logger = logging.getLogger("undercurrent.workers")

_PUSH_S = 0.25


class Outlets:
    """Owns the sinks of one worker. A sink that raises is logged and never stops a probe."""

    def __init__(
        self, channel: Channel[m.ToWorker], is_engine_gone: Callable[[], bool], *, is_pickle_allowed: bool
    ) -> None:
        self._channel = channel
        self._is_engine_gone = is_engine_gone
        self._is_pickle_allowed = is_pickle_allowed
        self._sinks: list[Any] = []
        self._meters: list[tuple[SinkMeter, SinkCounts]] = []  # of each sink
        self.is_relaying = False
        """Whether sink objects of the engine's process want every signal and result as frames."""
        self._frames: list[m.Frame] = []

    def set_sinks(self, sinks: Sequence[Any], is_relaying: bool) -> None:
        """Replaces the sinks; the old ones are flushed and closed first."""
        self._close_sinks()
        self._sinks = list(sinks)
        self._meters = [(SinkMeter(), SinkCounts(sink)) for sink in self._sinks]
        self.is_relaying = is_relaying
        for sink in self._sinks:
            self._guarded(sink, "begin_batch")

    def send(self, frame: m.Frame) -> None:
        """Sends `frame` behind everything said before it."""
        self._frames.append(frame)
        self._send_frames()

    def take_signal(self, binding: ServedBinding, header: Any, signal: ProbeSignal) -> None:
        """Hands one signal to every sink."""
        binding.signals += 1
        binding.meter.note_signal(signal)
        for index, sink in enumerate(self._sinks):
            if takes_record(sink, "signal"):
                record = SignalRecord(
                    binding.request_id,
                    binding.point.name,
                    signal,
                    sequence=binding.number_of(header),
                    layer=int(header["layer"]),
                    position=int(header["token_pos"]),
                    model=binding.model,
                )
                self._write(index, "write_signal_record", record)
            else:
                self._write(index, "write_signal", binding.request_id, binding.point.name, signal)
        if self.is_relaying:
            self._frames.append(
                m.Signalled(
                    binding.binding_id,
                    binding.number_of(header),
                    int(header["layer"]),
                    int(header["token_pos"]),
                    self._encode_signal(binding, signal),
                )
            )

    def take_result(self, binding: ServedBinding, result: ProbeResult) -> None:
        """Hands one result to the sinks written here; the engine's sink objects get it with `Finished`."""
        for index, sink in enumerate(self._sinks):
            if takes_record(sink, "result"):
                record = ResultRecord(binding.request_id, binding.point.name, result, model=binding.model)
                self._write(index, "write_result_record", record)
            else:
                self._write(index, "write_result", binding.request_id, binding.point.name, result)

    def encode_result(self, binding: ServedBinding, result: ProbeResult) -> bytes:
        """Returns the result as bytes; one that cannot cross becomes a result that says so, with its coverage."""
        try:
            return encode_value(result, pickle_allowed=self._is_pickle_allowed)
        except ValuePathError as error:
            _logger.error("result of point %r cannot cross to the engine: %s", binding.point.name, error)
            binding.add_reason("probe_error")
            metadata = {
                "error_type": type(error).__name__,
                "error": str(error),
                "coverage": binding.coverage().to_dict(),
            }
            stripped = ProbeResult(binding.request_id, binding.point.name, None, [], metadata)
            return encode_value(stripped, pickle_allowed=False)

    def queue(self, frame: m.Frame) -> None:
        """Sends `frame` with the next `flush` or `send`, so that the answers of one turn go out together."""
        self._frames.append(frame)

    @property
    def has_unwritten(self) -> bool:
        """Whether `flush` may have something to do."""
        return bool(self._frames or self._sinks)

    def flush(self) -> None:
        """Writes what the sinks hold back and sends the frames that wait."""
        self.write_sinks()
        self._send_frames()

    def write_sinks(self) -> None:
        """Writes what the sinks hold back."""
        for sink, (meter, _) in zip(self._sinks, self._meters, strict=True):
            started_ns = time.monotonic_ns()
            self._guarded(sink, "flush")
            if meter.has_unwritten:
                meter.note_write(time.monotonic_ns() - started_ns)
            self._guarded(sink, "begin_batch")

    def report_measures(self) -> None:
        """Tells the engine how the sinks here fare, with the next frames."""
        for sink, (meter, counts) in zip(self._sinks, self._meters, strict=True):
            events = counts.take()
            if events or meter.is_dirty:
                self._frames.append(m.MeasuredSink(type(sink).__name__, meter.take(), events))

    def push(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` for the socket to take what is unsent."""
        with suppress(ChannelClosedError):
            self._channel.send_all(time.monotonic() + timeout_s, self._is_engine_gone)

    def close(self) -> None:
        """Flushes and closes the sinks."""
        self.flush()
        self._close_sinks()
        self._send_frames()

    def _send_frames(self) -> None:
        if not self._frames:
            return
        frames, self._frames = self._frames, []
        try:
            if self._channel.send(*frames):
                return
        except ChannelClosedError:
            return  # nobody listens any more; the loop finds out by itself, and the sinks here are written all the same
        # No deadline: a slow sink object in the engine's process must slow this worker, so that the rings' overflow
        # policies count what is lost; the wait ends with the engine.
        with suppress(ChannelClosedError):
            while not self._channel.send_all(time.monotonic() + _PUSH_S, self._is_engine_gone):
                if self._is_engine_gone():
                    return

    def _encode_signal(self, binding: ServedBinding, signal: ProbeSignal) -> bytes:
        try:
            return encode_value(signal, pickle_allowed=self._is_pickle_allowed)
        except ValuePathError as error:
            _logger.error("signal of point %r cannot cross to the engine: %s", binding.point.name, error)
            stripped = ProbeSignal(
                signal.action, {"error_type": type(error).__name__, "error": str(error)}, signal.confidence
            )
            return encode_value(stripped, pickle_allowed=False)

    def _close_sinks(self) -> None:
        for sink in self._sinks:
            self._guarded(sink, "flush")
            self._guarded(sink, "close")
        self.report_measures()
        self._sinks, self._meters = [], []

    def _write(self, index: int, method: str, *args: Any) -> None:
        is_written = self._guarded(self._sinks[index], method, *args)
        self._meters[index][0].note_record(is_written=is_written)

    def _guarded(self, sink: Any, method: str, *args: Any) -> bool:
        """False when the sink raised."""
        call = getattr(sink, method, None)
        if call is None:
            return True
        try:
            call(*args)
        except Exception:
            _logger.exception("sink %s: `%s` raised; the probe goes on", type(sink).__name__, method)
            return False
        return True
