"""Runs coalition jobs: lazily, concurrently, each text once, and every row committed before it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from undercurrent.runtime.archive_rows import CoalitionRecordDraft
from undercurrent.runtime.asking import Ask, ask_one_by_one, ask_with_retries
from undercurrent.runtime.batches import JobBatcher
from undercurrent.runtime.dedup import CoalitionDedupRegistry
from undercurrent.runtime.errors import (
    ArchiveStateError,
    JobCancelledError,
    RuntimeStateError,
    RuntimeTypeError,
    RuntimeValueError,
)
from undercurrent.runtime.jobs import CoalitionJob
from undercurrent.runtime.metrics import SchedulerMetrics
from undercurrent.runtime.progress import CoalitionProgress, NullCoalitionProgress
from undercurrent.runtime.protocols import BatchGenerator, GenerateBatchFn, GenerateFn
from undercurrent.runtime.retries import RetryPolicy
from undercurrent.runtime.slots import PrioritySlots
from undercurrent.runtime.store import HotResultStore, StoredGeneration

__all__ = ["GenerateFn", "InferenceScheduler"]

PENDING_PER_INFLIGHT = 4
"""Live tasks per concurrent call, where `pending_limit` does not say."""


class RowArchive(Protocol):
    """What the scheduler asks of an archive; `RunArchive` has it."""

    @property
    def is_read_only(self) -> bool:
        """It takes no row."""

    def lookup(self, coalition_key: str) -> StoredGeneration | None:
        """What was recorded before it was opened."""

    def has_recorded(self, coalition_key: str) -> bool:
        """Tells whether `lookup` knows a key."""

    async def aappend(self, draft: CoalitionRecordDraft) -> int:
        """Returns when the row is committed."""


class _InterruptedJob(Exception):
    """Carries an interrupt out of a task group."""

    def __init__(self, interrupt: BaseException) -> None:
        super().__init__(interrupt)
        self.interrupt = interrupt


class _Counts:
    """The counters of one run."""

    __slots__ = ("cache_hits", "deduplicated", "executed", "requested")

    def __init__(self) -> None:
        self.requested = self.executed = self.deduplicated = self.cache_hits = 0


class InferenceScheduler:
    """Runs jobs on one event loop at a time; it may run again, on the same loop or another.

    Store, registry and archive may be shared by several runs of one loop at the same time.
    """

    def __init__(
        self,
        max_inflight: int,
        generation: object,
        store: HotResultStore,
        dedup: CoalitionDedupRegistry | None = None,
        archive: RowArchive | None = None,
        pending_limit: int | None = None,
        progress: CoalitionProgress | None = None,
        *,
        retry: RetryPolicy | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Makes a scheduler; nothing starts before a run.

        Args:
            max_inflight: most concurrent calls of the generator.
            generation: the settings the jobs were keyed with; kept, not read; may be None.
            store: takes every text; a job whose key it has is a cache hit.
            dedup: jobs whose key is in flight wait for the first; None lets every job run that the store does not know.
            archive: takes a row per job; a key it had when it was opened is a cache hit without a new row.
            pending_limit: most live tasks; None or 0 is `4 * max_inflight`, times `batch_size` for batches.
            retry: when a failed generation is tried again; None is never.
            deadline_s: longest a job may take from being taken to being generated; None is no limit.

        Raises:
            RuntimeValueError: a number is out of range.
        """
        if max_inflight < 1:
            raise RuntimeValueError(f"`max_inflight` must be >= 1, got {max_inflight!r}")
        if pending_limit is not None and pending_limit < 0:
            raise RuntimeValueError(f"`pending_limit` must be >= 1, or None for the default, got {pending_limit!r}")
        if deadline_s is not None and not deadline_s > 0:
            raise RuntimeValueError(f"`deadline_s` must be above 0, got {deadline_s!r}")
        self.max_inflight = max_inflight
        self.generation = generation
        self.pending_limit = pending_limit or PENDING_PER_INFLIGHT * max_inflight
        self._has_pending_limit = bool(pending_limit)
        self._store = store
        self._dedup = dedup
        self._archive = archive
        self._progress = NullCoalitionProgress() if progress is None else progress
        self._retry = retry or RetryPolicy()
        self._is_retrying = retry is not None or deadline_s is not None
        self._deadline_s = deadline_s
        self._slots = PrioritySlots(max_inflight)
        self._planned = self._done = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run_count = 0

    async def run(self, jobs: Sequence[CoalitionJob], generate: GenerateFn) -> SchedulerMetrics:
        """`run_iter` for jobs that are all there: the plan is known."""
        return await self.run_iter(iter(jobs), generate, total=len(jobs))

    async def run_iter(
        self, jobs: Iterable[CoalitionJob], generate: GenerateFn, total: int | None = None
    ) -> SchedulerMetrics:
        """Runs jobs as the iterator gives them, one call of `generate(job.snapshot)` each.

        The first failure, of a job or of the iterator, cancels the other jobs and is raised as it is.

        Args:
            total: how many jobs will come, for the progress; None plans each as it comes.

        Raises:
            JobCancelledError: a generator ended by a cancellation of its own.
            JobTimeoutError: a deadline passed.
            GenerationTypeError: a generator returned something that is no generation.
            RuntimeStateError: a run of this scheduler is on in another event loop.
        """
        ask = self._patient(ask_one_by_one(generate, self._slots))
        return await self._run(jobs, lambda _: ask, total, self.pending_limit)

    async def run_batches(
        self,
        jobs: Iterable[CoalitionJob],
        generator: BatchGenerator | GenerateBatchFn,
        *,
        batch_size: int = 8,
        total: int | None = None,
    ) -> SchedulerMetrics:
        """`run_iter` for a generator that takes several jobs in one call, up to `batch_size`.

        Jobs that wait for the model are sorted so that a batch shares the longest prefixes. `max_inflight` bounds the
        concurrent calls. A call that raises fails each of its jobs; with a retry policy each is tried again.

        Raises:
            RuntimeValueError: `batch_size` is below 1.
            As `run_iter`.
        """
        if batch_size < 1:
            raise RuntimeValueError(f"`batch_size` must be >= 1, got {batch_size!r}")
        generate_batch = generator.generate_batch if isinstance(generator, BatchGenerator) else generator
        if not callable(generate_batch):
            raise RuntimeTypeError(f"an object with `generate_batch` was expected, got {type(generator).__qualname__}")

        def make_ask(group: asyncio.TaskGroup) -> Ask:
            batcher = JobBatcher(
                generate_batch, batch_size=batch_size, slots=self._slots, start=lambda work: group.create_task(work)
            )
            return self._patient(batcher.ask)

        pending_limit = self.pending_limit * (1 if self._has_pending_limit else batch_size)
        return await self._run(jobs, make_ask, total, pending_limit)

    def _patient(self, ask: Ask) -> Ask:
        patient = ask_with_retries(ask, self._retry, self._deadline_s)
        if self._is_retrying:
            return patient

        def choose(job: CoalitionJob) -> Awaitable[tuple[StoredGeneration, float]]:
            return ask(job) if job.deadline_s is None else patient(job)

        return choose

    async def _run(
        self,
        jobs: Iterable[CoalitionJob],
        make_ask: Callable[[asyncio.TaskGroup], Ask],
        total: int | None,
        pending_limit: int,
    ) -> SchedulerMetrics:
        self._enter_loop()
        counts = _Counts()
        if total is not None:
            self._planned += total
            self._progress.on_coalitions_planned(self._planned)
        slots = asyncio.Semaphore(pending_limit)

        def give_slot(_: object) -> None:
            slots.release()

        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                ask = make_ask(group)
                try:
                    for job in jobs:
                        counts.requested += 1
                        if total is None:
                            self._planned += 1
                        await slots.acquire()
                        group.create_task(self._finish(job, ask, counts)).add_done_callback(give_slot)
                except Exception as error:
                    # The group lists it behind what jobs raise while it cancels them.
                    failure = error
                    raise
        except BaseExceptionGroup as errors:
            first = failure or _first_error(errors)
            if isinstance(first, _InterruptedJob):
                first = first.interrupt
            # Its own cause stays; the group is no context of it.
            raise first from first.__cause__
        finally:
            self._run_count -= 1
        finished = counts.executed + counts.deduplicated + counts.cache_hits
        if finished != counts.requested:
            raise JobCancelledError(
                f"{counts.requested - finished} of {counts.requested} jobs were cancelled and have no text; the run is "
                "not complete"
            )
        return SchedulerMetrics(counts.requested, counts.executed, counts.deduplicated, counts.cache_hits)

    def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._run_count and self._loop is not loop:
            raise RuntimeStateError("this scheduler is running in another event loop; make one scheduler per loop")
        self._loop = loop
        self._run_count += 1

    async def _finish(self, job: CoalitionJob, ask: Ask, counts: _Counts) -> None:
        try:
            await self._settle(job, ask, counts)
        except (KeyboardInterrupt, SystemExit) as interrupt:
            # Raised by a task, either would end the loop under the run and leave its exception to be logged as lost.
            raise _InterruptedJob(interrupt) from None
        self._done += 1
        self._progress.on_coalition_finished(self._done, max(self._planned, self._done))

    async def _settle(self, job: CoalitionJob, ask: Ask, counts: _Counts) -> None:
        """One job, from its key to its committed row."""
        key = job.coalition_key
        dedup = self._dedup
        while True:
            stored = self._store.take(key)
            if stored is None and self._archive is not None:
                stored = self._take_recorded(key)
            if stored is not None:
                await self._record(job, stored, 0.0, is_hit=True)
                counts.cache_hits += 1
                return
            if dedup is None:
                stored, elapsed_ms = await ask(job)
                self._store.keep(key, stored)
                await self._record(job, stored, elapsed_ms, is_hit=False)
                counts.executed += 1
                return
            first = dedup.first_in_flight(key)
            if first is None:
                await self._be_first(job, ask, dedup)
                counts.executed += 1
                return
            # Shielded: the future belongs to all who wait for it.
            stored = await asyncio.shield(first)
            if stored is not None:
                await self._record(job, stored, 0.0, is_hit=True)
                counts.deduplicated += 1
                return

    async def _be_first(self, job: CoalitionJob, ask: Ask, dedup: CoalitionDedupRegistry) -> None:
        dedup.start(job.coalition_key)
        try:
            stored, elapsed_ms = await ask(job)
        except BaseException:
            dedup.fail(job.coalition_key)
            raise
        self._store.keep(job.coalition_key, stored)
        dedup.finish(job.coalition_key, stored)
        await self._record(job, stored, elapsed_ms, is_hit=False)

    def _take_recorded(self, key: str) -> StoredGeneration | None:
        assert self._archive is not None
        stored = self._archive.lookup(key)
        if stored is not None:
            self._store.keep(key, stored)
        elif self._archive.is_read_only:
            raise ArchiveStateError(
                f"coalition {key[:12]!r} is not in the archive, which takes no rows; open it to write"
            )
        return stored

    async def _record(self, job: CoalitionJob, stored: StoredGeneration, elapsed_ms: float, *, is_hit: bool) -> None:
        """Commits the job's row, unless the archive had its key when it was opened."""
        if self._archive is None or (is_hit and self._archive.has_recorded(job.coalition_key)):
            return
        await self._archive.aappend(
            CoalitionRecordDraft(
                job.snapshot_id,
                job.coalition_key,
                job.mask,
                job.absence_policy,
                job.model_id,
                stored.text,
                elapsed_ms,
                is_hit,
                stored.logprobs,
                stored.values,
            )
        )


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first leaf that is no cancellation, nested groups searched depth first; the group where there is none."""
    pending: list[BaseException] = [errors]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(reversed(error.exceptions))
        elif not isinstance(error, asyncio.CancelledError):
            return error
    return errors
