"""What the runtime asks of others: generators, executors, sinks of rows, manifests.

All are structural: an object with these methods will do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from undercurrent.runtime.archive_rows import CoalitionRecord
from undercurrent.runtime.jobs import CoalitionJob

__all__ = [
    "BatchGenerator",
    "Executor",
    "GenerateBatchFn",
    "GenerateFn",
    "Generation",
    "ManifestPayloadSource",
    "RowSink",
]


class Generation(Protocol):
    """What a model answered. `logprobs` and `values` are read where they exist; `GenerationRecord` has all three."""

    @property
    def text(self) -> str:
        """The generated text."""


# The snapshot is whatever the jobs carry: the generator and who makes the jobs agree on its type.
GenerateFn: TypeAlias = Callable[..., Awaitable[str | Generation]]
"""Called with `job.snapshot` on the event loop."""
GenerateBatchFn: TypeAlias = Callable[[Sequence[CoalitionJob]], Awaitable[Sequence[str | Generation | Exception]]]
"""Called with jobs that share a prefix, on the event loop; answers in their order."""


@runtime_checkable
class BatchGenerator(Protocol):
    """A model that takes several prompts in one call."""

    async def generate_batch(self, jobs: Sequence[CoalitionJob]) -> Sequence[str | Generation | Exception]:
        """Answers each job, in order; an exception in a job's place fails (or retries) that job alone.

        Jobs come sorted by `prefix_order` and, where they carry hashes, in whole groups of one `prefix_hash`.
        """


@runtime_checkable
class Executor(BatchGenerator, Protocol):
    """Where generations run: processes or actors that keep a model warm.

    Who starts it closes it. `generate_batch` may be called concurrently up to `capacity` times, by one event loop. A
    process or machine that dies is the executor's to replace; a batch it cannot finish raises, and the scheduler's
    retry policy decides. Results may not depend on which process ran a job.
    """

    @property
    def capacity(self) -> int:
        """Batches it can work on at once: the scheduler's `max_inflight`."""

    async def start(self) -> None:
        """Loads the model; returns when the first batch can run."""

    async def aclose(self) -> None:
        """Ends every process; idempotent."""


@runtime_checkable
class RowSink(Protocol):
    """Where committed rows go: a file, a socket, a message queue."""

    def write_row(self, record: CoalitionRecord) -> None:
        """Takes one row. Called after its commit, in order of `record_id`, by one thread at a time.

        An exception is logged and counted; the archive and the other sinks go on.
        """


class ManifestPayloadSource(Protocol):
    """A manifest that says what is written to `manifest.json`."""

    def to_dict(self) -> Mapping[str, object]:
        """The manifest as a JSON object."""
