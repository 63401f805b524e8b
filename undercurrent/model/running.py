"""Runs prompts on an engine: in batches where the engine can, else one by one as an adapter of 0.1.0 does."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.engines.base import (
    BatchEngine,
    EngineAdapter,
    EngineLimitationError,
    FinishReason,
    Generation,
    RowRouter,
    TextListener,
)
from undercurrent.errors import ProbingRuntimeError
from undercurrent.model.ending import RequestEnder
from undercurrent.model.output import GenerationOutput, ResultSource, describe_abort
from undercurrent.model.settings import GenerationSettings, StopCutter
from undercurrent.router import Router
from undercurrent.spec import ExecutionMode, ProbeSpec

__all__ = ["AdapterRunner", "BatchRunner", "Outcome", "Runner"]

Outcome = GenerationOutput | Exception
"""What became of one prompt."""


class Runner(Protocol):
    """How a `ProbedModel` runs prompts; called on any thread, also by several at once."""

    def run(self, prompts: Sequence[str], settings: GenerationSettings) -> Generator[list[Outcome], None, None]:
        """Yields the outcomes of the prompts in order, in groups that were generated together.

        What is not yet begun when the iterator is closed is not run.
        """

    def run_streamed(
        self, request_id: str, prompt: str, settings: GenerationSettings, *, feed: RowRouter, on_text: TextListener
    ) -> GenerationOutput:
        """Runs one prompt, whose records go to `feed` and whose text to `on_text`; raises what ended it.

        Raises:
            EngineLimitationError: the engine does not say what it generates while it does.
        """

    def cancel(self, request_id: str) -> object:
        """Ends a running request after its current step."""

    def cancel_all(self) -> None:
        """Ends every running request after its current step."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A prompt whose request is registered at engine and router."""

    place: int
    request_id: str
    prompt: str
    token_ids: list[int]


class BatchRunner:
    """Runs prompts as batches of up to `batch_size`; a prompt that fails leaves its neighbours alone."""

    def __init__(
        self,
        engine: BatchEngine,
        spec: ProbeSpec,
        *,
        feed: RowRouter,
        ender: RequestEnder,
        batch_size: int,
    ) -> None:
        """Records go to `feed`, which is the router or stands before it; it may be replaced between calls."""
        self._engine = engine
        self._points = tuple(spec)
        self.feed = feed
        self._ender = ender
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._running: set[str] = set()  # guarded by _lock

    def run(self, prompts: Sequence[str], settings: GenerationSettings) -> Generator[list[Outcome], None, None]:
        """See `Runner.run`."""
        size = self._batch_size if settings.can_share_batch else 1
        for begin in range(0, len(prompts), size):
            batch = prompts[begin : begin + size]
            yield self._run_batch([(uuid.uuid4().hex, prompt) for prompt in batch], settings, self.feed, None)

    def run_streamed(
        self, request_id: str, prompt: str, settings: GenerationSettings, *, feed: RowRouter, on_text: TextListener
    ) -> GenerationOutput:
        """See `Runner.run_streamed`."""
        [outcome] = self._run_batch([(request_id, prompt)], settings, feed, on_text)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def cancel(self, request_id: str) -> bool:
        """See `Runner.cancel`."""
        return self._engine.cancel(request_id)

    def cancel_all(self) -> None:
        """See `Runner.cancel_all`."""
        with self._lock:
            running = list(self._running)
        for request_id in running:
            self._engine.cancel(request_id)

    def _run_batch(
        self,
        requests: Sequence[tuple[str, str]],
        settings: GenerationSettings,
        feed: RowRouter,
        on_text: TextListener | None,
    ) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        opened: list[_Opened] = []
        results: dict[str, ResultSource] = {}
        generations: list[Generation] = []
        try:
            for place, (request_id, prompt) in enumerate(requests):
                try:
                    opened.append(self._open(place, request_id, prompt, feed))
                except Exception as error:
                    outcomes[place] = error
            if opened:
                generations = self._generate(opened, settings, feed, on_text)
        except Exception as error:
            outcomes.update({request.place: error for request in opened})
        finally:
            # An interrupt passes here too, and must not wait for the probes.
            results = {request.request_id: self._close(request.request_id, feed) for request in opened}
        for request, generation in zip(opened, generations, strict=False):
            outcomes[request.place] = _describe(request.prompt, generation, results[request.request_id], settings)
        return [outcomes[place] for place in range(len(requests))]

    def _generate(
        self,
        opened: Sequence[_Opened],
        settings: GenerationSettings,
        feed: RowRouter,
        on_text: TextListener | None,
    ) -> list[Generation]:
        return self._engine.generate_batch(
            [request.request_id for request in opened],
            [request.token_ids for request in opened],
            settings.arguments,
            feed,
            on_text=on_text,
            opens_requests=False,
            ends_requests=False,
        )

    def _open(self, place: int, request_id: str, prompt: str, feed: RowRouter) -> _Opened:
        token_ids = self._engine.encode(prompt)
        self._engine.register_extraction(request_id, self._points)
        metadata = {"model": self._engine.model_name, "prompt": prompt, "prompt_len": len(token_ids)}
        try:
            feed.register_request(request_id, self._points, RequestContext(request_id, metadata, None))
        except BaseException:
            self._engine.unregister_extraction(request_id)
            raise
        with self._lock:
            self._running.add(request_id)
        return _Opened(place, request_id, prompt, token_ids)

    def _close(self, request_id: str, feed: RowRouter) -> ResultSource:
        with self._lock:
            self._running.discard(request_id)
        self._engine.unregister_extraction(request_id)
        return self._ender.end(feed, request_id)


