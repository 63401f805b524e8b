"""A prompt from end to end: which of its parts raise the value, kept in an archive, and again without the model."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from coalition_models import WordModel

from undercurrent.runtime.archive import RunArchive
from undercurrent.runtime.archive_rows import CoalitionRecord
from undercurrent.runtime.errors import (
    ArchiveExistsError,
    ArchiveIncompleteError,
    ArchiveMismatchError,
    RuntimeStateError,
    RuntimeValueError,
)
from undercurrent.runtime.pipeline import EstimatorSettings, Explanation, RunSettings, explain, reanalyze
from undercurrent.runtime.telemetry import InMemoryObservabilitySink

pytest.importorskip("shapiq")

PROMPT = [
    {
        "role": "user",
        "content": [
            {"type": "document", "text": "rivers bend ", "name": "one"},
            {"type": "document", "text": "hills xyzzy stand ", "name": "two"},
            {"type": "document", "text": "birds sing ", "name": "three"},
            "which is it?",
        ],
    }
]
PROBED = RunSettings(players="documents", value="trigger", estimator=EstimatorSettings(name="exact"))


def run(model: Any, settings: RunSettings = PROBED, **options: Any) -> Explanation:
    async def main() -> Explanation:
        return await explain(PROMPT, model, settings, **options)

    return asyncio.run(main())


def test_the_document_that_made_the_probe_fire_is_named() -> None:
    model = WordModel()
    found = run(model)
    assert found.attribution.values == pytest.approx((0.0, 1.0, 0.0))
    assert found.players.players[found.attribution.ranking()[0]].label == "two"
    assert found.attribution.efficiency_gap == pytest.approx(0.0)
    assert found.base_text == "rivers bend hills xyzzy stand birds sing which is it?"
    assert found.metrics.executed == len(model.asked) == 8
    assert found.metrics.requested == found.metrics.executed + found.metrics.cache_hits


def test_prompts_are_asked_in_batches_that_share_their_beginning() -> None:
    model = WordModel()
    run(model, batch_size=3)
    assert max(model.batches) == 3
    assert sum(model.batches) == len(set(model.asked)) == 8


@pytest.mark.parametrize("value", ["similarity", "exact_match"])
def test_a_text_value_is_all_of_the_grand_coalition_and_efficient(value: str) -> None:
    found = run(WordModel(), RunSettings(players="documents", value=value, estimator=EstimatorSettings(name="exact")))
    assert found.attribution.grand == pytest.approx(1.0)
    assert sum(found.attribution.values) == pytest.approx(1.0 - found.attribution.empty)
    assert all(player_value > 0 for player_value in found.attribution.values)


def test_the_likelihood_of_the_answer_needs_one_generation() -> None:
    model = WordModel()
    settings = RunSettings(
        players="documents", value="answer_log_likelihood", estimator=EstimatorSettings(name="exact")
    )
    found = run(model, settings)
    ratio = math.log(0.9 / 0.1)
    assert found.attribution.values == pytest.approx((2 * ratio, 3 * ratio, 2 * ratio))
    assert len(model.asked) == 9  # the answer, and its likelihood for each coalition


def test_the_likelihood_of_the_answer_is_refused_by_a_model_that_cannot_score() -> None:
    class Mute:
        model_id = "mute"

        async def generate_batch(self, jobs: Any) -> list[str]:
            return ["x"] * len(jobs)

    with pytest.raises(RuntimeStateError, match="needs a model that scores a given answer, Mute does not"):
        run(Mute(), RunSettings(players="documents", value="answer_log_likelihood"))


def test_an_archive_answers_again_without_the_model(tmp_path: Path) -> None:
    found = run(WordModel(), archive=tmp_path / "run")
    again = reanalyze(tmp_path / "run")
    assert again.attribution == found.attribution
    assert again.base_text == found.base_text
    assert again.players == found.players
    other = reanalyze(tmp_path / "run", value="similarity", estimator=EstimatorSettings(name="loo"))
    assert other.attribution.index == "LOO"
    assert other.value_name == "similarity"


def test_probe_values_of_each_token_stand_beside_the_text(tmp_path: Path) -> None:
    run(WordModel(), archive=tmp_path / "run")
    with RunArchive.load(tmp_path / "run") as archive:
        rows = list(archive.history_lazy())
    grand = next(row for row in rows if row.mask.words == b"\7")
    assert grand.values is not None
    assert grand.values["trigger"].tokens == (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_a_run_that_fails_is_resumed_and_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    undisturbed = run(WordModel())
    with pytest.raises(OSError, match="the model is gone"):
        run(WordModel(fails_at=4), archive=tmp_path / "run", batch_size=1)
    with pytest.raises(ArchiveIncompleteError, match="resume it first"):
        reanalyze(tmp_path / "run")
    model = WordModel()
    resumed = run(model, archive=tmp_path / "run", on_exists="resume")
    assert resumed.attribution == undisturbed.attribution
    assert len(model.asked) == 4
    assert resumed.metrics.cache_hits >= 4


def test_a_finished_run_is_resumed_without_the_model(tmp_path: Path) -> None:
    found = run(WordModel(), archive=tmp_path / "run")
    model = WordModel()
    assert run(model, archive=tmp_path / "run", on_exists="resume").attribution == found.attribution
    assert model.asked == []
    with pytest.raises(ArchiveExistsError):
        run(model, archive=tmp_path / "run")


def test_another_run_is_not_resumed_and_the_difference_is_named(tmp_path: Path) -> None:
    run(WordModel(), archive=tmp_path / "run")
    with pytest.raises(ArchiveMismatchError, match=r"\$\.absence_policy is 'delete' in the archive and 'mask'"):
        run(
            WordModel(),
            RunSettings(players="documents", value="trigger", absence_policy="mask"),
            archive=tmp_path / "run",
            on_exists="resume",
        )


def test_rows_reach_a_sink_as_they_are_committed(tmp_path: Path) -> None:
    class Rows:
        def __init__(self) -> None:
            self.seen: list[CoalitionRecord] = []

        def write_row(self, record: CoalitionRecord) -> None:
            self.seen.append(record)

    rows = Rows()
    run(WordModel(), archive=tmp_path / "run", row_sinks=[rows])
    assert [record.record_id for record in rows.seen] == list(range(1, len(rows.seen) + 1))
    assert len({record.coalition_key for record in rows.seen}) == 8


def test_an_estimator_that_needs_other_coalitions_is_refused(tmp_path: Path) -> None:
    settings = RunSettings(players="documents", value="trigger", estimator=EstimatorSettings(name="loo"))
    run(WordModel(), settings, archive=tmp_path / "run")
    with pytest.raises(ArchiveMismatchError, match=r"3 of 8 coalitions .* are not in"):
        reanalyze(tmp_path / "run", estimator=EstimatorSettings(name="exact"))


def test_a_value_that_no_generation_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeValueError, match=r"the value 'triger' was expected.*did you mean 'trigger'"):
        run(WordModel(), RunSettings(players="documents", value="triger"))


def test_a_cancelled_run_leaves_no_thread_and_can_be_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(explain(PROMPT, WordModel(is_stuck=True), PROBED, archive=tmp_path / "run"))
        while not (tmp_path / "run" / "base_generation.txt").exists() and not task.done():
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 30))
    assert run(WordModel(), archive=tmp_path / "run", on_exists="resume").metrics.executed == 7


def test_spans_tell_where_the_time_went() -> None:
    spans = InMemoryObservabilitySink()
    found = run(WordModel(), observability=spans)
    assert [span.name for span in spans.spans] == [
        "orchestrator.generate_base",
        "orchestrator.schedule",
        "orchestrator.run",
    ]
    assert found.perf.total_ms >= found.perf.generation_ms > 0
