"""Generators in actors of a Ray cluster, each with the model loaded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from undercurrent.runtime.errors import RuntimeStateError
from undercurrent.runtime.executors.batch_progress import BatchProgress
from undercurrent.runtime.executors.errors import (
    ExecutorError,
    ExecutorStartError,
    ExecutorTimeoutError,
    ExecutorUnavailableError,
)
from undercurrent.runtime.executors.factory import GeneratorFactory
from undercurrent.runtime.executors.host import BatchOrder, HostDescription, unpack
from undercurrent.runtime.executors.limits import ExecutorLimits, require_at_least_one
from undercurrent.runtime.executors.ray_cluster import RayCluster
from undercurrent.runtime.executors.ray_host import RayHost
from undercurrent.runtime.jobs import CoalitionJob
from undercurrent.runtime.protocols import BatchGenerator

__all__ = ["RayExecutor"]

_CANCEL_S = 10.0
"""How long a generator may take to end a cancelled batch before its actor is killed."""
_PAUSE_S = 0.2


class RayExecutor:
    """An `Executor` over actors of a Ray cluster. Belongs to the event loop that starts it.

    Ray restarts an actor that dies, on another node where its own is gone; what it had not answered is asked of the
    others meanwhile, so that a run goes on with the nodes that are left. With a `name` the actors outlive a driver that
    is killed: the next one with the same name and the same factory finds them with the model loaded. Use it as an async
    context manager, or call `start` and `aclose`.
    """

    restarts: int = 0
    """Actors that were lost and came back."""
    kv_cache_hits: int = 0
    """Prompts whose beginning was not computed again, in all actors."""
    kv_cache_reused_tokens: int = 0
    """Their tokens."""

    def __init__(
        self,
        factory: str | Callable[..., BatchGenerator],
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        actors: int = 2,
        address: str = "auto",
        name: str | None = None,
        namespace: str = "undercurrent",
        cpus_per_actor: float = 1.0,
        gpus_per_actor: float = 0.0,
        runtime_env: Mapping[str, object] | None = None,
        splits_batches: bool = True,
        attempts: int = 3,
        start_timeout_s: float = 600.0,
        batch_timeout_s: float = 1800.0,
        close_timeout_s: float = 10.0,
        idle_timeout_s: float = 900.0,
    ) -> None:
        """Starts nothing.

        Args:
            factory: makes the generator in each actor: `module:function`, importable on every node.
            address: `host:port` of the cluster's head; `auto` is the cluster this machine is a node of. Ignored where
                this process is connected already.
            name: actors are detached and found again by it; None is actors that end with this process.
            runtime_env: Ray's description of what nodes need, as it is.
            splits_batches: as for `LocalExecutor`.
            attempts: actors' lives that one job may cost before it fails with `ExecutorLostError`.
            start_timeout_s: until the cluster is reached, and until all actors have their generator.
            batch_timeout_s: longest batch; its actor is killed, and its jobs fail with `ExecutorTimeoutError`.
            idle_timeout_s: actors with a name that nobody asks for this long end themselves.

        Raises:
            RuntimeValueError: a number is out of range.
            RuntimeTypeError: another process cannot import the factory or have its arguments.
        """
        require_at_least_one("actors", actors)
        self._limits = ExecutorLimits(attempts, start_timeout_s, batch_timeout_s, close_timeout_s, idle_timeout_s)
        self._factory = GeneratorFactory.of(factory, args, kwargs)
        self._name = name
        self._cluster = RayCluster(address, namespace, runtime_env)
        self._resources = {"num_cpus": cpus_per_actor, "num_gpus": gpus_per_actor}
        self._splits_batches = splits_batches
        self._actors: list[Any] = [None] * actors
        self._free: list[int] = []
        self._busy: set[int] = set()
        self._recovering: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._model_id: str | None = None
        self._answer: str | None = None
        self._is_closed = False

    @property
    def capacity(self) -> int:
        """Batches it can work on at once."""
        return len(self._actors)

    @property
    def model_id(self) -> str:
        """What the generators say they are.

        Raises:
            RuntimeStateError: it was not started.
        """
        if self._model_id is None:
            raise RuntimeStateError("the executor has not started; `await executor.start()` first")
        return self._model_id

    def score_answer(self, answer: str | None) -> None:
        """From the next batch on generators measure how likely `answer` is; None generates again."""
        self._answer = answer

    async def start(self) -> None:
        """Reaches the cluster and waits until each actor has its generator.

        Raises:
            MissingDependencyError: Ray is not installed.
            ExecutorUnavailableError: the cluster cannot be reached, refuses the token, or has no room in time.
            ExecutorStartError: the generators are not of one model.
            Exception: what the factory raised.
            RuntimeStateError: it was started or closed before.
        """
        if self._is_closed or self._model_id is not None or any(self._actors):
            raise RuntimeStateError("an executor is started once; make another")
        await self._cluster.connect(self._limits.start_timeout_s)
        try:
            scope = asyncio.timeout(self._limits.start_timeout_s)
            try:
                async with scope:
                    self._actors = [self._make(slot) for slot in range(self.capacity)]
                    found = [await self._describe(slot) for slot in range(self.capacity)]
            except TimeoutError as error:
                if not scope.expired():
                    raise
                raise ExecutorUnavailableError(
                    f"{self.capacity} actors of {self._resources} had no generator within "
                    f"{self._limits.start_timeout_s:g} s; the cluster has {self._cluster.resources()}; "
                    "ask for fewer, add nodes, or raise `start_timeout_s`"
                ) from error
            names = sorted({description.model_id for description in found})
            if len(names) > 1:
                raise ExecutorStartError(f"the generators must be of one model, got {', '.join(map(repr, names))}")
            self._model_id = names[0]
            self._free = list(range(self.capacity))
        except BaseException:
            await self.aclose()
            raise

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[Any]:
        """Answers each job, in order; what a job raised stands in its place. Waits while every actor is busy.

        Raises:
            RuntimeStateError: it is not started, or closed.
            ExecutorError: every actor was lost, and none came back.
        """
        progress = BatchProgress(jobs, attempts=self._limits.attempts, is_split=False)
        while progress.open:
            # No deadline: each batch before this one has its own, and so has the return of an actor.
            slot = await self._take()
            try:
                if await self._advance(slot, progress) and not self._is_closed:
                    self._recover(slot)
            finally:
                self._give(slot)
        return progress.outcomes()

    async def tokenize(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Where the model's tokens of each text begin and end, for players that are tokens.

        Raises:
            RuntimeStateError: the generator does not tell, or the executor is not started.
        """
        slot = await self._take()
        try:
            async with asyncio.timeout(self._limits.batch_timeout_s):
                spans = await self._actors[slot].tokenize.remote(tuple(texts))
        finally:
            self._give(slot)
        if isinstance(spans, bytes):
            raise _error(spans)
        return [[(start, end) for start, end in row] for row in spans]

    async def aclose(self) -> None:
        """Closes the generators and ends the actors, those with a name too; batches under way fail. Idempotent."""
        self._is_closed = True
        for task in self._recovering.values():
            task.cancel()
        self._wake()
        actors, self._actors = [actor for actor in self._actors if actor is not None], [None] * self.capacity
        if actors:
            closing = [actor.close.remote() for actor in actors]
            with contextlib.suppress(TimeoutError, self._cluster.errors.RayError):
                async with asyncio.timeout(self._limits.close_timeout_s):
                    for ended in closing:
                        await ended
            for actor in actors:
                self._cluster.kill(actor)
        await self._cluster.disconnect()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _require_open(self) -> None:
        if self._model_id is None or self._is_closed:
            raise RuntimeStateError(f"the executor {'was closed' if self._is_closed else 'has not started'}")

    def _make(self, slot: int) -> Any:
        """The slot's actor; with a name the one that is there already."""
        # Ray's retries would wait for this actor, which may have no node to come back on; a lost batch goes to another.
        options: dict[str, Any] = {**self._resources, "max_restarts": -1, "max_task_retries": 0}
        idle_s = 0.0
        if self._name is not None:
            # Another factory is another actor, never one with a model that was not asked for.
            options |= {"name": f"{self._name}-{self._factory.fingerprint}-{slot}", "lifetime": "detached"}
            options["get_if_exists"] = True
            idle_s = self._limits.idle_timeout_s
        return self._cluster.make_actor(RayHost, options, self._factory, idle_s)

    async def _describe(self, slot: int) -> HostDescription:
        """Waits for the slot's generator; under the caller's deadline."""
        while True:
            try:
                description = await self._actors[slot].describe.remote()
            except self._cluster.errors.ActorUnschedulableError as error:
                raise ExecutorUnavailableError(f"no node of the cluster takes an actor: {error}") from error
            except self._cluster.errors.ActorUnavailableError:
                await asyncio.sleep(_PAUSE_S)  # Ray is restarting it
                continue
            except self._cluster.errors.RayActorError:
                # It will not come back. A name may still lead to it for a moment.
                await asyncio.sleep(_PAUSE_S)
                self._actors[slot] = self._make(slot)
                continue
            if isinstance(description, bytes):
                raise _error(description)
            found: HostDescription = description
            return found

    async def _take(self) -> int:
        while True:
            self._require_open()
            if self._free:
                self._busy.add(slot := self._free.pop())
                return slot
            if not self._busy and not self._recovering:
                raise ExecutorUnavailableError(f"every actor was lost: {self._failure}") from self._failure
            await self._changed.wait()

    def _give(self, slot: int) -> None:
        self._busy.discard(slot)
        if slot not in self._recovering:
            self._free.append(slot)
        self._wake()

    def _wake(self) -> None:
        """Lets everybody who waits for an actor look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _recover(self, slot: int) -> None:
        """Waits, beside the run, until a lost actor has its generator again."""
        self._recovering[slot] = asyncio.get_running_loop().create_task(self._come_back(slot))

    async def _come_back(self, slot: int) -> None:
        try:
            async with asyncio.timeout(self._limits.start_timeout_s):
                description = await self._describe(slot)
            if description.model_id != self._model_id:
                raise ExecutorStartError(
                    f"an actor came back with model {description.model_id!r}, not {self._model_id!r}"
                )
        except TimeoutError:
            self._failure = ExecutorUnavailableError(
                f"an actor did not come back within {self._limits.start_timeout_s:g} s; the cluster has "
                f"{self._cluster.resources()}"
            )
        except Exception as error:
            self._failure = error
        else:
            self.restarts += 1
            self._free.append(slot)
        finally:
            del self._recovering[slot]
            self._wake()

    async def _advance(self, slot: int, progress: BatchProgress) -> bool:
        """Asks one actor for what is open, or for one job after a loss; True where the actor is lost."""
        indices = progress.open[:1] if progress.is_split else progress.open
        order = BatchOrder(progress.jobs(indices), self._answer, self._splits_batches)
        asked = self._actors[slot].run.remote(order)
        scope = asyncio.timeout(self._limits.batch_timeout_s)
        try:
            async with scope:
                answered = await asked
        except self._cluster.errors.RayTaskError as error:
            raise ExecutorError(f"an actor failed outside its generator: {error}") from error
        except self._cluster.errors.RayError as error:
            if self._is_closed:
                raise RuntimeStateError("the executor was closed during a batch") from error
            progress.lose(indices[0], f"{type(error).__name__}")
            return True
        except TimeoutError as error:
            if not scope.expired():
                raise
            limit_s = self._limits.batch_timeout_s
            late = ExecutorTimeoutError(
                f"a batch of {len(indices)} jobs took more than {limit_s:g} s; its actor was killed"
            )
            late.__cause__ = error
            progress.fail(indices, late)
            self._cluster.kill(self._actors[slot])
            return True
        except asyncio.CancelledError:
            await self._end_batch(slot, asked)
            raise
        if isinstance(answered, bytes):
            raise _error(answered)
        answers, report = answered
        for index, answer in zip(indices, answers, strict=True):
            progress.answer(index, unpack(answer))
        self.kv_cache_hits += report.kv_cache_hits
        self.kv_cache_reused_tokens += report.kv_cache_reused_tokens
        return False

    async def _end_batch(self, slot: int, asked: Any) -> None:
        """Lets a cancelled batch end; a generator that does not listen loses its actor."""
        self._cluster.cancel(asked)
        is_over = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_S):
                    with contextlib.suppress(self._cluster.errors.RayError):
                        await asked
                    is_over = True
        finally:
            if not is_over and not self._is_closed:
                self._cluster.kill(self._actors[slot])
                self._recover(slot)


def _error(packed: bytes) -> Exception:
    error = unpack(packed)
    assert isinstance(error, Exception)
    return error
