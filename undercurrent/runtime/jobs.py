"""One coalition to generate, and the order in which jobs share the most of their prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from undercurrent.runtime.masking import PackedMask

__all__ = ["CoalitionJob", "group_jobs_for_prefix_cache", "prefix_order"]

T = TypeVar("T")
# A mask counts players from the lowest bit. With the bits of each byte turned round, bytes compare as the players do.
_TURNED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class CoalitionJob(msgspec.Struct, frozen=True):
    """One coalition to generate: the prompt with some of its parts left out."""

    coalition_key: str
    """Identifies the generation: jobs with one key have one text."""
    snapshot_id: str
    """The conversation whose parts are left out."""
    snapshot: object
    """The rendered prompt, in the generator's own form."""
    absence_policy: str
    """How a part is left out."""
    mask_words: bytes
    """Which players are present, packed as `PackedMask.words`."""
    mask_n_bits: int
    """Number of players."""
    model_id: str
    prefix_hash: str = ""
    """Jobs with one hash share all of the prompt but its last player; "" where nobody computed it."""
    priority: int = 0
    """Among jobs that wait for the model the highest goes first, then the one that came first."""
    deadline_s: float | None = None
    """Seconds from being taken to being generated, waits and retries included; None leaves it to the scheduler."""

    @property
    def mask(self) -> PackedMask:
        """The packed mask."""
        return PackedMask(self.mask_words, self.mask_n_bits)


def prefix_order(job: CoalitionJob) -> tuple[str, str, str, bytes]:
    """The key that sorts jobs so that neighbours share the longest prompts: the first player decides first."""
    return job.snapshot_id, job.model_id, job.absence_policy, job.mask_words.translate(_TURNED)


def group_jobs_for_prefix_cache(jobs: Sequence[T], *, key: Callable[[T], str]) -> list[T]:
    """Sorts by `key`, a prefix hash; jobs of one hash keep their order."""
    return sorted(jobs, key=key)
