"""A generation as an iterator: text pieces while the model runs on a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from undercurrent.engines.base import Generation
from undercurrent.errors import ProbingRuntimeError

__all__ = ["StreamPiece", "TextListener", "TokenStream"]

TextListener = Callable[[str, str, tuple[int, ...]], None]
"""Called with (request_id, text piece, token ids) for each step, on the generating thread."""

_CLOSE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """What one step of a generation added."""

    text: str
    """Complete characters only; "" while one is unfinished."""
    token_ids: tuple[int, ...]
    """One token, or several where drafts were accepted; empty for the rest of a text at its end."""


class TokenStream:
    """Iterates over the pieces of one generation; closing it early ends the generation after the current step.

    Each piece comes after the step that chose it was routed. `generation` is there once the iterator is exhausted. Use
    it as a context manager, or close it; the thread `undercurrent-generate-<request id>` ends with it.
    """

    def __init__(
        self,
        request_id: str,
        *,
        generate: Callable[[TextListener], Generation],
        cancel: Callable[[str], bool],
    ) -> None:
        """`generate` runs on the stream's thread; `cancel` ends the request from another one."""
        self._request_id = request_id
        self._generate = generate
        self._cancel = cancel
        # Holds at most one piece per token of the call, which the call's own token limit bounds.
        self._pieces: queue.SimpleQueue[StreamPiece | None] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._generation: Generation | None = None
        self._error: BaseException | None = None
        self._is_exhausted = False
        self._thread = threading.Thread(target=self._run, name=f"undercurrent-generate-{request_id}")
        self._thread.start()

    @property
    def generation(self) -> Generation:
        """The whole generation.

        Raises:
            ProbingRuntimeError: the iterator is not exhausted yet.
        """
        if self._generation is None:
            raise ProbingRuntimeError("the stream has not ended; iterate over it to the end, or close it")
        return self._generation

    def close(self) -> None:
        """Ends the generation after its current step and waits for that; idempotent."""
        self._is_closed.set()
        self._cancel(self._request_id)
        self._is_exhausted = True
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_TIMEOUT_S)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamPiece:
        piece = None if self._is_exhausted else self._pieces.get()
        if piece is not None:
            return piece
        was_exhausted, self._is_exhausted = self._is_exhausted, True
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._error is not None and not was_exhausted:
            raise self._error
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A stream dropped half-way must not generate to its limit; the thread itself ends soon and is not waited for.
        if hasattr(self, "_is_closed"):
            self._is_closed.set()
            self._cancel(self._request_id)

    def _run(self) -> None:
        try:
            self._generation = self._generate(self._on_text)
            self._error = self._generation.error
        except BaseException as error:
            self._error = error
        finally:
            self._pieces.put(None)

    def _on_text(self, request_id: str, text: str, token_ids: tuple[int, ...]) -> None:
        self._pieces.put(StreamPiece(text, token_ids))
        if self._is_closed.is_set():
            self._cancel(request_id)
