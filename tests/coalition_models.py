"""Models for the pipeline's tests: deterministic answers made from the prompt's own words."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from undercurrent.runtime.domain import Conversation, GenerationRecord, ProbeValue
from undercurrent.runtime.jobs import CoalitionJob

TRIGGER = "xyzzy"
ANSWER_VALUE = "answer_log_likelihood"


class WordModel:
    """Repeats the prompt's words in order; the probe `trigger` fires on the word `xyzzy`."""

    model_id = "words"

    def __init__(self, *, fails_at: int | None = None, is_stuck: bool = False) -> None:
        self.asked: list[str] = []
        self.batches: list[int] = []
        self._fails_at = fails_at
        self._is_stuck = is_stuck
        self._answer: str | None = None

    def score_answer(self, answer: str | None) -> None:
        self._answer = answer

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> list[GenerationRecord]:
        self.batches.append(len(jobs))
        if self._is_stuck and self.asked:
            await asyncio.Event().wait()
        return [self._answer_to(job) for job in jobs]

    def _answer_to(self, job: CoalitionJob) -> GenerationRecord:
        conversation = job.snapshot
        assert isinstance(conversation, Conversation)
        text = conversation.text
        if self._fails_at is not None and len(self.asked) >= self._fails_at:
            raise OSError("the model is gone")
        self.asked.append(text)
        words = text.split()
        if self._answer is not None:
            known = [word in words for word in self._answer.split()]
            logprobs = tuple(math.log(0.9 if is_known else 0.1) for is_known in known)
            return GenerationRecord(self._answer, logprobs, {ANSWER_VALUE: ProbeValue(sum(logprobs), logprobs)})
        tokens = tuple(float(word == TRIGGER) for word in words)
        return GenerationRecord(" ".join(words), None, {"trigger": ProbeValue(max(tokens, default=0.0), tokens)})
