"""Coalitions on a real backend: prefixes computed once with equal output, verdicts, scored answers, early ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_points import Keep

from undercurrent.core import Probe, ProbeAction, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.core.examples import TrajectoryScoreProbe
from undercurrent.engines import EngineLimitationError, HFEngine
from undercurrent.engines.coalitions import HFCoalitions, measure_verdict
from undercurrent.engines.prompt_state import PromptState
from undercurrent.engines.tiny import build_tiny_model
from undercurrent.errors import ProbingRuntimeError, ProbingTypeError, ProbingValueError
from undercurrent.router import Router
from undercurrent.runtime.domain import Conversation, GenerationConfig, GenerationRecord
from undercurrent.runtime.jobs import CoalitionJob
from undercurrent.runtime.pipeline import ANSWER_VALUE, EstimatorSettings, RunSettings, explain, reanalyze
from undercurrent.spec import ActivationRecord, ExtractionPoint, parse_yaml

RIVER = "The river bends and flows past hills. "
GREEDY = GenerationConfig(max_new_tokens=6)


class Flagging(Probe):
    """Flags its third record and goes on."""

    probe_kind = "trajectory"

    def on_start(self, request_ctx: RequestContext) -> None:
        self.count = 0
        self.signals: list[ProbeSignal] = []

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        self.count += 1
        action = ProbeAction.FLAG if self.count == 3 else ProbeAction.CONTINUE
        self.signals.append(ProbeSignal(action, confidence=self.count / 10))
        return self.signals[-1]

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, self.count, self.signals)


def job(text: str) -> CoalitionJob:
    return CoalitionJob(text, "s", Conversation.of(text), "delete", b"", 0, "m")


def points(position: str = "generated[*]", probe: str = "mean") -> tuple[ExtractionPoint, ...]:
    return parse_yaml(f"""
extraction_points:
  - {{name: watch, layers: 2, tensor_type: residual_stream, position: "{position}", probe_type: {probe},
      probe_kind: trajectory}}
""").extraction_points


def generate(coalitions: HFCoalitions, texts: Sequence[str]) -> list[GenerationRecord]:
    return asyncio.run(coalitions.generate_batch([job(text) for text in texts]))


def load(architecture: str) -> HFEngine:
    made = HFEngine()
    model, tokenizer = build_tiny_model(architecture)
    made.load_model(model, tokenizer=tokenizer)
    return made


@pytest.fixture(scope="module")
def engine() -> HFEngine:
    return load("llama")


@pytest.fixture
def router() -> Iterator[Router]:
    probes = {
        "mean": ProbeFactory(TrajectoryScoreProbe, {"threshold": 99}),
        "flagging": ProbeFactory(Flagging),
        "keep": ProbeFactory(Keep),
    }
    with Router(probes) as made:
        yield made


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3"])
def test_a_shared_beginning_is_computed_once_with_equal_output(architecture: str) -> None:
    engine = load(architecture)
    shared = RIVER * 27  # 1,026 tokens
    texts = [f"{shared}{question}" for question in ("What?", "Where does it go?", "Who sees it bend?") * 3]
    with (
        HFCoalitions(engine, GREEDY, reuses_prefixes=True) as once,
        HFCoalitions(engine, GREEDY, reuses_prefixes=False) as anew,
    ):
        found = generate(once, texts)
        plain = [generate(anew, [text])[0] for text in texts]
        assert [record.text for record in found] == [record.text for record in plain]
        assert once.prompt_tokens_computed * 5 <= anew.prompt_tokens_computed
        assert once.kv_cache_hits == len(texts) - 1
        assert once.kv_cache_reused_tokens + once.prompt_tokens_computed == anew.prompt_tokens_computed


def test_verdicts_are_those_of_a_run_without_reuse(engine: HFEngine, router: Router) -> None:
    texts = [f"{RIVER * 3}{end}" for end in ("a", "bc", "def")]
    records = []
    for reuses in (True, False):
        with HFCoalitions(engine, GREEDY, points=points(), router=router, reuses_prefixes=reuses) as coalitions:
            records.append(generate(coalitions, texts))
    for once, anew in zip(*records, strict=True):
        assert once.text == anew.text
        assert once.values is not None
        assert anew.values is not None
        assert once.values["watch"].value == pytest.approx(anew.values["watch"].value, rel=1e-3)
        assert once.values["watch:fired"].value == 0.0


def test_the_last_prompt_token_can_be_read_with_reuse_and_earlier_ones_turn_it_off(
    engine: HFEngine, router: Router
) -> None:
    texts = [f"{RIVER * 3}{end}" for end in "ab"]
    with HFCoalitions(engine, GREEDY, points=points("prompt[-1]"), router=router) as coalitions:
        generate(coalitions, texts)
        assert coalitions.kv_cache_hits == 1
    with HFCoalitions(engine, GREEDY, points=points("prompt[2]"), router=router) as coalitions:
        generate(coalitions, texts)
        assert coalitions.kv_cache_hits == 0
    with (
        HFCoalitions(engine, GREEDY, points=points("prompt[2]"), router=router, reuses_prefixes=True) as coalitions,
        pytest.raises(EngineLimitationError, match=r"'watch' reads position 2, .* not computed again"),
    ):
        generate(coalitions, texts)


def test_a_generation_ends_with_the_flag_that_decides_its_verdict(engine: HFEngine, router: Router) -> None:
    flagging = points(probe="flagging")
    with HFCoalitions(engine, GREEDY, points=flagging, router=router) as coalitions:
        (whole,) = generate(coalitions, [RIVER])
    with HFCoalitions(engine, GREEDY, points=flagging, router=router, stops_when_fired=["watch"]) as coalitions:
        (cut,) = generate(coalitions, [RIVER])
    assert whole.values is not None
    assert cut.values is not None
    assert whole.values["watch:fired"].value == cut.values["watch:fired"].value == 1.0
    assert whole.values["watch"].tokens == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert cut.values["watch"].tokens == (0.1, 0.2, 0.3)
    assert whole.text.startswith(cut.text)
    assert len(cut.text) < len(whole.text)


def test_an_answer_is_as_likely_as_the_model_says(engine: HFEngine) -> None:
    prompts = [f"{RIVER}{end}" for end in ("What?", "Where?")]
    with HFCoalitions(engine, GREEDY) as coalitions:
        coalitions.score_answer("It flows.")
        found = generate(coalitions, prompts)
        assert coalitions.kv_cache_hits == 1
    answer = engine.tokenizer("It flows.", add_special_tokens=False)["input_ids"]
    for prompt, record in zip(prompts, found, strict=True):
        ids = engine.encode(prompt)
        with torch.inference_mode():
            logits = engine.model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
        expected = [float(logits[at, token]) for at, token in enumerate(answer)]
        assert record.logprobs == pytest.approx(expected, abs=1e-4)
        assert record.values is not None
        assert record.values[ANSWER_VALUE].value == pytest.approx(sum(expected), abs=1e-3)


def test_a_prompt_is_explained_on_a_model_and_again_from_its_archive(engine: HFEngine, tmp_path: Path) -> None:
    pytest.importorskip("shapiq")
    settings = RunSettings(
        players="words", value=ANSWER_VALUE, estimator=EstimatorSettings(name="exact"), generation=GREEDY
    )

    async def main() -> Any:
        with HFCoalitions(engine, GREEDY) as coalitions:
            return await explain("river bends past hills", coalitions, settings, archive=tmp_path / "run")

    found = asyncio.run(main())
    assert found.attribution.efficiency_gap == pytest.approx(0.0, abs=1e-6)
    assert found.metrics.kv_cache_hits > 0
    assert reanalyze(tmp_path / "run").attribution == found.attribution


def test_a_cancelled_batch_ends_with_the_token_at_hand(engine: HFEngine) -> None:
    async def main() -> None:
        with HFCoalitions(engine, GenerationConfig(max_new_tokens=1500)) as coalitions:
            task = asyncio.create_task(coalitions.generate_batch([job(RIVER)]))
            while not coalitions._running and not task.done():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(main(), 40))


def test_a_verdict_on_part_of_the_records_is_an_error(engine: HFEngine, router: Router) -> None:
    slow = parse_yaml("""
