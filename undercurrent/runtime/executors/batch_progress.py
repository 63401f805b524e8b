"""What is known of one batch while processes work on it and die."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undercurrent.runtime.executors.errors import ExecutorLostError
from undercurrent.runtime.jobs import CoalitionJob

__all__ = ["BatchProgress"]


class BatchProgress:
    """The answers of a batch so far, and how often each job lost its process. Owned by one task."""

    def __init__(self, jobs: Sequence[CoalitionJob], *, attempts: int, is_split: bool) -> None:
        self._jobs = tuple(jobs)
        self._attempts = attempts
        self._answers: dict[int, Any] = {}
        self._losses = [0] * len(self._jobs)
        self.is_split = is_split
        """Jobs go to the generator one by one: always, or since a process died of the whole batch."""

    @property
    def open(self) -> list[int]:
        """The indices of jobs without an answer."""
        return [index for index in range(len(self._jobs)) if index not in self._answers]

    def jobs(self, indices: Sequence[int]) -> tuple[CoalitionJob, ...]:
        """The jobs at some indices."""
        return tuple(self._jobs[index] for index in indices)

    def answer(self, index: int, answer: object) -> None:
        """Keeps an answer, or the exception that stands in its place."""
        self._answers[index] = answer

    def fail(self, indices: Sequence[int], error: Exception) -> None:
        """Puts one exception in the place of jobs."""
        for index in indices:
            self._answers[index] = error

    def lose(self, index: int, reason: str) -> None:
        """Counts that a process died while this was the first open job.

        Where jobs go one by one it was the one being worked on. Where they go together it may have been any: nobody is
        counted, and from now on they go one by one.
        """
        if not self.is_split:
            self.is_split = True
            return
        self._losses[index] += 1
        if self._losses[index] >= self._attempts:
            job = self._jobs[index]
            self._answers[index] = ExecutorLostError(
                f"coalition {job.coalition_key[:12]!r} lost its process {self._losses[index]} times, {reason} the last "
                "time; it may need more memory than there is"
            )

    def outcomes(self) -> list[Any]:
        """The answers in the order of the jobs, when none is open."""
        return [self._answers[index] for index in range(len(self._jobs))]
