"""Generators that executors make in other processes: deterministic, and as badly behaved as they are told."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from coalition_models import WordModel
from runtime_jobs import text_of

from undercurrent.runtime import CoalitionJob, GenerationRecord, ProbeValue
from undercurrent.runtime.domain import Conversation


class HashModel:
    """Answers with a hash of the snapshot, who answered, and how many stood in the batch."""

    def __init__(self, model_id: str = "hash", folder: str | None = None) -> None:
        self.model_id = model_id
        self.kv_cache_hits = 0
        self.kv_cache_reused_tokens = 0
        self._folder = None if folder is None else Path(folder)

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[GenerationRecord | Exception]:
        return [self._answer(str(job.snapshot), len(jobs)) for job in jobs]

    def _answer(self, snapshot: str, together: int) -> GenerationRecord | Exception:
        word, _, rest = snapshot.partition(" ")
        match word:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "die-once" if not self._is_marked(rest):
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise LookupError(f"no {rest}")
            case "raise-odd":
                raise OddError(rest, "second")
            case "refuse":
                return ValueError(f"not {rest}")
            case "exit":
                raise SystemExit(3)
            case "hang":
                self._is_marked("hanging")
                time.sleep(600)
        self.kv_cache_hits += 1
        self.kv_cache_reused_tokens += 10
        return GenerationRecord(text_of(snapshot), (-1 / 3,), {"beside": ProbeValue(float(together))})

    def _is_marked(self, name: str) -> bool:
        assert self._folder is not None
        mark = self._folder / name
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return True
        return False

    def tokenize(self, text: str) -> list[tuple[int, int]]:
        return [(index, index + 1) for index, letter in enumerate(text) if letter.strip()]


class OddError(Exception):
    """Cannot be rebuilt from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class PatientModel:
    """Waits without end, listens to cancellation, and leaves a mark when it starts, is cancelled or closed."""

    model_id = "patient"

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[str]:
        if jobs[0].snapshot == "quick":
            return ["quick"] * len(jobs)
        (self._folder / "started").touch()
        try:
            await asyncio.Event().wait()
        finally:
            (self._folder / "cancelled").touch()
        raise AssertionError

    async def aclose(self) -> None:
        (self._folder / "closed").touch()


def words() -> WordModel:
    """A model for whole runs."""
    return WordModel()


def slow_words(folder: str, pause_s: float = 0.05) -> WordModel:
    """The same, slow enough to be disturbed; each answer leaves a mark that says who gave it."""

    class SlowWords(WordModel):
        async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[GenerationRecord]:
            await asyncio.sleep(pause_s)
            with open(Path(folder) / "answers", "a") as answers:
                answers.write(f"{os.getpid()}\n" * len(jobs))
            return await super().generate_batch(jobs)

    return SlowWords()


def broken() -> HashModel:
    raise FileNotFoundError("no weights")


def dying() -> HashModel:
    os._exit(7)


def sleeping() -> HashModel:
    time.sleep(600)
    return HashModel()


def mute() -> object:
    return object()


class Unpicklable:
    """Its answers belong to its process."""

    model_id = "unpicklable"

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[object]:
        return [lambda: None for _ in jobs]


class ScoringModel:
    """Gives every prompt a number with a full mantissa, slowly; each answer leaves a mark that says who gave it."""

    model_id = "scores"

    def __init__(self, folder: str, pause_s: float = 0.0) -> None:
        self._marks = Path(folder) / "answers"
        self._pause_s = pause_s

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[GenerationRecord]:
        return [await self._answer(job) for job in jobs]

    async def _answer(self, job: CoalitionJob) -> GenerationRecord:
        assert isinstance(job.snapshot, Conversation)
        await asyncio.sleep(self._pause_s)
        with self._marks.open("a") as marks:
            marks.write(f"{os.getpid()}\n")
        digest = text_of(job.snapshot.text)
        scores = tuple(int(digest[start : start + 3], 16) / 7 for start in range(0, 12, 3))
        return GenerationRecord(digest, None, {"score": ProbeValue(sum(scores) / 3, scores)})