class AdapterRunner:
    """Runs prompts on an adapter that knows the four methods of 0.1.0 only; it ends its requests itself."""

    def __init__(self, adapter: EngineAdapter, spec: ProbeSpec, router: Router, *, max_concurrency: int) -> None:
        self._adapter = adapter
        self._points = list(spec)
        self._router = router
        self._max_concurrency = max_concurrency

    def run(self, prompts: Sequence[str], settings: GenerationSettings) -> Generator[list[Outcome], None, None]:
        """See `Runner.run`; up to `max_concurrency` prompts run at once, each on a thread."""
        if self._max_concurrency == 1 or len(prompts) == 1:
            for prompt in prompts:
                yield [self._run_one(prompt, settings)]
            return
        with ThreadPoolExecutor(min(len(prompts), self._max_concurrency), "undercurrent-generate") as pool:
            futures = [pool.submit(self._run_one, prompt, settings) for prompt in prompts]
            try:
                for future in futures:
                    yield [future.result()]
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def run_streamed(
        self, request_id: str, prompt: str, settings: GenerationSettings, *, feed: RowRouter, on_text: TextListener
    ) -> GenerationOutput:
        """See `Runner.run_streamed`."""
        raise EngineLimitationError(
            f"{type(self._adapter).__name__} gives its text at the end; streaming needs a `BatchEngine`"
        )

    def cancel(self, request_id: str) -> object:
        """Does nothing: such an adapter cannot be cancelled."""

    def cancel_all(self) -> None:
        """Does nothing: such an adapter cannot be cancelled."""

    def _run_one(self, prompt: str, settings: GenerationSettings) -> Outcome:
        request_id = uuid.uuid4().hex
        ended: dict[str, dict[str, ProbeResult]] = {}

        def keep(ended_id: str, results: dict[str, ProbeResult]) -> None:
            if ended_id == request_id:
                ended[request_id] = results

        remove = self._router.on_request_end(keep)
        try:
            self._adapter.register_extraction(request_id, self._points)
            try:
                text = self._adapter.generate(request_id, prompt, settings.arguments, self._router)
            finally:
                self._adapter.unregister_extraction(request_id)
        except Exception as error:
            return error
        finally:
            remove()
        if request_id not in ended:
            return ProbingRuntimeError(
                f"{type(self._adapter).__name__} generated without ending request {request_id!r} at the router"
            )
        stop = self._find_stop(request_id, ended[request_id])
        return _output(prompt, _cut(text, settings), request_id, ended[request_id], stop)

    def _find_stop(self, request_id: str, results: dict[str, ProbeResult]) -> tuple[str | None, ProbeSignal] | None:
        """What stopped the request: as the adapter says, else the first abort that an inline probe kept."""
        last_stop: Any = getattr(self._adapter, "last_stop", None)
        said: tuple[str | None, ProbeSignal] | None = last_stop(request_id) if callable(last_stop) else None
        if said is not None:
            return said
        aborts = [
            (signal.timestamp, point.name, signal)
            for point in self._points
            if point.execution_mode == ExecutionMode.INLINE and point.name in results
            for signal in results[point.name].signal_history
            if signal.action is ProbeAction.ABORT
        ]
        if not aborts:
            return None
        _, name, signal = min(aborts, key=lambda abort: abort[0])
        return name, signal


def _describe(prompt: str, generation: Generation, results: ResultSource, settings: GenerationSettings) -> Outcome:
    if isinstance(generation.error, Exception):
        return generation.error
    if generation.error is not None:
        raise generation.error
    signal = generation.abort_signal
    is_aborted = signal is not None and generation.finish_reason is FinishReason.ABORT
    return _output(
        prompt,
        _cut(generation.text, settings),
        generation.request_id,
        results,
        (generation.abort_point, signal) if is_aborted and signal is not None else None,
        token_ids=generation.token_ids,
        finish_reason=generation.finish_reason.value,
    )


def _output(
    prompt: str,
    text: str,
    request_id: str,
    results: ResultSource,
    stop: tuple[str | None, ProbeSignal] | None,
    *,
    token_ids: tuple[int, ...] = (),
    finish_reason: str | None = None,
) -> GenerationOutput:
    point, signal = stop if stop is not None else (None, None)
    return GenerationOutput(
        text=text,
        prompt=prompt,
        request_id=request_id,
        probe_results=results,
        aborted=signal is not None,
        abort_reason=None if signal is None else describe_abort(point, signal),
        abort_signal=signal,
        abort_point=point,
        token_ids=token_ids,
        finish_reason=finish_reason,
    )


def _cut(text: str, settings: GenerationSettings) -> str:
    cutter = StopCutter(settings.stop)
    return cutter.push(text) + cutter.finish()