extraction_points:
  - {name: watch, layers: 2, tensor_type: residual_stream, position: "generated[*]", probe_type: keep,
     probe_kind: trajectory, sample: {rate: 0.5, by: record}}
""").extraction_points
    with (
        HFCoalitions(engine, GREEDY, points=slow, router=router) as coalitions,
        pytest.raises(ProbingRuntimeError, match=r"does not rest on every record \(sampled\)"),
    ):
        generate(coalitions, [RIVER])


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (2, 2.0),
        (True, 1.0),
        ({"score": 0.5, "flagged": True}, 0.5),
        ({"final_mean": -1.5}, -1.5),
        ({"flagged": True}, 1),
    ],
)
def test_a_verdict_stands_for_a_number(verdict: object, expected: float) -> None:
    assert measure_verdict(ProbeResult("r", "p", verdict)) == expected


@pytest.mark.parametrize("verdict", [None, "bad", {"label": "x"}, []])
def test_a_verdict_without_a_number_is_refused(verdict: object) -> None:
    with pytest.raises(ProbingRuntimeError, match="was expected to be a number"):
        measure_verdict(ProbeResult("r", "p", verdict))


def test_points_need_a_router_and_stops_need_points(engine: HFEngine) -> None:
    with pytest.raises(ProbingTypeError, match="without a `router`"):
        HFCoalitions(engine, GREEDY, points=points())
    with pytest.raises(ProbingValueError, match="`stops_when_fired` must name points, got 'x'"):
        HFCoalitions(engine, GREEDY, stops_when_fired=["x"])


def test_a_prompt_state_is_cut_back_and_copied(engine: HFEngine) -> None:
    state = PromptState()
    with torch.inference_mode():
        engine.model(torch.tensor([engine.encode(RIVER)]), cache=state.cache, use_cache=True)
    copied = state.copy()
    state.crop(5)
    assert (state.token_count, copied.token_count) == (5, len(engine.encode(RIVER)))
    with pytest.raises(ProbingValueError, match="a length of 0 to 5 tokens was expected, got 6"):
        state.crop(6)
