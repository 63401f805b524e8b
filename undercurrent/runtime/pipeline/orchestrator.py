"""Runs a model over the coalitions an estimator asks for. The one module that fills the key-value cache counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from undercurrent.runtime.archive import OnExists, RunArchive
from undercurrent.runtime.dedup import CoalitionDedupRegistry, dedup_enabled
from undercurrent.runtime.domain import Conversation, GenerationRecord, PlayerSet, partition, render
from undercurrent.runtime.domain.players import Tokenize
from undercurrent.runtime.errors import RuntimeStateError
from undercurrent.runtime.jobs import CoalitionJob, prefix_order
from undercurrent.runtime.keys import build_coalition_key
from undercurrent.runtime.kv_cache import build_snapshot_prefix_hash
from undercurrent.runtime.masking import pack_mask
from undercurrent.runtime.metrics import PerfSummary, SchedulerMetrics
from undercurrent.runtime.pipeline.estimators import estimate
from undercurrent.runtime.pipeline.explanation import Explanation
from undercurrent.runtime.pipeline.game import CoalitionGame, Coalitions
from undercurrent.runtime.pipeline.settings import CoalitionModel, PrefixReusing, RunManifest, RunSettings
from undercurrent.runtime.pipeline.values import ANSWER_VALUE, AnswerScorer, ValueFunction, value_function
from undercurrent.runtime.progress import CoalitionProgress
from undercurrent.runtime.protocols import RowSink
from undercurrent.runtime.retries import RetryPolicy
from undercurrent.runtime.scheduler import InferenceScheduler
from undercurrent.runtime.store import HotResultStore
from undercurrent.runtime.telemetry import NullObservabilitySink, ObservabilitySink

__all__ = ["explain", "plan_run"]

_CHUNK_COALITIONS = 4096
"""Texts are kept until their chunk is scored."""


async def explain(
    prompt: object,
    model: CoalitionModel,
    settings: RunSettings | None = None,
    *,
    archive: Path | str | None = None,
    on_exists: OnExists = "error",
    value: ValueFunction | None = None,
    tokenize: Tokenize | None = None,
    batch_size: int = 8,
    max_inflight: int = 1,
    retry: RetryPolicy | None = None,
    progress: CoalitionProgress | None = None,
    observability: ObservabilitySink | None = None,
    row_sinks: Iterable[RowSink] = (),
) -> Explanation:
    """Says what each part of a prompt does to the value of its generation.

    Args:
        prompt: what `Conversation.of` reads.
        model: has loaded its weights. Called on this event loop, with jobs sorted by shared prefix.
        archive: the run's folder; None keeps nothing. `on_exists` as for `RunArchive.open`.
        value: another value function than the one `settings.value` names.
        tokenize: the model's tokens, for players that are tokens.
        batch_size: most prompts of one call of the model.
        max_inflight: calls of the model that are on at once.
        retry: when a failed generation is tried again; None is never.

    Raises:
        RuntimeValueError: settings or prompt do not fit; before anything is generated.
        ArchiveError: see `RunArchive.open`.
        Exception: the first failure of the model, unwrapped.
    """
    settings = settings or RunSettings()
    manifest = plan_run(prompt, model, settings, tokenize=tokenize)
    with ExitStack() as stack:
        store = None
        if archive is not None:
            store = stack.enter_context(RunArchive.open(archive, manifest, on_exists=on_exists))
            if not store.is_read_only:
                for sink in row_sinks:
                    store.add_row_sink(sink)
        dedup = CoalitionDedupRegistry() if dedup_enabled(settings.dedup, settings.generation) else None
        texts = HotResultStore(2 * _CHUNK_COALITIONS)
        scheduler = InferenceScheduler(
            max_inflight, settings.generation, texts, dedup, store, progress=progress, retry=retry
        )
        scorer = value or value_function(settings.value)
        run = _Run(manifest, model, scorer, scheduler=scheduler, texts=texts, archive=store, batch_size=batch_size)
        explanation = await run.run(observability or NullObservabilitySink())
        if store is not None:
            await store.amark_complete()
    return explanation


def plan_run(
    prompt: object, model: CoalitionModel, settings: RunSettings, *, tokenize: Tokenize | None = None
) -> RunManifest:
    """What `explain` would do: its players, and the id that names the run. Asks the model for nothing but its name.

    Raises:
        RuntimeValueError: settings or prompt do not fit.
    """
    conversation = Conversation.of(prompt)
    players = partition(
        conversation, settings.players, roles=settings.roles, tokenize=tokenize, players_max=settings.players_max
    )
    render(conversation, players, [True] * len(players), settings.absence_policy)
    return RunManifest.of(settings, conversation, players, model.model_id)


class _Run:
    """One run, on one event loop. Estimators run in a thread and ask back for coalitions."""

    def __init__(
        self,
        manifest: RunManifest,
        model: CoalitionModel,
        value: ValueFunction,
        *,
        scheduler: InferenceScheduler,
        texts: HotResultStore,
        archive: RunArchive | None,
        batch_size: int,
    ) -> None:
        self._manifest = manifest
        self._settings = manifest.config
        self._players: PlayerSet = manifest.player_set
        self._model = model
        self._value = value
        self._scheduler = scheduler
        self._texts = texts
        self._archive = archive
        self._batch_size = batch_size
        self._base: GenerationRecord | None = None
        self._answer: str | None = None
        self._loop = asyncio.get_running_loop()
        self._pending: set[asyncio.Task[Any]] = set()
        self._is_stopped = False
        self._counts = SchedulerMetrics(0, 0, 0, 0)
        self._generation_s = self._scoring_s = 0.0

    async def run(self, spans: ObservabilitySink) -> Explanation:
        started_s = time.perf_counter()
        reused = _reused(self._model)
        with spans.span("orchestrator.run"):
            with spans.span("orchestrator.generate_base"):
                base = await self._generate_base()
            game = CoalitionGame(len(self._players), self._measure)
            with spans.span("orchestrator.schedule"):
                try:
                    attribution = await asyncio.to_thread(estimate, game, self._settings.estimator)
                finally:
                    self._stop()
                    if self._answer is not None and isinstance(self._model, AnswerScorer):
                        self._model.score_answer(None)
        total_s = time.perf_counter() - started_s
        hits, tokens = (after - before for after, before in zip(_reused(self._model), reused, strict=True))
        return Explanation(
            run_id=self._manifest.run_id,
            model_id=self._manifest.model_id,
            value_name=self._value.name,
            absence_policy=self._settings.absence_policy,
            conversation=self._manifest.conversation,
            players=self._players,
            attribution=attribution,
            base_text=base.text,
            metrics=msgspec.structs.replace(self._counts, kv_cache_hits=hits, kv_cache_reused_tokens=tokens),
            perf=PerfSummary(
                total_ms=total_s * 1e3,
                generation_ms=self._generation_s * 1e3,
                scoring_ms=self._scoring_s * 1e3,
                aggregation_ms=max(0.0, total_s - self._generation_s - self._scoring_s) * 1e3,
            ),
            archive=None if self._archive is None else str(self._archive.root),
        )

    async def _generate_base(self) -> GenerationRecord:
        """Generates for the whole prompt; its text is on disk before any part is left out."""
        everybody = [True] * len(self._players)
        (base,) = await self._generate([everybody])
        if self._archive is not None and not self._archive.is_read_only:
            await asyncio.to_thread(self._archive.write_base_generation, base.text)
        self._base = base
        if self._value.name == ANSWER_VALUE:
            if not isinstance(self._model, AnswerScorer):
                raise RuntimeStateError(
                    f"`{ANSWER_VALUE}` needs a model that scores a given answer, {type(self._model).__name__} does "
                    "not; use another value"
                )
            self._answer = base.text
            self._model.score_answer(base.text)
        return base

    # ---- called on the estimator's thread ----------------------------------------------------------------------------

    def _measure(self, masks: Coalitions) -> list[float]:
        values: list[float] = []
        for first in range(0, len(masks), _CHUNK_COALITIONS):
            chunk = masks[first : first + _CHUNK_COALITIONS].tolist()
            # No deadline of its own: the scheduler's jobs have theirs, and the end of the run ends this wait.
            values += asyncio.run_coroutine_threadsafe(self._score(chunk), self._loop).result()
        return values

    # ---- on the event loop -------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Ends what the estimator still waits for: its thread must not outlive the run."""
        self._is_stopped = True
        for task in self._pending:
            task.cancel()

    async def _score(self, masks: Sequence[Sequence[bool]]) -> list[float]:
        if self._is_stopped:
            raise RuntimeStateError("the run has ended")
        task = asyncio.current_task()
        assert task is not None
        self._pending.add(task)
        try:
            records = await self._generate(masks)
        finally:
            self._pending.discard(task)
        started_s = time.perf_counter()
        base = self._base
        assert base is not None
        values = await asyncio.to_thread(lambda: [self._value.score(base, record) for record in records])
        self._scoring_s += time.perf_counter() - started_s
        return values

    async def _generate(self, masks: Sequence[Sequence[bool]]) -> list[GenerationRecord]:
        """The generations of some coalitions, in their order."""
        started_s = time.perf_counter()
        jobs = [self._job(mask) for mask in masks]
        counts = await self._scheduler.run_batches(
            sorted(jobs, key=prefix_order), self._model, batch_size=self._batch_size, total=len(jobs)
        )
        self._counts = _sum(self._counts, counts)
        self._generation_s += time.perf_counter() - started_s
        return [self._record_of(job) for job in jobs]

    def _job(self, mask: Sequence[bool]) -> CoalitionJob:
        manifest, settings = self._manifest, self._settings
        generation: object = settings.generation
        if self._answer is not None:
            generation = {"generation": settings.generation, "answer": self._answer}
        packed = pack_mask(mask)
        return CoalitionJob(
            coalition_key=build_coalition_key(
                manifest.snapshot_id,
                manifest.player_ids,
                mask,
                settings.absence_policy,
                manifest.model_id,
                generation,
            ),
            snapshot_id=manifest.snapshot_id,
            snapshot=render(manifest.conversation, self._players, mask, settings.absence_policy),
            absence_policy=settings.absence_policy,
            mask_words=packed.words,
            mask_n_bits=packed.n_bits,
            model_id=manifest.model_id,
            prefix_hash=build_snapshot_prefix_hash(manifest, self._players, _Presence(mask)),
        )

    def _record_of(self, job: CoalitionJob) -> GenerationRecord:
        kept = self._texts.entry(job.coalition_key)
        if kept is None and self._archive is not None:
            kept = self._archive.lookup(job.coalition_key)
        assert kept is not None, "a run without an error has every generation"
        return GenerationRecord(kept.text, kept.logprobs, kept.values)


class _Presence(msgspec.Struct, frozen=True):
    present: Sequence[bool]


def _sum(left: SchedulerMetrics, right: SchedulerMetrics) -> SchedulerMetrics:
    pairs = zip(msgspec.structs.astuple(left), msgspec.structs.astuple(right), strict=True)
    return SchedulerMetrics(*map(sum, pairs))


def _reused(model: object) -> tuple[int, int]:
    if not isinstance(model, PrefixReusing):
        return 0, 0
    return model.kv_cache_hits, model.kv_cache_reused_tokens
