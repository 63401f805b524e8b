"""The contract of an engine: what it can read from a model, and how a request runs through it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import numpy as np

from undercurrent.core import ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import ProbingError, ProbingRuntimeError, did_you_mean
from undercurrent.router import RowEntry
from undercurrent.spec import ExtractionPoint, TensorType

__all__ = [
    "BatchEngine",
    "CaptureAuditError",
    "EngineAdapter",
    "EngineCapabilities",
    "EngineLimitationError",
    "FinishReason",
    "Generation",
    "Prompt",
    "RowRouter",
    "TextListener",
]

Prompt = str | Sequence[int]
"""A text, or the token ids of one, used as they are."""

TextListener = Callable[[str, str, tuple[int, ...]], None]
"""Called with (request_id, text piece, token ids) for each step, on the generating thread."""

_LISTED_LAYERS_MAX = 5


class EngineLimitationError(ProbingError, ValueError):
    """The engine cannot honour a point, a model or a generation argument; the message says why and what to do."""


class CaptureAuditError(ProbingRuntimeError):
    """The rows that were captured are not the rows of the tokens that were computed, so none of them is delivered."""


class FinishReason(StrEnum):
    """Why the generation of one request ended."""

    STOP = "stop"
    """The model produced an end token or a stop string."""
    LENGTH = "length"
    """The token limit, or the time limit, of the call."""
    ABORT = "abort"
    """An inline probe asked for it."""
    CANCELLED = "cancelled"
    """The caller did, by `cancel` or by closing a stream."""
    ERROR = "error"
    """An inline probe of this request raised; other requests of the batch went on."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request of an engine came to."""

    request_id: str
    text: str
    """The generated text without the prompt and without special tokens."""
    token_ids: tuple[int, ...]
    """The generated tokens, an end token included."""
    prompt_len: int
    """Tokens of the prompt, padding not counted."""
    finish_reason: FinishReason
    other_texts: tuple[str, ...] = ()
    """The texts of the further sequences, where the call asked for several per prompt."""
    abort_signal: ProbeSignal | None = None
    abort_point: str | None = None
    """The point whose probe gave `abort_signal`."""
    error: BaseException | None = None
    """What the inline probe raised, under `FinishReason.ERROR`."""
    results: Mapping[str, ProbeResult] = field(default_factory=dict)
    """By point name; empty where the caller ends the request itself."""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine with a loaded model can read."""

    layer_count: int
    hidden_size: int
    tensor_types: frozenset[TensorType]

    @property
    def final_norm_layer(self) -> int:
        """The layer number under which `final_norm` is read: the one behind the last decoder layer."""
        return self.layer_count

    def find_problems(self, point: ExtractionPoint) -> list[str]:
        """One sentence per reason why `point` cannot be honoured; empty if it can."""
        where = f"point {point.name!r}"
        if point.tensor_type not in self.tensor_types:
            known = sorted(kind.value for kind in self.tensor_types)
            return [
                f"{where}: this model gives no `tensor_type` {_word(point.tensor_type)!r}; it gives {', '.join(known)}"
                + did_you_mean(_word(point.tensor_type), known)
            ]
        problems = []
        if not point.layers:
            problems.append(f"{where}: `layers` is empty; name at least one layer")
        is_norm = point.tensor_type is TensorType.FINAL_NORM
        lowest, highest = (self.final_norm_layer,) * 2 if is_norm else (0, self.layer_count - 1)
        wrong = [layer for layer in point.layers if not lowest <= layer <= highest]
        if wrong:
            listed = ", ".join(map(str, wrong[:_LISTED_LAYERS_MAX]))
            expected = f"{lowest}, the number behind the last layer" if is_norm else f"0 to {highest}"
            problems.append(f"{where}: `layers` of {_word(point.tensor_type)!r} must be {expected}, got {listed}")
        if point.position.needs_generation_length:
            problems.append(
                f"{where}: position {point.position.to_raw()!r} counts from the end of a generation whose length is not"
                " known while it runs; use 'generated[*]' and keep the last record in the probe"
            )
        return problems


def _word(value: object) -> str:
    return value.value if isinstance(value, TensorType) else str(value)


class RowRouter(Protocol):
    """What an engine needs of a router; `undercurrent.router.Router` is one."""

    def register_request(
        self, request_id: str, extraction_points: Sequence[ExtractionPoint], ctx: RequestContext
    ) -> object:
        """Makes the request's points routable."""

    def step(self) -> AbstractContextManager[object]:
        """Marks one step of the engine, at whose end each worker is woken once."""

    def route_rows(self, rows: Any, layer: int, tensor_type: Any, entries: list[RowEntry]) -> list[ProbeSignal | None]:
        """Routes `rows[entry.row]` for each entry, in order.

        Raises:
            RowsError: some entries failed; the others were routed.
        """

    def end_request(self, request_id: str) -> dict[str, ProbeResult]:
        """Ends the request and returns one result per point."""


