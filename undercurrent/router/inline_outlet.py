"""What inline points say, for the sinks that were attached with `inline=True`."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal
from undercurrent.sinks import ResultRecord, SignalRecord, takes_record
from undercurrent.workers.measures import Measures

if TYPE_CHECKING:
    from undercurrent.router.supervision import LogSinkLike

__all__ = ["InlineOutlet"]

_logger = logging.getLogger("undercurrent.router")

_WAITING_COUNT_MAX = 65_536


class _Notice(NamedTuple):
    record: SignalRecord


Entry = SignalRecord | ResultRecord | _Notice


class InlineOutlet:
    """Owns the thread `undercurrent-inline-sinks`, which calls the sinks in order, off the engine's thread.

    The thread is started by the first entry and ends with `close`. A sink that falls behind by 65,536 entries loses the
    newest, which is logged once: an engine must not wait for it.
    """

    def __init__(self, measures: Measures | None = None) -> None:
        self._measures = measures or Measures()
        self._sinks: tuple[LogSinkLike, ...] = ()
        self._notice_sinks: tuple[LogSinkLike, ...] = ()
        self._condition = threading.Condition()
        self._entries: deque[Entry] = deque()  # guarded by _condition, as is all below
        self._thread: threading.Thread | None = None
        self._taken_count = 0
        self._written_count = 0
        self._is_closed = False
        self._is_loss_logged = False

    def set_sinks(self, sinks: Sequence[LogSinkLike], *, every: Sequence[LogSinkLike] = ()) -> None:
        """Replaces the sinks at once; what waits goes to the new ones. `every` sink attached gets notices."""
        self._sinks = tuple(sinks)
        self._notice_sinks = tuple(every)

    def wants(self, signal: ProbeSignal) -> bool:
        """Whether `signal` is an abort or a flag and a sink wants it."""
        return bool(self._sinks) and signal.action != ProbeAction.CONTINUE

    def take_signal(self, record: SignalRecord) -> None:
        """Takes a signal that is wanted; never waits for a sink."""
        self._put([record])

    def take_notice(self, record: SignalRecord) -> None:
        """Takes what the router itself says, for every sink that is attached."""
        if self._notice_sinks:
            self._put([_Notice(record)])

    def take_results(self, results: Mapping[str, ProbeResult], request_id: str, model: str | None) -> None:
        """Takes the results of a request's inline points."""
        if self._sinks:
            self._put([ResultRecord(request_id, name, result, model=model) for name, result in results.items()])

    def flush(self, deadline: float) -> bool:
        """Waits until the sinks have what was taken so far; False when `deadline` (monotonic) passed first."""
        with self._condition:
            wanted = self._taken_count
            return self._condition.wait_for(
                lambda: self._written_count >= wanted or self._is_closed, max(0.0, deadline - time.monotonic())
            )

    def close(self) -> None:
        """Lets the thread end; waits for nothing. Idempotent."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def renew_after_fork(self) -> None:
        """In a forked child: the thread and what it had not written are the parent's."""
        self._condition = threading.Condition()
        self._entries = deque()
        self._thread = None
        self._written_count = self._taken_count

    def _put(self, entries: Sequence[Entry]) -> None:
        with self._condition:
            room = _WAITING_COUNT_MAX - len(self._entries)
            if len(entries) > room and not self._is_loss_logged:
                self._is_loss_logged = True
                _logger.error("the sinks of inline points are too slow: entries are left out (said once)")
            accepted = entries[: max(room, 0)]
            self._entries.extend(accepted)
            self._taken_count += len(accepted)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="undercurrent-inline-sinks", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                # Woken by `_put` and `close`, the only ways for anything to change.
                self._condition.wait_for(lambda: self._entries or self._is_closed)
                if not self._entries:
                    return
                entries = list(self._entries)
                self._entries.clear()
            sinks, notice_sinks = self._sinks, self._notice_sinks
            for entry in entries:
                for sink in notice_sinks if isinstance(entry, _Notice) else sinks:
                    _guarded(sink, partial(self._measures.write_to, sink, _write, sink, entry))
            for sink in {id(sink): sink for sink in (*sinks, *notice_sinks)}.values():
                _guarded(sink, partial(_flush, sink))
            with self._condition:
                self._written_count += len(entries)
                self._condition.notify_all()


def _write(sink: LogSinkLike, entry: Entry) -> None:
    """Gives `entry` to `sink`, whole where the sink takes it whole."""
    if isinstance(entry, _Notice):
        entry = entry.record
    kind: Literal["signal", "result"] = "signal" if isinstance(entry, SignalRecord) else "result"
    if takes_record(sink, kind):
        getattr(sink, f"write_{kind}_record")(entry)
    elif isinstance(entry, SignalRecord):
        sink.write_signal(entry.request_id, entry.extraction_point_name, entry.signal)
    else:
        sink.write_result(entry.request_id, entry.extraction_point_name, entry.result)


def _flush(sink: LogSinkLike) -> None:
    flush = getattr(sink, "flush", None)
    if flush is not None:
        flush()


def _guarded(sink: LogSinkLike, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        _logger.exception("sink %s of inline points raised; the request goes on", type(sink).__name__)
