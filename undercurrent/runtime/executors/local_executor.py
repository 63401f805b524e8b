"""Generators in processes of this machine, each with the model loaded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from undercurrent.runtime.errors import RuntimeStateError
from undercurrent.runtime.executors.batch_progress import BatchProgress
from undercurrent.runtime.executors.errors import ExecutorStartError, ExecutorTimeoutError
from undercurrent.runtime.executors.factory import GeneratorFactory
from undercurrent.runtime.executors.host import BatchOrder, HostDescription
from undercurrent.runtime.executors.limits import ExecutorLimits, require_at_least_one
from undercurrent.runtime.executors.process import HostProcess, ProcessGoneError
from undercurrent.runtime.jobs import CoalitionJob
from undercurrent.runtime.protocols import BatchGenerator

__all__ = ["LocalExecutor"]

_CANCEL_S = 10.0
"""How long a generator may take to end a cancelled batch before its process is killed."""
_PAUSE_S_MAX = 5.0


class LocalExecutor:
    """An `Executor` over processes of this machine. Belongs to the event loop that starts it.

    A process that dies is replaced, and what it had not answered is asked again. When this process ends, however it
    ends, the others end too. Use it as an async context manager, or call `start` and `aclose`.
    """

    restarts: int = 0
    """Processes that were replaced."""
    kv_cache_hits: int = 0
    """Prompts whose beginning was not computed again, in all processes."""
    kv_cache_reused_tokens: int = 0
    """Their tokens."""

    def __init__(
        self,
        factory: str | Callable[..., BatchGenerator],
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        processes: int = 2,
        per_process: Sequence[Mapping[str, object]] = (),
        splits_batches: bool = True,
        attempts: int = 3,
        start_timeout_s: float = 600.0,
        batch_timeout_s: float = 1800.0,
        close_timeout_s: float = 10.0,
    ) -> None:
        """Starts nothing.

        Args:
            factory: makes the generator in each process: `module:function`, or a function of a module.
            per_process: more keyword arguments of the factory, by process in turn, such as `{"device": "cuda:0"}`.
            splits_batches: jobs go to the generator one by one, so that no answer depends on who was beside it. False
                hands batches over whole: faster where the model computes side by side, equal to the bit only where its
                arithmetic does not depend on the batch.
            attempts: processes that one job may cost before it fails with `ExecutorLostError`.
            start_timeout_s: longest start of one process, loading the model included.
            batch_timeout_s: longest batch; its process is killed, and open jobs fail with `ExecutorTimeoutError`.
            close_timeout_s: how long `aclose` lets generators close.

        Raises:
            RuntimeValueError: a number is out of range.
            RuntimeTypeError: another process cannot import the factory or have its arguments.
        """
        require_at_least_one("processes", processes)
        self._limits = ExecutorLimits(attempts, start_timeout_s, batch_timeout_s, close_timeout_s)
        base = GeneratorFactory.of(factory, args, kwargs)
        more = per_process or ({},)
        self._factories = [base.with_arguments(more[index % len(more)]) for index in range(processes)]
        self._splits_batches = splits_batches
        self._processes: list[HostProcess | None] = [None] * processes
        self._deaths = [0] * processes
        self._free = list(range(processes))
        self._slots = asyncio.Semaphore(processes)
        self._model_id: str | None = None
        self._answer: str | None = None
        self._is_closed = False

    @property
    def capacity(self) -> int:
        """Batches it can work on at once."""
        return len(self._processes)

    @property
    def model_id(self) -> str:
        """What the generators say they are.

        Raises:
            RuntimeStateError: it was not started.
        """
        if self._model_id is None:
            raise RuntimeStateError("the executor has not started; `await executor.start()` first")
        return self._model_id

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that live."""
        return tuple(process.pid for process in self._processes if process is not None and process.is_alive)

    def score_answer(self, answer: str | None) -> None:
        """From the next batch on generators measure how likely `answer` is; None generates again."""
        self._answer = answer

    async def start(self) -> None:
        """Starts every process and waits until each has its generator. Where one fails none is left.

        Raises:
            ExecutorStartError: a process did not start, or not in time, or the generators are not of one model.
            Exception: what the factory raised.
            RuntimeStateError: it was started or closed before.
        """
        if self._is_closed or self._model_id is not None or any(self._processes):
            raise RuntimeStateError("an executor is started once; make another")
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    starting = [group.create_task(self._start(slot)) for slot in range(self.capacity)]
            except BaseExceptionGroup as errors:
                first = errors.exceptions[0]
                raise first from first.__cause__
            names = sorted({task.result().model_id for task in starting})
            if len(names) > 1:
                raise ExecutorStartError(f"the generators must be of one model, got {', '.join(map(repr, names))}")
            self._model_id = names[0]
        except BaseException:
            await self.aclose()
            raise

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[Any]:
        """Answers each job, in order; what a job raised stands in its place. Waits while every process is busy.

        Cancelled, it ends when the generator has ended the batch, or its process is gone.

        Raises:
            RuntimeStateError: it is not started, or closed.
            ExecutorStartError: a process could not be replaced.
        """
        progress = BatchProgress(jobs, attempts=self._limits.attempts, is_split=self._splits_batches)
        # No deadline: each batch before this one has its own, and the scheduler asks for no more than `capacity`.
        async with self._slots:
            slot = self._free.pop()
            try:
                while progress.open:
                    await self._advance(slot, progress)
            finally:
                self._free.append(slot)
        return progress.outcomes()

    async def tokenize(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Where the model's tokens of each text begin and end, for players that are tokens.

        Raises:
            RuntimeStateError: the generator does not tell, or the executor is not started.
        """
        async with self._slots:
            slot = self._free.pop()
            try:
                async with asyncio.timeout(self._limits.batch_timeout_s):
                    return await (await self._living(slot)).tokenize(tuple(texts))
            finally:
                self._free.append(slot)

    async def aclose(self) -> None:
        """Ends every process; batches under way fail. Idempotent."""
        self._is_closed = True
        living = [process for process in self._processes if process is not None]
        await asyncio.gather(*(process.stop(self._limits.close_timeout_s) for process in living))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _start(self, slot: int) -> HostDescription:
        factory = self._factories[slot]
        try:
            async with asyncio.timeout(self._limits.start_timeout_s):
                process, description = await HostProcess.start(factory)
        except TimeoutError as error:
            raise ExecutorStartError(
                f"a process of {factory.target} was not ready within {self._limits.start_timeout_s:g} s; raise "
                "`start_timeout_s` if its model takes longer to load"
            ) from error
        if self._is_closed:
            await process.kill()
            raise RuntimeStateError("the executor was closed")
        self._processes[slot] = process
        return description

    async def _living(self, slot: int) -> HostProcess:
        """The slot's process; another where it has died or was left in the middle of a batch."""
        if self._model_id is None or self._is_closed:
            raise RuntimeStateError(f"the executor {'was closed' if self._is_closed else 'has not started'}")
        process = self._processes[slot]
        if process is not None and process.is_alive and process.is_idle:
            return process
        if process is not None:
            await process.kill()
            self._processes[slot] = None
        if self._deaths[slot] > 1:
            await asyncio.sleep(min(0.1 * 2 ** min(self._deaths[slot], 10), _PAUSE_S_MAX))
        self._deaths[slot] += 1
        description = await self._start(slot)
        self.restarts += 1
        if description.model_id != self._model_id:
            raise ExecutorStartError(f"a process came back with model {description.model_id!r}, not {self._model_id!r}")
        found = self._processes[slot]
        assert found is not None
        return found

    async def _advance(self, slot: int, progress: BatchProgress) -> None:
        """Asks one process for what is open; returns when it has answered or died."""
        process = await self._living(slot)
        indices = progress.open

        def give(index: int, answer: object) -> None:
            self._deaths[slot] = 0
            progress.answer(indices[index], answer)

        scope = asyncio.timeout(self._limits.batch_timeout_s)
        try:
            async with scope:
                order = BatchOrder(progress.jobs(indices), self._answer, progress.is_split)
                report = await process.ask(order, give)
        except ProcessGoneError as death:
            if self._is_closed:
                raise RuntimeStateError("the executor was closed during a batch") from death
            if progress.open:
                progress.lose(progress.open[0], str(death))
            return
        except TimeoutError as error:
            if not scope.expired():
                raise
            await process.kill()
            limit_s = self._limits.batch_timeout_s
            failure = ExecutorTimeoutError(
                f"a batch of {len(indices)} jobs took more than {limit_s:g} s; its process was killed"
            )
            failure.__cause__ = error
            progress.fail(progress.open, failure)
            return
        except asyncio.CancelledError:
            await self._end_batch(process)
            raise
        self.kv_cache_hits += report.kv_cache_hits
        self.kv_cache_reused_tokens += report.kv_cache_reused_tokens

    async def _end_batch(self, process: HostProcess) -> None:
        """Lets a cancelled batch end; a second cancellation, or a generator that does not listen, ends the process."""
        try:
            with contextlib.suppress(TimeoutError, ProcessGoneError):
                async with asyncio.timeout(_CANCEL_S):
                    await process.cancel()
        finally:
            if not process.is_idle:
                await process.kill()
