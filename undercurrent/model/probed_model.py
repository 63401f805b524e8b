"""`ProbedModel`: a model, a spec and probes as one object that generates."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self, overload

from undercurrent.core import Probe, ProbeFactory, ProbeRegistry
from undercurrent.engines import ActivationRecorder
from undercurrent.engines.base import BatchEngine, EngineAdapter, RowRouter
from undercurrent.errors import ProbingRuntimeError, ProbingValueError
from undercurrent.model.calls import RunningCalls
from undercurrent.model.construction import (
    SpecInput,
    check_backend,
    check_concurrency,
    check_points,
    load_engine,
    make_router,
    read_spec,
)
from undercurrent.model.ending import RequestEnder
from undercurrent.model.output import GenerationOutput, SignalEvent
from undercurrent.model.running import AdapterRunner, BatchRunner, Outcome, Runner
from undercurrent.model.settings import GenerationSettings, check_prompts, read_settings
from undercurrent.model.streaming import GenerationStream, SignalTap, SignalTeller, StreamEvent, TokenTeller
from undercurrent.router import MetricsSink, Router
from undercurrent.router.supervision import LogSinkLike
from undercurrent.spec import ProbeSpec

__all__ = ["ProbedModel"]

_logger = logging.getLogger("undercurrent")

_DEFAULT_BATCH_SIZE = 8
_CLOSE_TIMEOUT_S = 60.0
_CANCEL_EVERY_S = 0.1


class ProbedModel:
    """Generates text while probes watch; loads the model, starts the workers, and owns the router it makes.

    Methods may be called on any thread. Use it as a context manager, or close it: worker processes end with it.

    >>> from undercurrent.engines import SyntheticEngine
    >>> spec = {"extraction_points": [{"name": "mean", "layers": 1, "tensor_type": "mlp_out",
    ...     "position": "generated[*]", "probe_type": "mean", "probe_kind": "trajectory",
    ...     "probe_args": {"threshold": 1e9}}]}
    >>> from undercurrent.core.examples import TrajectoryScoreProbe
    >>> engine = SyntheticEngine(layer_count=2, hidden_size=4)
    >>> with ProbedModel(backend=engine, spec=spec, probes={"mean": TrajectoryScoreProbe}) as model:
    ...     output = model.generate("hello", max_new_tokens=3)
    >>> len(output.text), list(output.probe_results)
    (3, ['mean'])
    """

    def __init__(
        self,
        model: Any = None,
        *,
        spec: SpecInput = None,
        probes: Mapping[str, type[Probe] | ProbeFactory] | ProbeRegistry | None = None,
        backend: str | EngineAdapter = "hf",
        device: str | None = None,
        on_result: Callable[[GenerationOutput], object] | None = None,
        log_sink: LogSinkLike | None = None,
        metrics_sink: MetricsSink | None = None,
        router_kwargs: Mapping[str, Any] | None = None,
        router: Router | None = None,
        max_concurrency: int | None = None,
        batch_size: int = _DEFAULT_BATCH_SIZE,
        **model_kwargs: Any,
    ) -> None:
        """Loads `model`: a name, a folder, or a model object with its `tokenizer`.

        `spec` is a path, YAML text, a mapping, a `ProbeSpec`, a list of points or None. `backend` is `"hf"` or an
        engine; a loaded one needs no `model`. `model_kwargs` go to the engine's `load_model`. `on_result` is called
        with each output on the thread that generated it, before `generate` returns; what it raises is logged. A list
        of prompts is generated in batches of `batch_size`.

        Raises:
            SpecValidationError: the spec has problems.
            ProbedModelConfigError: spec, probes and model do not fit together; found before weights load where it can.
            ProbingValueError: an argument is out of range or contradicts another one.
            ProbingTypeError: an argument is of the wrong type.
            MissingDependencyError: the backend is not installed, or not part of this release.
        """
        self._spec = read_spec(spec)
        check_backend(backend, model=model, device=device)
        self._max_concurrency = check_concurrency(max_concurrency, backend)
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ProbingValueError(f"`batch_size` must be an integer >= 1, got {batch_size!r}")
        self._on_result = on_result
        self._owns_router = router is None
        self._router = make_router(router, probes=probes, router_kwargs=router_kwargs, metrics_sink=metrics_sink)
        try:
            if log_sink is not None:
                self._router.attach_log_sink(log_sink)
            needs_workers = check_points(self._spec, self._router, model=model, backend=backend, loading=model_kwargs)
            engine = load_engine(backend, self._spec, model=model, device=device, loading=model_kwargs)
        except BaseException:
            if self._owns_router:
                self._router.shutdown(wait=False)
            raise
        self._engine: EngineAdapter | None = engine
        self._ender = RequestEnder(waits_for_workers=needs_workers)
        self._teller = SignalTeller(self._router) if needs_workers else None
        self._runner: Runner
        if isinstance(engine, BatchEngine):
            self._runner = BatchRunner(engine, self._spec, feed=self._router, ender=self._ender, batch_size=batch_size)
        else:
            self._runner = AdapterRunner(engine, self._spec, self._router, max_concurrency=self._max_concurrency)
        self._calls = RunningCalls()
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[GenerationStream] = weakref.WeakSet()  # guarded by _lock

    @classmethod
    def from_pretrained(cls, model: Any = None, **arguments: Any) -> Self:
        """The same as the constructor."""
        return cls(model, **arguments)

    @property
    def router(self) -> Router:
        """The router between engine and probes."""
        return self._router

    @property
    def adapter(self) -> EngineAdapter:
        """The engine.

        Raises:
            ProbingRuntimeError: closed.
        """
        if self._engine is None:
            raise ProbingRuntimeError("this ProbedModel is closed and has no engine; make a new one")
        return self._engine

    @property
    def spec(self) -> ProbeSpec:
        """What is read."""
        return self._spec

    @property
    def max_concurrency(self) -> int:
        """How many prompts of a list run side by side where the engine takes one prompt at a time."""
        return self._max_concurrency

    @overload
    def generate(
        self,
        prompt: str,
        *,
        max_new_tokens: int | None = ...,
        temperature: float | None = ...,
        top_p: float | None = ...,
        seed: int | None = ...,
        stop: str | Sequence[str] | None = ...,
        return_exceptions: bool = ...,
        **backend_kwargs: Any,
    ) -> GenerationOutput: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str],
        *,
        max_new_tokens: int | None = ...,
        temperature: float | None = ...,
        top_p: float | None = ...,
        seed: int | None = ...,
        stop: str | Sequence[str] | None = ...,
        return_exceptions: Literal[False] = ...,
        **backend_kwargs: Any,
    ) -> list[GenerationOutput]: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str],
        *,
        max_new_tokens: int | None = ...,
        temperature: float | None = ...,
        top_p: float | None = ...,
        seed: int | None = ...,
        stop: str | Sequence[str] | None = ...,
        return_exceptions: bool,
        **backend_kwargs: Any,
    ) -> list[GenerationOutput | Exception]: ...
    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        return_exceptions: bool = False,
        **backend_kwargs: Any,
    ) -> GenerationOutput | list[GenerationOutput] | list[Outcome]:
        """Generates for one prompt, or for a list of them in order.

        Returns with the text: results are waited for when they are read. A `temperature` above 0 samples, 0 is greedy;
        `stop` ends the text before a string; 32 tokens where nothing else is said. Other arguments go to the engine,
        for Hugging Face to `generate`. Of a list, the first failure is raised and what has not begun is not run; with
        `return_exceptions` it stands in its place instead. Prompts share a batch unless they are sampled with a `seed`
        or an argument works on one prompt only, such as `assistant_model`.

        Raises:
            ProbingRuntimeError: closed.
            ProbingTypeError: something that is no text, or an argument of the wrong type.
            ProbingValueError: an argument is out of range.
            EngineLimitationError: the engine cannot generate in this way, or a prompt has no tokens.
            Exception: what an inline probe raised.
        """
        settings = self._read_settings(max_new_tokens, temperature, top_p, seed, stop, backend_kwargs)
        with self._calls.call():
            if isinstance(prompt, str):
                return self._run([prompt], settings, returns_exceptions=False)[0]  # type: ignore[return-value]
            prompts = list(prompt)
            check_prompts(prompts)
            return self._run(prompts, settings, returns_exceptions=return_exceptions)

    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        **backend_kwargs: Any,
    ) -> GenerationStream:
        """Generates for one prompt on a thread; iterate for tokens, signals, and last the output. See `generate`.

        What fails is raised by the iteration, the signals of async points included that came while it ran.

        Raises:
            ProbingRuntimeError: closed.
            ProbingTypeError: `prompt` is no text, or an argument is of the wrong type.
            ProbingValueError: an argument is out of range.
        """
        settings = self._read_settings(max_new_tokens, temperature, top_p, seed, stop, backend_kwargs)
        check_prompts([prompt])
        request_id = uuid.uuid4().hex
        with self._calls.call():
            stream = GenerationStream(
                f"undercurrent-generate-{request_id}",
                generate=lambda put: self._stream_into(put, request_id, prompt, settings),
                cancel=lambda: self._runner.cancel(request_id),
                error_of=lambda _output: None,
            )
            with self._lock:
                self._streams.add(stream)
        return stream

    @contextmanager
    def record_to(
        self, folder: str | os.PathLike[str], *, keeps_prompts: bool = False, shard_bytes_max: int = 64 << 20
    ) -> Iterator[ActivationRecorder]:
        """While the block runs, what is generated is also written to `folder`, for `undercurrent replay`.

        Takes the records of the spec's points for requests that begin in the block, before probes get them. A disk that
        is full ends the recording and not the generation; leaving the block then raises it.

        Raises:
            ProbingValueError: the folder is not empty.
            ProbingRuntimeError: closed, a recording runs already, or the engine runs its requests itself.
            OSError: the folder cannot be written.
        """
        runner = self._runner
        if not isinstance(runner, BatchRunner) or runner.feed is not self._router:
            raise ProbingRuntimeError("recording needs a `BatchEngine` and one recording at a time")
        engine = self.adapter
        assert isinstance(engine, BatchEngine)
        with ActivationRecorder(
            folder,
            self._spec,
            model_name=engine.model_name,
            router=self._router,
            keeps_prompts=keeps_prompts,
            shard_bytes_max=shard_bytes_max,
        ) as recorder:
            runner.feed = recorder
            try:
                yield recorder
            finally:
                runner.feed = self._router

    def close(self) -> None:
        """Ends running generations after their current step, waits for results, and ends the workers. Idempotent.

        A router or engine that was passed in stays as it is; sinks are the caller's.
        """
        self._close(waits_for_results=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._close(waits_for_results=not isinstance(exc, KeyboardInterrupt))

    # ---- within ----------------------------------------------------------------------------------------------------

    def _close(self, *, waits_for_results: bool) -> None:
        if not self._calls.close():
            return
        self._runner.cancel_all()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        # Asked again, for a call that had begun and was not yet running.
        while not self._calls.wait(_CANCEL_EVERY_S) and time.monotonic() < deadline:
            self._runner.cancel_all()
        self._engine = None
        if self._owns_router and not waits_for_results:
            self._router.shutdown(wait=False)  # ends what the ender's threads wait for: none may outlive the program
        self._ender.close(wait=waits_for_results or self._owns_router)
        if self._owns_router:
            self._router.shutdown(wait=True)

    def _feed(self) -> RowRouter:
        return self._runner.feed if isinstance(self._runner, BatchRunner) else self._router

    def _read_settings(
        self,
        max_new_tokens: int | None,
        temperature: float | None,
        top_p: float | None,
        seed: int | None,
        stop: str | Sequence[str] | None,
        more: Mapping[str, Any],
    ) -> GenerationSettings:
        return read_settings(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=stop,
            more=more,
            is_transformers=getattr(self._engine, "reads_transformers_arguments", False),
        )

    def _run(self, prompts: Sequence[str], settings: GenerationSettings, *, returns_exceptions: bool) -> list[Outcome]:
        outcomes: list[Outcome] = []
        groups = self._runner.run(prompts, settings)
        try:
            for group in groups:
                for outcome in group:
                    if isinstance(outcome, GenerationOutput):
                        self._tell_result(outcome)
                for outcome in group:
                    if isinstance(outcome, Exception) and not returns_exceptions:
                        raise outcome
                outcomes += group
                if self._calls.is_closed and len(outcomes) < len(prompts):
                    raise ProbingRuntimeError(f"closed after {len(outcomes)} of {len(prompts)} prompts")
        finally:
            groups.close()
        return outcomes

    def _stream_into(
        self, put: Callable[[StreamEvent], None], request_id: str, prompt: str, settings: GenerationSettings
    ) -> GenerationOutput:
        def on_signal(point: str, signal: Any) -> None:
            put(SignalEvent(point, signal))

        feed = SignalTap(self._feed(), on_signal)
        tokens = TokenTeller(put, settings.stop)
        with self._calls.call():
            if self._teller is not None:
                self._teller.open(request_id, on_signal)
            try:
                output = self._runner.run_streamed(request_id, prompt, settings, feed=feed, on_text=tokens)
            finally:
                if self._teller is not None:
                    self._teller.close(request_id)
            tokens.finish()
            self._tell_result(output)
            put(output)
            return output

    def _tell_result(self, output: GenerationOutput) -> None:
        if self._on_result is None:
            return
        try:
            self._on_result(output)
        except Exception:
            _logger.exception("`on_result` raised, request %r", output.request_id)