class EngineAdapter(ABC):
    """An inference engine as the rest of the house sees it.

    A request runs in three calls: `register_extraction`, `generate` with a router, `unregister_extraction`. `generate`
    registers the request at the router, feeds it, and ends it there, so that results are complete when it returns.
    """

    @property
    def capabilities(self) -> EngineCapabilities:
        """What the loaded model gives; an adapter written for 0.1.0 does not say.

        Raises:
            EngineLimitationError: this engine does not say.
            ProbingRuntimeError: no model is loaded.
        """
        raise EngineLimitationError(f"{type(self).__name__} does not say what its model gives; define `capabilities`")

    @abstractmethod
    def load_model(self, model_name_or_path: Any, **options: Any) -> None:
        """Loads a model and makes the engine ready to generate."""

    @abstractmethod
    def register_extraction(self, request_id: str, extraction_points: Sequence[ExtractionPoint]) -> None:
        """Says what to capture for a request that will be generated.

        Raises:
            EngineLimitationError: a point cannot be honoured by this model.
            ProbingRuntimeError: the id is taken, or no model is loaded.
        """

    @abstractmethod
    def generate(self, request_id: str, prompt: Any, generation_kwargs: Mapping[str, Any], router: RowRouter) -> str:
        """Generates for a registered request and returns the text without the prompt."""

    @abstractmethod
    def unregister_extraction(self, request_id: str) -> None:
        """Forgets a request; unknown ids are no error, so that it can stand in a `finally`."""


class BatchEngine(EngineAdapter):
    """An engine that generates for several requests in one batch, says what comes as it comes, and can be cancelled."""

    reads_transformers_arguments: ClassVar[bool] = False
    """Whether generation arguments are those of transformers' `generate`."""

    @property
    @abstractmethod
    def model_name(self) -> str:
        """What probes are told the model is called."""

    @abstractmethod
    def encode(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt.

        Raises:
            EngineLimitationError: there are none, or a text cannot be read.
        """

    @abstractmethod
    def cancel(self, request_id: str) -> bool:
        """Ends a running request after its current step, from any thread; False where it does not run."""

    @abstractmethod
    def generate_batch(
        self,
        request_ids: Sequence[str],
        prompts: Sequence[Prompt],
        generation_kwargs: Mapping[str, Any],
        router: RowRouter,
        *,
        on_text: TextListener | None = None,
        opens_requests: bool = True,
        ends_requests: bool = True,
    ) -> list[Generation]:
        """Generates for several registered requests in one batch; answers are in order.

        With `opens_requests` it registers them at the router, and ends them if the call fails; without, the caller has
        registered them. With `ends_requests` it ends them, and each answer holds its results; without, the caller has
        the text at once and calls `router.end_request` when it wants the verdicts. A request whose inline probe aborts
        or raises stops; the others go on.

        Raises:
            EngineLimitationError: something that this engine cannot do.
            ProbingRuntimeError: an unregistered id, or no model.
        """


class RegisteredPoints:
    """The points per request that `register_extraction` was given; shared by the adapters, one owner each."""

    def __init__(self) -> None:
        # Single dictionary operations, each atomic under the GIL, from any thread.
        self._points: dict[str, tuple[ExtractionPoint, ...]] = {}

    def add(self, request_id: str, points: Iterable[ExtractionPoint], capabilities: EngineCapabilities) -> None:
        """Checks and stores.

        Raises:
            EngineLimitationError: with every problem of every point.
            ProbingRuntimeError: the id is taken.
        """
        kept = tuple(points)
        problems = [problem for point in kept for problem in capabilities.find_problems(point)]
        if problems:
            raise EngineLimitationError("; ".join(problems))
        if self._points.setdefault(request_id, kept) is not kept:
            raise ProbingRuntimeError(
                f"request_id {request_id!r} is already registered; call `unregister_extraction({request_id!r})` first"
            )

    def get(self, request_id: str) -> tuple[ExtractionPoint, ...]:
        """The points of a request.

        Raises:
            ProbingRuntimeError: it was never registered.
        """
        points = self._points.get(request_id)
        if points is None:
            raise ProbingRuntimeError(
                f"request_id {request_id!r} is not registered; call `register_extraction` first"
                + did_you_mean(request_id, self._points)
            )
        return points

    def remove(self, request_id: str) -> None:
        """Forgets a request, if it is known."""
        self._points.pop(request_id, None)


IndexArray = np.ndarray[Any, np.dtype[np.int64]]
"""Positions, columns and rows, `int64`."""
