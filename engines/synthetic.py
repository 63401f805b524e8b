"""`SyntheticEngine`: a deterministic engine without a model, for tests, benchmarks and examples."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from undercurrent.engines.base import (
    BatchEngine,
    EngineCapabilities,
    EngineLimitationError,
    FinishReason,
    Generation,
    IndexArray,
    Prompt,
    RegisteredPoints,
    RowRouter,
    TextListener,
)
from undercurrent.engines.capture import BatchCapture, CapturedRows, SequenceShape, TensorKey
from undercurrent.engines.routing import BatchRouting, RequestOutcome, opened_requests, with_results
from undercurrent.errors import ProbingTypeError, ProbingValueError
from undercurrent.spec import ExtractionPoint, TensorType

__all__ = ["SyntheticEngine"]

_DEFAULT_NEW_TOKENS = 32
_TABLE_ROWS = 257  # prime, so that no stride repeats a row early
_CALIBRATION_S = 0.02
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

Array = np.ndarray[Any, np.dtype[Any]]


class SyntheticEngine(BatchEngine):
    """Generates letters and activations that depend on nothing but request id, layer, tensor type and position.

    A step costs `step_busy_s` of work on the calling thread (Python code that holds the GIL, as a host-bound decode
    loop does) and then `step_wait_s` of waiting (as for a device). The work is a fixed number of loop turns, measured
    once: a thread that competes for the GIL makes a step longer. The first two elements of a row are its position and
    `marker(request_id)`, so that a row that reached the wrong request shows.
    """

    def __init__(
        self,
        *,
        layer_count: int = 8,
        hidden_size: int = 4096,
        step_busy_s: float = 0.0,
        step_wait_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Raises:
        ProbingValueError: a count below 1, a width below 2, or a negative time.
        """
        if layer_count < 1 or hidden_size < 2 or step_busy_s < 0 or step_wait_s < 0:
            raise ProbingValueError(
                "expected `layer_count` >= 1, `hidden_size` >= 2 and step times >= 0, got"
                f" {layer_count!r}, {hidden_size!r}, {step_busy_s!r} and {step_wait_s!r}"
            )
        self._capabilities = EngineCapabilities(
            layer_count=layer_count,
            hidden_size=hidden_size,
            tensor_types=frozenset(TensorType) - {TensorType.KV},
        )
        self._busy_turns = round(step_busy_s * _measure_turns_per_second()) if step_busy_s else 0
        self._step_wait_s = step_wait_s
        self._seed = seed
        self._tables: dict[TensorKey, Array] = {}
        self._points = RegisteredPoints()
        self._cancelled: dict[str, bool] = {}  # by running request; single dictionary operations only

    @property
    def model_name(self) -> str:
        """`synthetic`."""
        return "synthetic"

    @property
    def capabilities(self) -> EngineCapabilities:
        """Every tensor type but `kv`."""
        return self._capabilities

    def load_model(self, model_name_or_path: Any = "synthetic", **options: Any) -> None:
        """Accepts any name; there is nothing to load."""
        if options:
            raise ProbingTypeError(f"the synthetic engine takes no options, got {', '.join(map(repr, options))}")

    def register_extraction(self, request_id: str, extraction_points: Sequence[ExtractionPoint]) -> None:
        """Says what to capture for a request; see `EngineAdapter.register_extraction`."""
        self._points.add(request_id, extraction_points, self._capabilities)

    def unregister_extraction(self, request_id: str) -> None:
        """Forgets a request."""
        self._points.remove(request_id)

    def encode(self, prompt: Prompt) -> list[int]:
        """One token per letter; see `BatchEngine.encode`."""
        if not len(prompt):
            raise EngineLimitationError("a prompt has no tokens; give it at least one letter")
        return [ord(token) if isinstance(token, str) else int(token) for token in prompt]

    def cancel(self, request_id: str) -> bool:
        """Ends a running request after its current step, from any thread; False where it does not run."""
        is_running = request_id in self._cancelled
        if is_running:
            self._cancelled[request_id] = True
        return is_running

    def generate(self, request_id: str, prompt: Prompt, generation_kwargs: Mapping[str, Any], router: RowRouter) -> str:
        """Generates for one registered request; `generation_kwargs` may hold `max_new_tokens`.

        Raises:
            Exception: what an inline probe raised.
        """
        generation = self.generate_batch([request_id], [prompt], generation_kwargs, router)[0]
        if generation.error is not None:
            raise generation.error
        return generation.text

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
        """Generates for several requests in one batch, one token per letter; see `BatchEngine.generate_batch`."""
        unknown = set(generation_kwargs) - {"max_new_tokens"}
        if unknown:
            raise EngineLimitationError(f"the synthetic engine knows `max_new_tokens` only, got {sorted(unknown)}")
        new_tokens = int(generation_kwargs.get("max_new_tokens", _DEFAULT_NEW_TOKENS))
        lengths = [len(self.encode(prompt)) for prompt in prompts]
        columns = max(lengths, default=0)
        sequences = [
            SequenceShape(request_id, length, columns - length, self._points.get(request_id))
            for request_id, length in zip(request_ids, lengths, strict=True)
        ]
        capture = BatchCapture(sequences, token_id_of=lambda text: ord(text) if len(text) == 1 else None)
        opened = opened_requests(router, sequences, prompts, model_name=self.model_name)
        try:
            with opened if opens_requests else nullcontext():
                self._cancelled.update(dict.fromkeys(request_ids, False))
                generations = self._run(capture, BatchRouting(router, capture), columns, new_tokens, on_text)
        finally:
            for request_id in request_ids:
                self._cancelled.pop(request_id, None)
        return with_results(generations, router) if ends_requests else generations

    def marker(self, request_id: str) -> int:
        """The number that the second element of each of a request's rows holds."""
        return zlib.crc32(request_id.encode()) % (1 << 16)

    def activation(self, request_id: str, layer: int, tensor_type: TensorType, position: int) -> Array:
        """The row that a record of this request, tensor and position holds: `(hidden,) float32`."""
        markers = np.array([self.marker(request_id)], np.int64)
        row: Array = self._rows((layer, tensor_type), np.array([position], np.int64), markers)[0]
        return row

    def token(self, request_id: str, generated_index: int) -> int:
        """The token that a request generates at an index: the code of a lower-case letter."""
        return ord(_LETTERS[zlib.crc32(f"{self._seed}:{request_id}:{generated_index}".encode()) % len(_LETTERS)])

    def _run(
        self,
        capture: BatchCapture,
        routing: BatchRouting,
        columns: int,
        new_tokens: int,
        on_text: TextListener | None,
    ) -> list[Generation]:
        markers = np.array([self.marker(sequence.request_id) for sequence in capture.sequences], np.int64)
        tokens: list[list[int]] = [[] for _ in capture.sequences]
        reasons: list[FinishReason | None] = [None] * len(tokens)
        first = 0
        for index in range(new_tokens):
            if all(reasons):
                break
            self._spend_step()
            selected = capture.select(first, columns + index - first)
            self._route(capture, routing, selected, markers)
            first = columns + index
            chosen = np.array([[self.token(sequence.request_id, index)] for sequence in capture.sequences], np.int64)
            capture.observe(first, chosen)
            for row, sequence in enumerate(capture.sequences):
                if reasons[row] is not None:
                    continue
                token = int(chosen[row, 0])
                tokens[row].append(token)
                if on_text is not None:
                    on_text(sequence.request_id, chr(token), (token,))
                reasons[row] = self._end_reason(sequence.request_id, routing.outcomes[row])
                if reasons[row] is not None:
                    capture.end_sequence(row, column=first)
        return [
            Generation(
                request_id=sequence.request_id,
                text="".join(map(chr, tokens[row])),
                token_ids=tuple(tokens[row]),
                prompt_len=sequence.prompt_len,
                finish_reason=reasons[row] or FinishReason.LENGTH,
                abort_signal=routing.outcomes[row].abort_signal,
                abort_point=routing.outcomes[row].abort_point,
                error=routing.outcomes[row].error,
            )
            for row, sequence in enumerate(capture.sequences)
        ]

    def _end_reason(self, request_id: str, outcome: RequestOutcome) -> FinishReason | None:
        if outcome.error is not None:
            return FinishReason.ERROR
        if outcome.abort_signal is not None:
            return FinishReason.ABORT
        return FinishReason.CANCELLED if self._cancelled.get(request_id) else None

    def _route(self, capture: BatchCapture, routing: BatchRouting, selected: CapturedRows, markers: IndexArray) -> None:
        if not len(selected):
            return
        with routing.router.step():
            for key in capture.keys:
                rows = capture.rows_of(selected, key)
                if len(rows):
                    routing.route(key, self._rows(key, rows.positions, markers[rows.sequences]), rows)

    def _rows(self, key: TensorKey, positions: IndexArray, markers: IndexArray) -> Array:
        table = self._tables.get(key)
        if table is None:
            layer, tensor_type = key
            seed = [self._seed, layer, zlib.crc32(tensor_type.value.encode())]
            shape = (_TABLE_ROWS, self._capabilities.hidden_size)
            table = self._tables[key] = np.random.default_rng(seed).standard_normal(shape, np.float32)
        rows: Array = table[(positions + markers) % _TABLE_ROWS]
        rows[:, 0] = positions
        rows[:, 1] = markers
        return rows

    def _spend_step(self) -> None:
        _turn(self._busy_turns)
        if self._step_wait_s:
            time.sleep(self._step_wait_s)


def _turn(count: int) -> int:
    """Pure Python work in proportion to `count`."""
    total = 0
    for number in range(count):
        total = (total + number * number) & 0xFFFF
    return total


def _measure_turns_per_second() -> float:
    """How many turns a second of CPU time holds; the best of several short runs, as interruptions only add time."""
    best = 0.0
    for _ in range(5):
        turns, begin = 20_000, time.thread_time()
        while (elapsed := _spent(turns, begin)) < _CALIBRATION_S:
            turns, begin = turns * 2, time.thread_time()
        best = max(best, turns / elapsed)
    return best


def _spent(turns: int, begin: float) -> float:
    _turn(turns)
    return time.thread_time() - begin
