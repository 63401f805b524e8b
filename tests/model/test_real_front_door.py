"""The front door on a trained model: lists as batches, streams, verdicts behind the text, recordings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_points import PROBES, make_point

from undercurrent import GenerationOutput, ProbedModel
from undercurrent.engines import Recording, find_packaged_model, replay
from undercurrent.engines.cache_folder import cache_folder
from undercurrent.model import TokenEvent
from undercurrent.router import Router
from undercurrent.spec import ExecutionMode

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

PROMPTS = ["The capital of France is", "Water boils at", "She opened the window and saw that the garden"]


@pytest.fixture(scope="module")
def watched() -> Iterator[ProbedModel]:
    folder = find_packaged_model(cache_folder() / "models")
    points = [
        make_point("inline", layers=(4, 12)),
        make_point("async", layers=(12,), execution_mode=ExecutionMode.ASYNC, overflow_policy="block"),
    ]
    options: dict[str, Any] = {"dtype": "float32", "router_kwargs": {"drain_timeout": 300}}
    with ProbedModel(folder, spec=points, probes=PROBES, shows_progress=False, **options) as model:
        yield model


def test_a_list_gives_the_texts_that_single_prompts_give(watched: ProbedModel) -> None:
    together = watched.generate(PROMPTS, max_new_tokens=12, temperature=0)
    alone = [watched.generate(prompt, max_new_tokens=12, temperature=0) for prompt in PROMPTS]
    assert [output.text for output in together] == [output.text for output in alone]
    assert together[0].text.startswith(" the capital of the country")
    for output in together:
        assert output.probe_results["async"].metadata["coverage"]["complete"]


def test_a_stream_shows_the_text_that_generate_gives(watched: ProbedModel) -> None:
    *events, output = watched.stream(PROMPTS[2], max_new_tokens=12, temperature=0, stop="\n")
    plain = watched.generate(PROMPTS[2], max_new_tokens=12, temperature=0, stop="\n")
    assert isinstance(output, GenerationOutput)
    assert "".join(event.text for event in events if isinstance(event, TokenEvent)) == output.text == plain.text


def test_a_recording_of_a_real_model_comes_back_to_the_bit(watched: ProbedModel, tmp_path: Path) -> None:
    with watched.record_to(tmp_path / "r"):
        outputs = watched.generate(PROMPTS, max_new_tokens=8, temperature=0)
    # The model and its threads are still there: on few CPUs a worker waits for its turn.
    with Router(PROBES, drain_timeout=300) as router:
        router.prewarm(watched.spec, loads_torch=True)
        outcomes = list(replay(Recording(tmp_path / "r"), watched.spec, router))
    for output, outcome in zip(outputs, outcomes, strict=True):
        for name in ("inline", "async"):
            live: list[Any] = output.probe_results[name].verdict
            again: list[Any] = outcome.results[name].verdict
            assert [row[:3] for row in again] == [row[:3] for row in live]
            assert all(bool((a[3] == b[3]).all()) for a, b in zip(again, live, strict=True))
