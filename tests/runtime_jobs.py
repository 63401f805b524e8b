"""Coalition jobs, generators and folders for the runtime's tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from undercurrent.runtime import (
    CoalitionJob,
    CoalitionRecord,
    CoalitionRecordDraft,
    GenerationConfig,
    RunArchive,
    build_coalition_key,
    pack_mask,
)

MANIFEST: dict[str, object] = {"run_id": "run-1", "estimand": "shapley", "decoding": {"seed": 7, "stop": ["\n"]}}
GENERATION = GenerationConfig(seed=7)


def make_job(number: int, *, players: int = 8, **changes: object) -> CoalitionJob:
    """The job of coalition `number`, whose bits say who is present; its snapshot is the text of that number."""
    present = tuple(bool(number >> player & 1) for player in range(players))
    names = tuple(f"player-{player}" for player in range(players))
    key = build_coalition_key("snapshot-1", names, present, "delete", "model-1", GENERATION)
    fields: dict[str, object] = {
        "coalition_key": key,
        "snapshot_id": "snapshot-1",
        "snapshot": f"prompt {number}",
        "absence_policy": "delete",
        "mask_words": pack_mask(present).words,
        "mask_n_bits": players,
        "model_id": "model-1",
    }
    return CoalitionJob(**{**fields, **changes})  # type: ignore[arg-type]


def make_jobs(count: int, *, players: int = 8) -> list[CoalitionJob]:
    """Jobs 0 to `count` - 1."""
    return [make_job(number, players=players) for number in range(count)]


def make_draft(number: int, **changes: object) -> CoalitionRecordDraft:
    """The row of job `number`."""
    job = make_job(number)
    fields: dict[str, object] = {
        "snapshot_id": job.snapshot_id,
        "coalition_key": job.coalition_key,
        "mask": job.mask,
        "absence_policy": job.absence_policy,
        "model_id": job.model_id,
        "generation_text": text_of(f"prompt {number}"),
        "elapsed_ms": 1.5,
        "cache_hit": False,
    }
    return CoalitionRecordDraft(**{**fields, **changes})  # type: ignore[arg-type]


def text_of(snapshot: object) -> str:
    """What the model of these tests answers."""
    return hashlib.sha256(str(snapshot).encode()).hexdigest()[:12]


class CountingModel:
    """Answers with `text_of`, remembers what it was asked, and can be told to fail."""

    def __init__(self, failures: Sequence[BaseException] = ()) -> None:
        self.asked: list[object] = []
        self._failures: Iterator[BaseException] = iter(failures)

    async def __call__(self, snapshot: object) -> str:
        self.asked.append(snapshot)
        failure = next(self._failures, None)
        if failure is not None:
            raise failure
        return text_of(snapshot)


def write_archive(root: Path, count: int, *, complete: bool) -> None:
    """Makes an archive with the rows of jobs 0 to `count` - 1 and closes it."""
    with RunArchive.open(root, MANIFEST) as archive:
        for number in range(count):
            archive.append(make_draft(number))
        if complete:
            archive.mark_complete()


def fingerprint(root: Path) -> dict[str, tuple[bytes, int]]:
    """Content and modification time of each file below a folder."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def texts_by_key(records: Sequence[CoalitionRecord]) -> dict[str, str]:
    """The texts of an archive; a key with two texts fails."""
    texts: dict[str, str] = {}
    for record in records:
        assert texts.setdefault(record.coalition_key, record.generation_text) == record.generation_text
    return texts
