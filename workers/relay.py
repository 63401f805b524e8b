"""Calls the sink objects of this process, in order, on a thread of its own: `undercurrent-relay`.

The supervisor's thread puts, the relay's thread calls. A sink that raises is logged; a slow one makes the relay
congested, the supervisor then reads no more frames, and the rings' overflow policies count what is lost.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from undercurrent.core import ProbeSignal
from undercurrent.sinks import ResultRecord, SignalRecord, takes_record
from undercurrent.workers import messages as m
from undercurrent.workers.binding import AsyncBinding
from undercurrent.workers.frames import decode_value
from undercurrent.workers.measures import Measures

_logger = logging.getLogger("undercurrent.workers")

CONGESTED_COUNT = 4096
RELIEVED_COUNT = 1024


class Relay:
    """Owns the relay thread; it is started by the first sink object and ended by `close`."""

    def __init__(self, on_relieved: Callable[[], None], measures: Measures) -> None:
        """`on_relieved` is called on the relay's thread when a congested relay has caught up."""
        self._measures = measures
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._on_relieved = on_relieved
        self._sinks: tuple[Any, ...] = ()
        self._thread: threading.Thread | None = None
        self._was_congested = False

    @property
    def is_active(self) -> bool:
        """Whether results must pass through here."""
        return self._thread is not None

    def wants(self, binding: AsyncBinding) -> bool:
        """Whether the result of `binding` must pass through here."""
        return self.is_active and binding.reaches_sinks

    @property
    def is_congested(self) -> bool:
        """Whether the supervisor must stop reading; asked on its thread only."""
        if self._queue.qsize() > CONGESTED_COUNT:
            self._was_congested = True
        return self._was_congested

    def set_sinks(self, sinks: Sequence[Any]) -> None:
        """Replaces the sinks at once; what is queued goes to the new ones."""
        self._sinks = tuple(sinks)
        if sinks and self._thread is None:
            # Daemonic: an interpreter that ends without `shutdown()` must not wait for a sink. The thread owns no
            # data that outlives it.
            self._thread = threading.Thread(target=self._run, name="undercurrent-relay", daemon=True)
            self._thread.start()

    def put_signal(self, binding: AsyncBinding, signalled: m.Signalled) -> None:
        """Queues one signal."""
        self._queue.put(lambda: self._write_signal(binding, signalled))

    def put_result(self, binding: AsyncBinding) -> None:
        """Queues the result of a finished binding; `wait_result` returns after the sinks had it."""
        self._queue.put(lambda: self._write_result(binding))

    def flush(self, deadline: float) -> bool:
        """Waits until everything queued before has been handed over; False when `deadline` passed first."""
        if self._thread is None or not self._thread.is_alive():
            return True
        reached = threading.Event()
        self._queue.put(reached.set)
        return reached.wait(max(0.0, deadline - time.monotonic()))

    def close(self, deadline: float) -> None:
        """Ends the thread after what is queued, or at `deadline`."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:  # ends with the None that `close` puts
            call()
            if self._was_congested and self._queue.qsize() < RELIEVED_COUNT:
                self._was_congested = False
                self._on_relieved()

    def _write_signal(self, binding: AsyncBinding, signalled: m.Signalled) -> None:
        try:
            signal: ProbeSignal = decode_value(signalled.signal, pickle_allowed=True)
        except Exception:
            _logger.exception("a signal of point %r could not be read", binding.plan.point.name)
            return
        request_id, name = binding.plan.request_id, binding.plan.point.name
        for sink in self._sinks:
            if takes_record(sink, "signal"):
                known = (signalled.sequence, signalled.layer, signalled.token_pos, _model_of(binding))
                self._guarded(sink, sink.write_signal_record, binding, SignalRecord(request_id, name, signal, *known))
            else:
                self._guarded(sink, sink.write_signal, binding, request_id, name, signal)

    def _write_result(self, binding: AsyncBinding) -> None:
        request_id, name = binding.plan.request_id, binding.plan.point.name
        try:
            for sink in () if binding.is_abandoned else self._sinks:
                if takes_record(sink, "result"):
                    record = ResultRecord(request_id, name, binding.result(), _model_of(binding))
                    self._guarded(sink, sink.write_result_record, binding, record)
                else:
                    self._guarded(sink, sink.write_result, binding, request_id, name, binding.result())
        finally:
            binding.complete()

    def _guarded(self, sink: Any, write: Callable[..., object], binding: AsyncBinding, *what: object) -> None:
        try:
            self._measures.write_to(sink, write, *what)
        except Exception:
            _logger.exception(
                "sink raised in `%s` for point %r; the probe goes on",
                getattr(write, "__name__", "write"),
                binding.plan.point.name,
            )


def _model_of(binding: AsyncBinding) -> str | None:
    metadata = binding.plan.context.prompt_metadata
    model = metadata.get("model") if metadata else None
    return model if isinstance(model, str) else None
