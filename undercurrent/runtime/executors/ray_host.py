"""The actor of a `RayExecutor`. An actor class is pickled by reference: this module must be on every node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from undercurrent.runtime.executors.factory import GeneratorFactory
from undercurrent.runtime.executors.host import BatchOrder, BatchReport, GeneratorHost, HostDescription, pack_error

__all__ = ["RayHost"]

_LOOKS_PER_IDLE = 10


class RayHost:
    """Holds one generator, made at the first call: a constructor that raises would kill the actor without a word.

    Its methods run on the actor's event loop. An actor that Ray restarts makes its generator again.
    """

    def __init__(self, factory: GeneratorFactory, idle_s: float) -> None:
        """With `idle_s` above 0 the actor ends itself when nobody has called for that long."""
        self._factory = factory
        self._host: GeneratorHost | None = None
        self._idle_s = idle_s
        self._called_s = time.monotonic()
        self._calls = 0
        self._watch: asyncio.Task[None] | None = None

    async def describe(self) -> HostDescription | bytes:
        """What the generator says of itself; the packed error where none can be made."""
        try:
            return self._living().description
        except (Exception, SystemExit) as error:
            return pack_error(error)

    async def run(self, order: BatchOrder) -> tuple[list[bytes], BatchReport] | bytes:
        """The packed answers of a batch, in order; the packed error where no generator can be made."""
        try:
            host = self._living()
        except (Exception, SystemExit) as error:
            return pack_error(error)
        answers: dict[int, bytes] = {}
        self._calls += 1
        try:
            report = await host.run(order, answers.__setitem__)
        finally:
            self._calls -= 1
            self._called_s = time.monotonic()
        return [answers[index] for index in range(len(order.jobs))], report

    async def tokenize(self, texts: Sequence[str]) -> list[list[tuple[int, int]]] | bytes:
        """Where the tokens of each text begin and end, or the packed error."""
        try:
            return await self._living().tokenize(texts)
        except Exception as error:
            return pack_error(error)

    async def close(self) -> None:
        """Closes the generator."""
        if self._host is not None:
            await self._host.close()
            self._host = None

    def _living(self) -> GeneratorHost:
        self._called_s = time.monotonic()
        if self._host is None:
            self._host = GeneratorHost(self._factory)
            self._called_s = time.monotonic()
        if self._idle_s > 0 and self._watch is None:
            self._watch = asyncio.create_task(self._end_when_idle())
        return self._host

    async def _end_when_idle(self) -> None:
        import ray

        while self._calls or time.monotonic() - self._called_s < self._idle_s:
            await asyncio.sleep(self._idle_s / _LOOKS_PER_IDLE)
        await self.close()
        this: Any = ray.get_runtime_context().current_actor
        ray.kill(this, no_restart=True)
