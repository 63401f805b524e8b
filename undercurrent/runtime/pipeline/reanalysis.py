"""A finished run, scored again without the model: another value function, another estimator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from undercurrent.runtime.archive import RunArchive
from undercurrent.runtime.domain import GenerationRecord
from undercurrent.runtime.errors import ArchiveCorruptError, ArchiveIncompleteError, ArchiveMismatchError
from undercurrent.runtime.masking import pack_mask
from undercurrent.runtime.metrics import PerfSummary, SchedulerMetrics
from undercurrent.runtime.pipeline.estimators import EstimatorSettings, estimate
from undercurrent.runtime.pipeline.explanation import Explanation
from undercurrent.runtime.pipeline.game import CoalitionGame, Coalitions
from undercurrent.runtime.pipeline.settings import RunManifest
from undercurrent.runtime.pipeline.values import ANSWER_VALUE, ValueFunction, value_function

__all__ = ["reanalyze"]


def reanalyze(
    archive: Path | str, *, value: ValueFunction | str | None = None, estimator: EstimatorSettings | None = None
) -> Explanation:
    """Scores the generations of a finished run.

    Args:
        value: a value function or its name; None is that of the run.
        estimator: None is that of the run. Another one finds its coalitions only where the run measured all of them,
            or where it needs no others (`loo` after any run that asked for single absences).

    Raises:
        ArchiveIncompleteError: the run has not finished; resume it.
        ArchiveMismatchError: the estimator needs coalitions that were not generated.
        ArchiveCorruptError: the manifest is not that of an explained prompt.
        RuntimeValueError: the generations lack the value that is asked for.
        ArchiveError: see `RunArchive.load`.
    """
    started_s = time.perf_counter()
    with RunArchive.load(archive) as stored:
        if not stored.is_complete:
            raise ArchiveIncompleteError(f"the run in {archive} has not finished; resume it first")
        manifest = _read_manifest(stored)
        records = {
            row.mask.words: GenerationRecord(row.generation_text, row.logprobs, row.values)
            for row in stored.history_lazy()
        }
        base_text = stored.read_base_generation()
    count = len(manifest.player_set)
    base = records.get(pack_mask([True] * count).words)
    if base is None or base_text is None:
        raise ArchiveCorruptError(f"the archive in {archive} lacks the generation of the whole prompt")
    base = msgspec.structs.replace(base, text=base_text)
    scorer = value if isinstance(value, ValueFunction) else value_function(value or manifest.value_fn)
    if manifest.value_fn == ANSWER_VALUE and scorer.name != ANSWER_VALUE:
        raise ArchiveMismatchError(
            f"the run in {archive} scored the answer of the whole prompt and generated no other; explain anew for "
            f"{scorer.name!r}"
        )
    table = _Table(records, scorer, base, str(archive))
    attribution = estimate(CoalitionGame(count, table.measure), estimator or manifest.config.estimator)
    total_ms = (time.perf_counter() - started_s) * 1e3
    return Explanation(
        run_id=manifest.run_id,
        model_id=manifest.model_id,
        value_name=scorer.name,
        absence_policy=manifest.absence_policy,
        conversation=manifest.conversation,
        players=manifest.player_set,
        attribution=attribution,
        base_text=base_text,
        metrics=SchedulerMetrics(attribution.evaluations, 0, 0, attribution.evaluations),
        perf=PerfSummary(total_ms=total_ms, generation_ms=0.0, scoring_ms=total_ms, aggregation_ms=0.0),
        archive=str(archive),
    )


class _Table:
    """The generations of a run, by coalition."""

    def __init__(
        self, records: dict[bytes, GenerationRecord], value: ValueFunction, base: GenerationRecord, archive: str
    ) -> None:
        self._records = records
        self._value = value
        self._base = base
        self._archive = archive

    def measure(self, masks: Coalitions) -> list[float]:
        words = [_words(mask) for mask in masks]
        missing = [key for key in words if key not in self._records]
        if missing:
            raise ArchiveMismatchError(
                f"{len(missing)} of {len(words)} coalitions that the estimator needs are not in {self._archive}; use "
                "the run's own estimator, budget and seed, or explain anew"
            )
        return [self._value.score(self._base, self._records[key]) for key in words]


def _words(mask: Sequence[bool] | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> bytes:
    return pack_mask([bool(is_present) for is_present in mask]).words


def _read_manifest(stored: RunArchive) -> RunManifest:
    try:
        return msgspec.convert(stored.read_manifest(), RunManifest)
    except msgspec.ValidationError as error:
        raise ArchiveCorruptError(
            f"the manifest in {stored.root} is not that of a prompt explained by this package: {error}"
        ) from error
