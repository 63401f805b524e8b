"""One generation as an iterator of tokens and signals, closed by its outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from undercurrent.core import ProbeResult, ProbeSignal, RequestContext
from undercurrent.engines.base import RowRouter
from undercurrent.engines.generation_thread import GenerationThread
from undercurrent.errors import ProbingRuntimeError, RouterError
from undercurrent.model.output import GenerationOutput, SignalEvent, TokenEvent
from undercurrent.model.settings import StopCutter
from undercurrent.router import Router, RowEntry, RowsError
from undercurrent.spec import ExtractionPoint

__all__ = ["GenerationStream", "SignalTap", "SignalTeller", "StreamEvent", "TokenTeller"]

StreamEvent = TokenEvent | SignalEvent | GenerationOutput

SignalListener = Callable[[str, ProbeSignal], None]
"""Called with (point name, signal); on the generating thread, or on that of the router's sinks."""


class GenerationStream(GenerationThread[StreamEvent, GenerationOutput]):
    """Iterates over `TokenEvent`s and `SignalEvent`s as they come, and last the `GenerationOutput`.

    A signal comes before the token that was chosen in its step. Signals of async probes that come when the text is over
    are in the results only. Closing the stream, dropping it or Ctrl-C ends the generation after its current step and
    ends the request. The thread `undercurrent-generate-<request id>` ends with it.
    """

    @property
    def output(self) -> GenerationOutput:
        """The outcome; its text is what was generated until the stream was closed.

        Raises:
            ProbingRuntimeError: the generation runs, or failed.
        """
        if self.result is None:
            raise ProbingRuntimeError("the stream has no outcome; iterate over it to the end, or close it")
        return self.result


class TokenTeller:
    """Turns the text of an engine into token events; used on the generating thread."""

    def __init__(self, put: Callable[[StreamEvent], None], stops: Sequence[str]) -> None:
        self._put = put
        self._cutter = StopCutter(stops)
        self._count = 0

    def __call__(self, _request_id: str, text: str, token_ids: tuple[int, ...]) -> None:
        shown = self._cutter.push(text)
        if not token_ids:
            self._put_rest(shown)
        for place, token_id in enumerate(token_ids):
            # Accepted drafts come several at once, with one text: it belongs to the last of them.
            is_last = place == len(token_ids) - 1
            self._put(TokenEvent(shown if is_last else "", token_id, self._count))
            self._count += 1

    def finish(self) -> None:
        """Tells what was held back as the possible beginning of a stop string."""
        self._put_rest(self._cutter.finish())

    def _put_rest(self, text: str) -> None:
        if text:
            self._put(TokenEvent(text, None, self._count))


class SignalTap:
    """A router that also tells the signals of inline points; stands before the router of one generation."""

    def __init__(self, router: RowRouter, on_signal: SignalListener) -> None:
        self._router = router
        self._on_signal = on_signal

    def register_request(
        self, request_id: str, extraction_points: Sequence[ExtractionPoint], ctx: RequestContext
    ) -> object:
        """As the router's."""
        return self._router.register_request(request_id, extraction_points, ctx)

    def step(self) -> AbstractContextManager[object]:
        """As the router's."""
        return self._router.step()

    def end_request(self, request_id: str) -> dict[str, ProbeResult]:
        """As the router's."""
        return self._router.end_request(request_id)

    def route_rows(self, rows: Any, layer: int, tensor_type: Any, entries: list[RowEntry]) -> list[ProbeSignal | None]:
        """As the router's; what it answers is told before it is returned."""
        try:
            signals = self._router.route_rows(rows, layer, tensor_type, entries)
        except RowsError as error:
            self._tell(entries, error.signals)
            raise
        self._tell(entries, signals)
        return signals

    def _tell(self, entries: list[RowEntry], signals: list[ProbeSignal | None]) -> None:
        for entry, signal in zip(entries, signals, strict=True):
            if signal is not None:
                self._on_signal(entry.extraction_point_name, signal)


class SignalTeller:
    """A log sink that hands the signals of async points to the streams of their requests.

    It is attached to the router while a stream is open, so that workers send signals to this process only then.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._lock = threading.Lock()
        self._listeners: dict[str, SignalListener] = {}  # guarded by _lock

    def open(self, request_id: str, on_signal: SignalListener) -> None:
        """Tells the signals of a request from now on."""
        with self._lock:
            self._listeners[request_id] = on_signal
            self._router.add_log_sink(self)

    def close(self, request_id: str) -> None:
        """Tells no more of a request."""
        with self._lock:
            self._listeners.pop(request_id, None)
            if not self._listeners:
                # The caller may have put a sink of its own in the place of all others meanwhile.
                with suppress(RouterError):
                    self._router.remove_log_sink(self)

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        """Called on the router's sink thread."""
        with self._lock:
            listener = self._listeners.get(request_id)
        if listener is not None:
            listener(extraction_point_name, signal)

    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
        """Results are in the outcome."""
