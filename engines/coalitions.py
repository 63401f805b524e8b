"""A Hugging Face model that generates for coalition runs: probes attached, prompt prefixes computed once."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import msgspec
import torch

from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal
from undercurrent.engines.base import Generation, RowRouter
from undercurrent.engines.capture import progression
from undercurrent.engines.hf import HFEngine
from undercurrent.engines.prompt_state import PromptState
from undercurrent.errors import ProbingRuntimeError, ProbingTypeError, ProbingValueError
from undercurrent.router import RowEntry
from undercurrent.runtime.domain import Conversation, GenerationConfig, GenerationRecord, ProbeValue
from undercurrent.runtime.jobs import CoalitionJob
from undercurrent.runtime.kv_cache import PrefixCacheManager
from undercurrent.runtime.pipeline import ANSWER_VALUE, FIRED_SUFFIX
from undercurrent.spec import ExtractionPoint, extraction_point_to_dict

__all__ = ["HFCoalitions", "measure_verdict"]

_SCORE_KEYS = ("score", "max_score", "final_mean", "probability")
_FIRED_KEYS = ("flagged", "aborted")
# A prompt this many times as long as the answer costs more to read than a batch saves by generating side by side.
_LONG_PROMPT = 4


class HFCoalitions:
    """A `BatchGenerator` and `AnswerScorer` of `undercurrent.runtime` over a loaded engine, which it borrows.

    `generate_batch` may be called on any event loop, by one run at a time; the model runs on a thread of its own. Use
    it as a context manager, or call `close`.
    """

    def __init__(
        self,
        engine: HFEngine,
        generation: GenerationConfig,
        *,
        points: Sequence[ExtractionPoint] = (),
        router: RowRouter | None = None,
        stops_when_fired: Collection[str] = (),
        reuses_prefixes: bool | None = None,
        prefix_entries: int = 4,
    ) -> None:
        """Starts nothing.

        Args:
            points: what probes read; they need a `router`. Every point gives two values: what its verdict says, under
                its own name, and whether it fired, under `<name>:fired`.
            stops_when_fired: points whose first flag or abort ends the generation, as their verdict cannot change: only
                `<name>:fired` is asked of them.
            reuses_prefixes: compute what prompts begin with once and generate one by one (True), or generate a batch
                side by side and go on from no other prompt (False); None decides by the length of the prompts.
            prefix_entries: prompt states kept.

        Raises:
            ProbingTypeError: points without a router.
            ProbingValueError: `stops_when_fired` names no point.
        """
        if points and router is None:
            raise ProbingTypeError("points were given without a `router` that leads to their probes")
        unknown = sorted(set(stops_when_fired) - {point.name for point in points})
        if unknown:
            raise ProbingValueError(f"`stops_when_fired` must name points, got {', '.join(map(repr, unknown))}")
        self._engine = engine
        self._generation = generation
        self._points = tuple(points)
        self._router = None if router is None else _WatchedRouter(router, frozenset(stops_when_fired))
        self._reuses_prefixes = reuses_prefixes
        self._states = PrefixCacheManager(prefix_entries)
        self._answer: str | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="undercurrent-coalitions")
        self._running: tuple[str, ...] = ()
        self._is_cancelled = threading.Event()
        self.kv_cache_hits = 0
        """Prompts whose beginning was not computed again."""
        self.kv_cache_reused_tokens = 0
        """Their tokens that were not."""
        self.prompt_tokens_computed = 0
        """Tokens of prompts that were."""

    @property
    def model_id(self) -> str:
        """The model's name, with a hash of the points where there are any."""
        name = self._engine.model_name
        if not self._points:
            return name
        spelled = msgspec.json.encode([extraction_point_to_dict(point) for point in self._points], order="sorted")
        return f"{name}+{hashlib.sha256(spelled).hexdigest()[:12]}"

    def tokenize(self, text: str) -> list[tuple[int, int]]:
        """Where the model's tokens of a text begin and end, in characters; white space around them left out."""
        found = self._engine.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        spans = []
        for start, end in found["offset_mapping"]:
            piece = text[start:end]
            if piece.strip():
                spans.append((start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())))
        return _apart(spans)

    def score_answer(self, answer: str | None) -> None:
        """From now on measures how likely `answer` is and generates nothing; None generates again."""
        self._answer = answer

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[GenerationRecord]:
        """Answers each job, in order. A cancelled call ends after the token at hand.

        Raises:
            ProbingRuntimeError: a verdict does not rest on every record, or holds no number.
            Exception: what an inline probe raised.
        """
        self._is_cancelled.clear()
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._answer_jobs, list(jobs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._is_cancelled.set()
            for request_id in self._running:
                self._engine.cancel(request_id)
            # No deadline: it is one token away, and a model still at work must not be called again.
            await asyncio.wait([work])
            raise

    def close(self) -> None:
        """Ends the thread and forgets what was computed; idempotent. The engine stays the caller's."""
        self._thread.shutdown(wait=True)
        self._states.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- on the model's thread ---------------------------------------------------------------------------------------

    def _answer_jobs(self, jobs: Sequence[CoalitionJob]) -> list[GenerationRecord]:
        prompts = [self._encode(job) for job in jobs]
        if self._answer is not None:
            return [self._score(prompt, self._answer) for prompt in prompts]
        if self._is_reusing(prompts):
            return [self._generate_from_prefix(prompt) for prompt in prompts]
        self.prompt_tokens_computed += sum(map(len, prompts))
        return self._generate(prompts)

    def _encode(self, job: CoalitionJob) -> list[int]:
        conversation = job.snapshot
        if not isinstance(conversation, Conversation):
            raise ProbingTypeError(f"a `Conversation` was expected as snapshot, got {type(conversation).__name__}")
        tokenizer = self._engine.tokenizer
        template = self._generation.template or getattr(tokenizer, "chat_template", None)
        if template is None:
            # An empty coalition may leave no text; a model needs a token to go on from.
            return self._engine.encode(conversation.text or "\n")
        token_ids = tokenizer.apply_chat_template(
            conversation.to_messages(), chat_template=template, add_generation_prompt=True, return_dict=False
        )
        return list(token_ids)

    def _is_reusing(self, prompts: Sequence[Sequence[int]]) -> bool:
        if self._reuses_prefixes is not None:
            return self._reuses_prefixes
        longest = max(map(len, prompts))
        # What is not computed again cannot be read: only the last token of a prompt always is.
        reads_prompt = any(progression(point, longest)[0] < longest - 1 for point in self._points)
        return not reads_prompt and longest >= _LONG_PROMPT * self._generation.max_new_tokens

    @contextmanager
    def _state_for(self, prompt: list[int]) -> Iterator[PromptState]:
        """A state of the longest known beginning; what the block adds of the prompt is kept for the next one."""
        found, shared = None, 0
        if self._reuses_prefixes is not False:
            found, shared = self._states.longest_prefix(prompt)
        state = PromptState()
        if isinstance(found, PromptState) and shared:
            state = found.copy()
            state.crop(shared)
            self.kv_cache_hits += 1
            self.kv_cache_reused_tokens += shared
        self.prompt_tokens_computed += len(prompt) - state.token_count
        yield state
        if self._reuses_prefixes is not False:
            state.crop(len(prompt))
            self._states.store(prompt, state)

    def _generate_from_prefix(self, prompt: list[int]) -> GenerationRecord:
        with self._state_for(prompt) as state:
            return self._generate([prompt], state)[0]

    def _generate(self, prompts: Sequence[list[int]], state: PromptState | None = None) -> list[GenerationRecord]:
        request_ids = tuple(uuid.uuid4().hex for _ in prompts)
        for request_id in request_ids:
            self._engine.register_extraction(request_id, self._points)
        self._running = request_ids
        try:
            if self._is_cancelled.is_set():
                raise ProbingRuntimeError("the batch was cancelled")
            generations = self._engine.generate_batch(
                request_ids, prompts, _arguments_of(self._generation), self._router or _NoRouter(), state=state
            )
        finally:
            self._running = ()
            for request_id in request_ids:
                self._engine.unregister_extraction(request_id)
        return [self._record_of(generation) for generation in generations]

    def _record_of(self, generation: Generation) -> GenerationRecord:
        if generation.error is not None:
            raise generation.error
        values: dict[str, ProbeValue] = {}
        for name, result in generation.results.items():
            coverage = result.metadata.get("coverage", {})
            if not coverage.get("complete", True):
                raise ProbingRuntimeError(
                    f"the verdict of point {name!r} does not rest on every record ({', '.join(coverage['reasons'])}); "
                    "give the point `overflow_policy: block`, or make it inline"
                )
            assert self._router is not None
            scores = self._router.take_scores(generation.request_id, name) or _scores_in(result, coverage.get("seen"))
            values[name] = ProbeValue(measure_verdict(result), scores)
            values[f"{name}{FIRED_SUFFIX}"] = ProbeValue(float(_has_fired(result)))
        return GenerationRecord(generation.text, None, values or None)

    @torch.inference_mode()
    def _score(self, prompt: list[int], answer: str) -> GenerationRecord:
        """The answer as if it had been generated, and how likely each of its tokens was."""
        tokenizer = self._engine.tokenizer
        answer_ids: list[int] = tokenizer(answer, add_special_tokens=False)["input_ids"]
        if not answer_ids:
            return GenerationRecord(answer, (), {ANSWER_VALUE: ProbeValue(0.0)})
        model = self._engine.model
        with self._state_for(prompt) as state:
            new = torch.tensor([prompt[state.token_count :] + answer_ids], device=model.device)
            logits = model(input_ids=new, cache=state.cache, use_cache=True).logits[0]
        chosen = logits[-len(answer_ids) - 1 : -1].float().log_softmax(-1)
        logprobs = tuple(chosen.gather(1, torch.tensor(answer_ids, device=model.device)[:, None])[:, 0].tolist())
        return GenerationRecord(answer, logprobs, {ANSWER_VALUE: ProbeValue(sum(logprobs), logprobs)})


def _apart(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans, joined where they overlap: the bytes of one character may be several tokens."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _arguments_of(generation: GenerationConfig) -> dict[str, Any]:
    """The settings as transformers' `generate` takes them."""
    arguments: dict[str, Any] = {"max_new_tokens": generation.max_new_tokens, "do_sample": generation.temperature > 0}
    if generation.temperature > 0:
        arguments |= {
            "temperature": generation.temperature,
            "top_k": generation.top_k,
            "top_p": generation.top_p,
            "seed": generation.seed,
        }
    if generation.stop:
        arguments["stop_strings"] = list(generation.stop)
    return arguments


def _scores_in(result: ProbeResult, seen: object) -> tuple[float, ...]:
    """The scores of an async point, where its probe keeps the signal of every record."""
    scores = [signal.confidence for signal in result.signal_history if signal.confidence is not None]
    return tuple(map(float, scores)) if len(scores) == seen else ()


def measure_verdict(result: ProbeResult) -> float:
    """The number a verdict stands for: itself, or the first of `score`, `max_score`, `final_mean`, `probability`.

    A verdict without one counts by whether it flagged or aborted.

    Raises:
        ProbingRuntimeError: there is no number in it.
    """
    verdict = result.verdict
    if isinstance(verdict, dict):
        keys = [key for key in (*_SCORE_KEYS, *_FIRED_KEYS) if verdict.get(key) is not None]
        verdict = verdict[keys[0]] if keys else verdict
    try:
        return float(verdict)
    except (TypeError, ValueError):
        raise ProbingRuntimeError(
            f"the verdict of point {result.extraction_point_name!r} was expected to be a number or to hold one of "
            f"{', '.join(map(repr, _SCORE_KEYS))}, got {result.verdict!r}; return its number under one of these keys"
        ) from None


def _has_fired(result: ProbeResult) -> bool:
    said = any(signal.action != ProbeAction.CONTINUE for signal in result.signal_history)
    verdict = result.verdict
    return said or (isinstance(verdict, dict) and any(verdict.get(key) for key in _FIRED_KEYS))


class _NoRouter:
    """Stands where no point is read."""

    def register_request(self, *_: object) -> None:
        """Nothing is routed."""

    def step(self) -> Any:
        """No worker is to be woken."""
        raise AssertionError("no point is read, so nothing is routed")

    def route_rows(self, *_: object) -> list[ProbeSignal | None]:
        """Nothing is routed."""
        raise AssertionError("no point is read, so nothing is routed")

    def end_request(self, request_id: str) -> dict[str, ProbeResult]:
        """There are no probes."""
        return {}


class _WatchedRouter:
    """A router that keeps the scores of inline points, and whose flags of some points end the generation."""

    def __init__(self, router: RowRouter, stops: frozenset[str]) -> None:
        self._router = router
        self._stops = stops
        self._scores: dict[tuple[str, str], list[float]] = {}
        self.register_request = router.register_request
        self.step = router.step
        self.end_request = router.end_request

    def route_rows(self, rows: Any, layer: int, tensor_type: Any, entries: list[RowEntry]) -> list[ProbeSignal | None]:
        """Routes the rows; a flag of a point that stops comes back as an abort."""
        signals = self._router.route_rows(rows, layer, tensor_type, entries)
        return [
            None if signal is None else self._watch(signal, entry)
            for entry, signal in zip(entries, signals, strict=True)
        ]

    def take_scores(self, request_id: str, point_name: str) -> tuple[float, ...]:
        """The scores of an ended request in the order of its records; they are forgotten here."""
        return tuple(self._scores.pop((request_id, point_name), ()))

    def _watch(self, signal: ProbeSignal, entry: RowEntry) -> ProbeSignal:
        if signal.confidence is not None:
            scores = self._scores.setdefault((entry.request_id, entry.extraction_point_name), [])
            scores.append(float(signal.confidence))
        if signal.action == ProbeAction.FLAG and entry.extraction_point_name in self._stops:
            return replace(signal, action=ProbeAction.ABORT)
        return signal
