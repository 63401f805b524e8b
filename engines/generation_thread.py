"""A generation on a thread of its own, read as an iterator of events; streams of tokens and of signals stand on it."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

__all__ = ["GenerationThread"]

EventT = TypeVar("EventT")
ResultT = TypeVar("ResultT")

_CLOSE_TIMEOUT_S = 60.0


class GenerationThread(Generic[EventT, ResultT]):
    """Iterates over what a generation says while it runs; closing or dropping it ends the generation after its step.

    The thread is no daemon and ends with the generation: when that is over, closed or dropped, or when the main thread
    has ended. Ctrl-C while the reader waits ends it too, and leaves the `with` block without waiting for the thread.
    """

    def __init__(
        self,
        name: str,
        *,
        generate: Callable[[Callable[[EventT], None]], ResultT],
        cancel: Callable[[], object],
        error_of: Callable[[ResultT], BaseException | None],
    ) -> None:
        """`generate(put)` runs on the thread and hands events to `put`, from any thread; `cancel` ends it early.

        What `generate` raises, or `error_of` its result is, is raised at the end of the iteration.
        """
        self._run = _Run(generate, cancel, error_of)
        self._is_exhausted = False
        # The thread knows the run and not this object, so that a stream which is dropped half-way can be missed.
        self._thread = threading.Thread(target=self._run.run, name=name)
        weakref.finalize(self, self._run.end)
        self._thread.start()

    @property
    def result(self) -> ResultT | None:
        """What `generate` returned; None until it has."""
        return self._run.result

    def close(self) -> None:
        """Ends the generation after its current step and waits for that; idempotent."""
        self._end()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EventT:
        if self._is_exhausted:
            raise StopIteration
        try:
            entry = self._run.entries.get()
        except BaseException:
            # Ctrl-C: nobody will read on.
            self._run.end()
            raise
        if entry is not None:
            return entry[0]
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
        if isinstance(exc, KeyboardInterrupt):
            # The text may be over and the thread waiting for verdicts, which Ctrl-C does not wait for.
            self._end()
        else:
            self.close()

    def _end(self) -> None:
        self._run.end()
        self._is_exhausted = True


class _Run(Generic[EventT, ResultT]):
    """The generating side; shared by its thread and its reader."""

    def __init__(
        self,
        generate: Callable[[Callable[[EventT], None]], ResultT],
        cancel: Callable[[], object],
        error_of: Callable[[ResultT], BaseException | None],
    ) -> None:
        # Holds at most what one call generates, which the call's own token limit bounds.
        self.entries: queue.SimpleQueue[tuple[EventT] | None] = queue.SimpleQueue()
        self.result: ResultT | None = None
        self.error: BaseException | None = None
        self._generate = generate
        self._cancel = cancel
        self._error_of = error_of
        self._is_ended = threading.Event()

    def run(self) -> None:
        """Generates; called on the thread."""
        try:
            self.result = self._generate(self._put)
            self.error = self._error_of(self.result)
        except BaseException as error:
            self.error = error
        finally:
            self.entries.put(None)

    def end(self) -> None:
        """Asks the generation to end after its current step; from any thread, also before it has begun."""
        self._is_ended.set()
        self._cancel()

    def _put(self, event: EventT) -> None:
        self.entries.put((event,))
        # An interpreter that exits joins this thread before it drops the stream, so the stream cannot tell it.
        if self._is_ended.is_set() or not threading.main_thread().is_alive():
            self._cancel()
