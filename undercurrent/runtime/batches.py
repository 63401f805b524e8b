"""Jobs joined to batches that share a prefix."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeAlias

from undercurrent.runtime.asking import Answer, accept, as_batch_error, require_batch_answers
from undercurrent.runtime.errors import GenerationTypeError
from undercurrent.runtime.jobs import CoalitionJob, prefix_order
from undercurrent.runtime.protocols import GenerateBatchFn
from undercurrent.runtime.slots import PrioritySlots

__all__ = ["JobBatcher", "plan_batches"]

StartTask: TypeAlias = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]
_Outcome: TypeAlias = Answer | BaseException


def plan_batches(jobs: Sequence[CoalitionJob], batch_size: int) -> list[list[int]]:
    """Cuts jobs into batches of up to `batch_size`, given as indices into `jobs`.

    The highest priority comes first, then neighbours in `prefix_order`. Jobs of one `prefix_hash` stay together: a
    batch takes another group only as a whole, and a group is cut only where it alone is larger than a batch.
    """
    groups: dict[object, list[int]] = {}
    for index in sorted(range(len(jobs)), key=lambda index: (-jobs[index].priority, *prefix_order(jobs[index]))):
        job = jobs[index]
        groups.setdefault((job.priority, job.prefix_hash) if job.prefix_hash else index, []).append(index)
    batches: list[list[int]] = [[]]
    for group in groups.values():
        for start in range(0, len(group), batch_size):
            part = group[start : start + batch_size]
            if len(batches[-1]) + len(part) > batch_size:
                batches.append([])
            batches[-1].extend(part)
    return batches if batches[0] else []


class JobBatcher:
    """Collects the jobs that wait for the model and asks for them in batches.

    A batch is cut when a slot is free and no job has joined for one turn of the event loop, so that the jobs a
    scheduler starts together go together. Belongs to one run; its tasks are of that run's task group.
    """

    def __init__(
        self, generate_batch: GenerateBatchFn, *, batch_size: int, slots: PrioritySlots, start: StartTask
    ) -> None:
        self._generate_batch = generate_batch
        self._batch_size = batch_size
        self._slots = slots
        self._start = start
        self._waiting: dict[asyncio.Future[_Outcome], CoalitionJob] = {}
        self._is_planned = False
        self._seen_count = 0

    async def ask(self, job: CoalitionJob) -> Answer:
        """The answer to one job; raises what its batch raised, or what stood in its place."""
        outcome: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[outcome] = job
        self._plan_soon()
        try:
            answer = await outcome
        finally:
            self._waiting.pop(outcome, None)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _plan_soon(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _plan(self) -> None:
        if len(self._waiting) > self._seen_count:
            # More came in this turn: the jobs that are still on their way may share their prefix.
            self._seen_count = len(self._waiting)
            asyncio.get_running_loop().call_soon(self._plan)
            return
        self._is_planned = False
        if self._slots.free > 0 and self._waiting:
            # A job that is being cancelled has let go of its future and has not yet taken it away.
            entries = [entry for entry in self._waiting.items() if not entry[0].done()]
            for batch in plan_batches([job for _, job in entries], self._batch_size):
                if self._slots.free == 0:
                    break
                self._slots.free -= 1
                self._dispatch([entries[index] for index in batch])
        self._seen_count = len(self._waiting)

    def _dispatch(self, entries: Sequence[tuple[asyncio.Future[_Outcome], CoalitionJob]]) -> None:
        outcomes = [outcome for outcome, _ in entries]
        for outcome in outcomes:
            del self._waiting[outcome]
        task = self._start(self._run([job for _, job in entries], outcomes))
        # Not in the task: one that is cancelled before its first step runs none of its code.
        task.add_done_callback(self._free_slot)

        def end_when_nobody_waits(_: object) -> None:
            # Every job ran into its deadline: without this the call would keep its slot for as long as it likes.
            if all(outcome.cancelled() for outcome in outcomes):
                task.cancel()

        for outcome in outcomes:
            outcome.add_done_callback(end_when_nobody_waits)

    def _free_slot(self, _: object) -> None:
        self._slots.give()
        self._plan_soon()

    async def _run(self, jobs: list[CoalitionJob], outcomes: list[asyncio.Future[_Outcome]]) -> None:
        answers: Sequence[_Outcome]
        try:
            answers = await self._call(jobs)
        except asyncio.CancelledError as error:
            answers = [as_batch_error(error, len(jobs))] * len(jobs)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            answers = [error] * len(jobs)
        for outcome, answer in zip(outcomes, answers, strict=True):
            if not outcome.done():
                # A result even where it is an exception: nobody may be left to fetch that.
                outcome.set_result(answer)

    async def _call(self, jobs: list[CoalitionJob]) -> list[_Outcome]:
        started_s = time.perf_counter()
        answers = await self._generate_batch(jobs)
        share_ms = (time.perf_counter() - started_s) * 1000 / len(jobs)
        return [_outcome(answer, share_ms) for answer in require_batch_answers(answers, len(jobs))]


def _outcome(answer: object, elapsed_ms: float) -> _Outcome:
    if isinstance(answer, BaseException):
        return answer
    try:
        return accept(answer), elapsed_ms
    except GenerationTypeError as error:
        return error
