"""The generator's side of an executor: in a process of `LocalExecutor`, or in an actor of `RayExecutor`."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import traceback
from collections.abc import Callable, Sequence

import msgspec

from undercurrent.runtime.asking import as_batch_error, require_batch_answers
from undercurrent.runtime.errors import GenerationTypeError, RuntimeStateError
from undercurrent.runtime.executors.errors import RemoteGenerationError
from undercurrent.runtime.executors.factory import GeneratorFactory
from undercurrent.runtime.jobs import CoalitionJob
from undercurrent.runtime.protocols import BatchGenerator

__all__ = ["BatchOrder", "BatchReport", "GeneratorHost", "HostDescription", "pack", "pack_error", "unpack"]


class HostDescription(msgspec.Struct, frozen=True):
    """What a generator says of itself."""

    model_id: str
    pid: int


class BatchOrder(msgspec.Struct, frozen=True):
    """One batch as it travels."""

    jobs: tuple[CoalitionJob, ...]
    answer: str | None = None
    """What `score_answer` was last told."""
    is_split: bool = True
    """Each job goes to the generator alone."""


class BatchReport(msgspec.Struct, frozen=True):
    """What a batch did beside its answers."""

    kv_cache_hits: int = 0
    kv_cache_reused_tokens: int = 0


class GeneratorHost:
    """Owns one generator. Used on one event loop; batches take turns, whoever asks."""

    def __init__(self, factory: GeneratorFactory) -> None:
        """Makes the generator, which may take as long as loading a model."""
        self._generator: BatchGenerator = factory.build()
        self._turn = asyncio.Lock()
        self._answer: str | None = None

    @property
    def description(self) -> HostDescription:
        """What it says of itself."""
        return HostDescription(str(getattr(self._generator, "model_id", "")), os.getpid())

    async def run(self, order: BatchOrder, give: Callable[[int, bytes], None]) -> BatchReport:
        """Answers a batch: `give(index, packed)` for each job, as soon as it is answered."""
        async with self._turn:
            before = self._reused()
            for indices in _parts(order):
                answers = await self._ask([order.jobs[index] for index in indices], order.answer)
                for index, answer in zip(indices, answers, strict=True):
                    give(index, answer)
            hits, tokens = (after - first for after, first in zip(self._reused(), before, strict=True))
            return BatchReport(hits, tokens)

    async def tokenize(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Where the tokens of each text begin and end.

        Raises:
            RuntimeStateError: the generator does not tell.
        """
        tokenize = getattr(self._generator, "tokenize", None)
        if tokenize is None:
            raise RuntimeStateError(f"{type(self._generator).__name__} has no `tokenize`; choose other players")
        return [[(int(start), int(end)) for start, end in tokenize(text)] for text in texts]

    async def close(self) -> None:
        """Calls the generator's `aclose` or `close`, where it has one."""
        close = getattr(self._generator, "aclose", None) or getattr(self._generator, "close", None)
        if close is not None:
            ended = close()
            if inspect.isawaitable(ended):
                await ended

    async def _ask(self, jobs: list[CoalitionJob], answer: str | None) -> list[bytes]:
        try:
            self._score(answer)
            answers = await self._generator.generate_batch(jobs)
            return [pack(answer) for answer in require_batch_answers(answers, len(jobs))]
        except asyncio.CancelledError as error:
            return [pack_error(as_batch_error(error, len(jobs)))] * len(jobs)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return [pack_error(error)] * len(jobs)

    def _score(self, answer: str | None) -> None:
        if answer == self._answer:
            return
        score_answer = getattr(self._generator, "score_answer", None)
        if score_answer is None:
            raise RuntimeStateError(f"{type(self._generator).__name__} scores no given answer; use another value")
        score_answer(answer)
        self._answer = answer

    def _reused(self) -> tuple[int, int]:
        hits, tokens = (getattr(self._generator, name, 0) for name in ("kv_cache_hits", "kv_cache_reused_tokens"))
        return hits, tokens


def _parts(order: BatchOrder) -> list[list[int]]:
    indices = list(range(len(order.jobs)))
    return [[index] for index in indices] if order.is_split else [indices]


def pack(answer: object) -> bytes:
    """An answer as it travels; one that cannot be read on the other side becomes the error that says so."""
    if isinstance(answer, BaseException):
        return pack_error(answer)
    try:
        return pickle.dumps(answer)
    except Exception as error:
        return pack_error(
            GenerationTypeError(f"an answer of type {type(answer).__qualname__} cannot leave its process: {error}")
        )


def pack_error(error: BaseException) -> bytes:
    """An exception as it travels, with its traceback as a note."""
    note = f"in process {os.getpid()}:\n" + "".join(traceback.format_exception(error)).rstrip()
    if isinstance(error, Exception):
        try:
            error.add_note(note)
            packed = pickle.dumps(error)
            if type(pickle.loads(packed)) is type(error):
                return packed
        except Exception:
            pass  # an exception whose class cannot be rebuilt travels by its name
    stand_in = RemoteGenerationError(f"the generator raised {type(error).__qualname__}: {error}")
    stand_in.add_note(note)
    return pickle.dumps(stand_in)


def unpack(packed: bytes) -> object:
    """What travelled: an answer, or an exception."""
    try:
        return pickle.loads(packed)
    except Exception as error:
        return GenerationTypeError(f"an answer cannot be read here: {error}; its class must be importable")
