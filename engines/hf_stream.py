"""A generation as an iterator: text pieces while the model runs on a thread of its own."""

from __future__ import annotations

import queue
import threading
import weakref
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
    """Iterates over the pieces of one generation; closing or dropping it ends the generation after the current step.

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
        self._run = _StreamRun(request_id, generate, cancel)
        self._is_exhausted = False
        # The thread knows the run and not the stream, so that a stream which is dropped half-way can be missed.
        self._thread = threading.Thread(target=self._run.run, name=f"undercurrent-generate-{request_id}")
        weakref.finalize(self, self._run.end)
        self._thread.start()

    @property
    def generation(self) -> Generation:
        """The whole generation.

        Raises:
            ProbingRuntimeError: the iterator is not exhausted yet.
        """
        if self._run.generation is None:
            raise ProbingRuntimeError("the stream has not ended; iterate over it to the end, or close it")
        return self._run.generation

    def close(self) -> None:
        """Ends the generation after its current step and waits for that; idempotent."""
        self._run.end()
        self._is_exhausted = True
        self._thread.join(_CLOSE_TIMEOUT_S)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamPiece:
        if self._is_exhausted:
            raise StopIteration
        piece = self._run.pieces.get()
        if piece is not None:
            return piece
        self._is_exhausted = True
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._run.error is not None:
            raise self._run.error
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class _StreamRun:
    """The generating side of a stream; shared by its thread and its reader."""

    def __init__(
        self, request_id: str, generate: Callable[[TextListener], Generation], cancel: Callable[[str], bool]
    ) -> None:
        # Holds at most one piece per token of the call, which the call's own token limit bounds.
        self.pieces: queue.SimpleQueue[StreamPiece | None] = queue.SimpleQueue()
        self.generation: Generation | None = None
        self.error: BaseException | None = None
        self._request_id = request_id
        self._generate = generate
        self._cancel = cancel
        self._is_ended = threading.Event()

    def run(self) -> None:
        """Generates; called on the stream's thread."""
        try:
            self.generation = self._generate(self._on_text)
            self.error = self.generation.error
        except BaseException as error:
            self.error = error
        finally:
            self.pieces.put(None)

    def end(self) -> None:
        """Asks the generation to end after its current step; from any thread, also before it has begun."""
        self._is_ended.set()
        self._cancel(self._request_id)

    def _on_text(self, request_id: str, text: str, token_ids: tuple[int, ...]) -> None:
        self.pieces.put(StreamPiece(text, token_ids))
        if self._is_ended.is_set():
            self._cancel(request_id)
