"""Probes inside the model that decides: what they see, what they say, and what they take back."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_points import PROBES, make_point
from predict_checkpoints import LATE, TOPIC, Recorder, WordCheckpoint, answer_for

from undercurrent.core import Probe, ProbeAction, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.engines import build_tiny_model
from undercurrent.engines.base import CaptureAuditError, EngineLimitationError
from undercurrent.engines.checkpoint_causal import CausalCheckpoint
from undercurrent.engines.checkpoint_encoder import EncoderCheckpoint
from undercurrent.engines.checkpoint_probes import CheckpointProbes
from undercurrent.engines.tiny import build_byte_tokenizer
from undercurrent.predict import Agent, PredictValueError
from undercurrent.predict import Router as DecisionRouter
from undercurrent.router import Router
from undercurrent.spec import ActivationRecord, TensorType

STATES = ["my parcel is late", "hi", "a bill"]


class Loud(Probe):
    """Vetoes states whose first token's activation is of the state it was told of by name; its verdict is a norm."""

    probe_kind = "trajectory"

    def __init__(self, *, vetoes: str = "") -> None:
        self._vetoes = vetoes
        self._norm = 0.0

    def on_start(self, request_ctx: RequestContext) -> None:
        self._is_meant = request_ctx.prompt_metadata["prompt"] == self._vetoes

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        self._norm = float(np.linalg.norm(np.asarray(record.tensor, dtype=np.float64)))
        return ProbeSignal(ProbeAction.ABORT, metadata={"why": "loud"}) if self._is_meant else None

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        verdict = {"flagged": self._is_meant, "score": self._norm}
        return ProbeResult(self.request_id, self.extraction_point_name, verdict)


@functools.cache
def tiny_bert() -> Any:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertModel(BertConfig(vocab_size=300, **sizes)).eval()


@functools.cache
def sentence_tokenizer() -> Any:
    tokenizer = build_byte_tokenizer()
    tokenizer.cls_token, tokenizer.sep_token = "<bos>", "<eos>"
    return tokenizer


def encoder() -> EncoderCheckpoint:
    return EncoderCheckpoint(tiny_bert(), sentence_tokenizer(), model_id="tiny-bert")


@functools.cache
def tiny_llama() -> tuple[Any, Any]:
    return build_tiny_model(layer_count=2)


def causal() -> CausalCheckpoint:
    model, tokenizer = tiny_llama()
    return CausalCheckpoint(model, tokenizer, model_id="tiny-llama")


@pytest.fixture
def router() -> Iterator[Router]:
    with Router({**PROBES, "loud": ProbeFactory(Loud)}, worker_mode="thread") as made:
        yield made


def agent_with(router: Router, *points: Any, checkpoint: Any = None) -> Agent:
    return Agent(checkpoint or encoder(), probes=CheckpointProbes(points, router))


def hidden_states(model: Any, tokens: list[int], layer: int) -> Any:
    """What a layer computes for one sequence by itself."""
    with torch.inference_mode():
        states = model.base_model(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
    # The last entry of a Llama has its final norm in it, so tests read layers before it.
    return states[layer + 1][0].numpy()


def hook_count() -> int:
    """Hooks on the tiny encoder: transformers has its own there once hidden states were asked for."""
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in tiny_bert().modules())


# ---- what probes see -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", ["prompt[-1]", "prompt[0]", 1])
def test_encoder_gives_the_row_of_each_state(router: Router, position: Any) -> None:
    agent = agent_with(router, make_point("seen", layers=(0, 2), position=position))
    results = agent.predict_batch(STATES, {**TOPIC, **LATE})
    for state, result in zip(STATES, results, strict=True):
        tokens = [1, *sentence_tokenizer()(state, add_special_tokens=False)["input_ids"], 2]
        at = len(tokens) - 1 if position == "prompt[-1]" else 0 if position == "prompt[0]" else 1
        records = result["probes"]["seen"]["verdict"]
        assert [(layer, place) for layer, place, _, _ in records] == [(0, at), (2, at)]
        for layer, _, is_generated, tensor in records:
            assert not is_generated
            expected = hidden_states(tiny_bert(), tokens, layer)[at]
            np.testing.assert_allclose(np.asarray(tensor), expected, atol=1e-5)


def test_causal_model_gives_the_last_token_of_each_prompt(router: Router) -> None:
    agent = agent_with(router, make_point("seen", layers=(0,), position="prompt[-1]"), checkpoint=causal())
    results = agent.predict_batch(STATES, {**TOPIC, **LATE})
    checkpoint = causal()
    from undercurrent.predict.checkpoint import CallOptions
    from undercurrent.predict.questions import parse_questions

    for state, result in zip(STATES, results, strict=True):
        prompts = checkpoint.sequences(checkpoint.encode(state, parse_questions({**TOPIC, **LATE}), CallOptions()))
        records = result["probes"]["seen"]["verdict"]
        assert [place for _, place, _, _ in records] == [len(prompt) - 1 for prompt in prompts]
        assert len(records) == 2
        for prompt, (_, _, _, tensor) in zip(prompts, records, strict=True):
            np.testing.assert_allclose(np.asarray(tensor), hidden_states(tiny_llama()[0], prompt, 0)[-1], atol=1e-5)


def test_decision_model_of_a_folder_gives_a_row_per_question(router: Router, tmp_path: Path) -> None:
    from laya_folders import write_folder

    folder = str(write_folder(tmp_path / "model"))
    point = make_point("seen", layers=(0,), position="prompt[-1]")
    watched = Agent(folder, probes=CheckpointProbes([point], router)).predict_batch(STATES, {**TOPIC, **LATE})
    plain = Agent(folder).predict_batch(STATES, {**TOPIC, **LATE})
    assert [result["answers"] for result in watched] == [result["answers"] for result in plain]
    assert [len(result["probes"]["seen"]["verdict"]) for result in watched] == [2, 2, 2]


def test_states_of_many_passes_keep_their_verdicts(router: Router) -> None:
    point = make_point("seen", position="prompt[-1]")
    states = [f"state number {index}" * (index % 3 + 1) for index in range(14)]
    for checkpoint in (encoder(), causal()):
        agent = agent_with(router, point, checkpoint=checkpoint)
        alone = [agent.predict(state, TOPIC)["probes"]["seen"]["verdict"] for state in states]
        together = agent.predict_batch(states, TOPIC, batch_size=6, sort_by_length=True)
        for one, result in zip(alone, together, strict=True):
            (_, place, _, tensor), (_, same_place, _, same) = one[0], result["probes"]["seen"]["verdict"][0]
            assert place == same_place
            np.testing.assert_allclose(np.asarray(tensor), np.asarray(same), atol=1e-4)


def test_position_behind_a_short_state_reads_no_padding(router: Router) -> None:
    agent = agent_with(router, make_point("seen", position=10))
    long, short = agent.predict_batch(["a long long state", "hi"], TOPIC)
    assert len(long["probes"]["seen"]["verdict"]) == 1
    assert short["probes"]["seen"]["verdict"] == []


def test_answers_are_those_without_probes_and_no_hook_stays(router: Router) -> None:
    agent, before = agent_with(router, make_point("seen", position="prompt[-1]")), hook_count()
    watched, plain = agent.predict("late", TOPIC), Agent(encoder()).predict("late", TOPIC)
    assert watched["answers"] == plain["answers"]
    assert "probes" not in plain
    assert hook_count() == before


def test_probe_owns_what_it_gets(router: Router) -> None:
    agent = agent_with(router, make_point("seen", position="prompt[-1]", probe_type="scribble"))
    assert agent.predict("late", TOPIC)["answers"] == Agent(encoder()).predict("late", TOPIC)["answers"]


def test_async_points_have_their_verdicts_beside_the_answers(router: Router) -> None:
    agent = agent_with(router, make_point("seen", position="prompt[-1]", execution_mode="async"))
    for result in agent.predict_batch(STATES, TOPIC):
        assert len(result["probes"]["seen"]["verdict"]) == 1
        assert result["probes"]["seen"]["coverage"]["complete"] is True


def test_threads_do_not_mix_their_states(router: Router) -> None:
    agent = agent_with(router, make_point("seen", position="prompt[-1]"))
    expected = {state: agent.predict(state, TOPIC)["probes"]["seen"]["verdict"][0][1] for state in STATES}
    found: list[tuple[str, int]] = []

    def ask(state: str) -> None:
        found.extend((state, agent.predict(state, TOPIC)["probes"]["seen"]["verdict"][0][1]) for _ in range(5))

    threads = [threading.Thread(target=ask, args=(state,)) for state in STATES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted((state, place) for state, place in expected.items() for _ in range(5))


# ---- what they say ---------------------------------------------------------------------------------------------------


def test_question_is_answered_by_a_probe_in_its_place(router: Router) -> None:
    agent = agent_with(router, make_point("loud", position="prompt[0]", probe_type="loud"))
    questions = {"toxic": {"type": "probe", "point": "loud"}, **TOPIC}
    result = agent.predict("hi", questions)
    assert list(result["answers"]) == ["toxic", "topic"]
    answer = result["answers"]["toxic"]
    assert answer["score"] == answer["verdict"]["score"] > 0
    assert (answer["type"], answer["point"], answer["flagged"], answer["complete"]) == ("probe", "loud", False, True)


@pytest.mark.parametrize("make", [encoder, causal])
def test_probe_can_be_all_that_is_asked(router: Router, make: Any) -> None:
    agent = agent_with(router, make_point("loud", position="prompt[0]", probe_type="loud"), checkpoint=make())
    result = agent.predict("hi", {"toxic": {"type": "probe", "point": "loud"}}, min_confidence=0.5)
    assert list(result["answers"]) == ["toxic"]
    assert result["answers"]["toxic"]["abstention"] == "unevaluated"


def test_veto_takes_back_the_answers_of_its_state_alone(router: Router) -> None:
    factory = {"loud": ProbeFactory(Loud, {"vetoes": "hi"})}
    with Router(factory) as vetoing:
        agent = agent_with(vetoing, make_point("guard", position="prompt[0]", probe_type="loud"))
        questions = {**TOPIC, "toxic": {"type": "probe", "point": "guard"}}
        ctxs: list[Any] = []
        late, vetoed, bill = agent.predict_batch(STATES, questions, min_confidence=0.1, on_predict_end=ctxs.append)
    assert vetoed["answers"]["topic"] == {"type": "choice", "abstention": "vetoed", "vetoed_by": "guard"}
    assert vetoed["answers"]["toxic"]["flagged"] is True
    assert vetoed["probes"]["guard"]["vetoed"] is True
    assert vetoed["probes"]["guard"]["reason"] == {"why": "loud"}
    assert "choice" in late["answers"]["topic"]
    assert "choice" in bill["answers"]["topic"]
    assert ctxs[0].results[1]["answers"]["topic"]["abstention"] == "vetoed"


def test_veto_of_one_window_is_a_veto_of_the_document() -> None:
    with Router({"loud": ProbeFactory(Loud, {"vetoes": "b" * 8})}) as vetoing:
        agent = agent_with(vetoing, make_point("guard", position="prompt[0]", probe_type="loud"))
        result = agent.predict_long("a" * 8 + "b" * 8 + "a" * 8, TOPIC, window=8, stride=8)
    assert result["answers"]["topic"]["abstention"] == "vetoed"
    assert result["answers"]["topic"]["window"]["index"] == 1
    assert [said["guard"]["verdict"]["flagged"] for said in result["probes"]] == [False, True, False]


def test_router_attaches_probes_to_what_it_loads(router: Router) -> None:
    attached = CheckpointProbes([make_point("loud", position="prompt[0]", probe_type="loud")], router)
    decisions = DecisionRouter({"own": encoder}, default="own", agent_options={"probes": attached})
    questions = {"toxic": {"type": "probe", "point": "loud"}}
    requests = [{"state": state, "questions": questions, "model": "own"} for state in STATES]
    results = decisions.predict_batch(requests)
    assert all(result["answers"]["toxic"]["score"] > 0 for result in results)


def test_skipped_call_runs_no_probe(router: Router) -> None:
    agent = agent_with(router, make_point("seen", position="prompt[-1]"))
    cache = Recorder("cache", [], {"on_predict_start": lambda ctx: ctx.skip(answer_for(ctx))})
    assert "probes" not in agent.predict("hi", LATE, hooks=cache)
    assert router.totals().requests_begun == 0


def test_requests_have_the_run_id_so_that_signals_can_be_found(router: Router) -> None:
    seen: list[str] = []
    router.on_request_end(lambda request_id, results: seen.append(request_id))
    ctxs: list[Any] = []
    agent_with(router, make_point("seen", position="prompt[-1]")).predict_batch(
        STATES, TOPIC, on_predict_end=ctxs.append
    )
    assert seen == [f"{ctxs[0].run_id}/{index}" for index in range(3)]


# ---- failures --------------------------------------------------------------------------------------------------------


def test_probe_that_raises_fails_the_call_and_leaves_no_request(router: Router) -> None:
    agent = agent_with(router, make_point("seen", position="prompt[-1]", probe_type="broken"))
    before = hook_count()
    with pytest.raises(RuntimeError, match="this probe is broken") as raised:
        agent.predict_batch(STATES, TOPIC)
    assert "state 0 of its pass" in raised.value.__notes__[0]
    assert router.totals().requests_live == 0
    assert hook_count() == before


def test_model_that_fails_leaves_no_request(router: Router) -> None:
    class Failing(EncoderCheckpoint):
        def forward(self, batch: Any) -> Any:
            raise RuntimeError("out of memory")

    failing = Failing(tiny_bert(), sentence_tokenizer(), model_id="failing")
    with pytest.raises(RuntimeError, match="out of memory"):
        agent_with(router, make_point("seen", position="prompt[-1]"), checkpoint=failing).predict("hi", TOPIC)
    assert router.totals().requests_live == 0


def test_model_that_reads_something_else_is_found_out(router: Router) -> None:
    class Shifted(EncoderCheckpoint):
        def sequences(self, encoded: Any) -> Any:
            return [[7, *encoded.row]]

    shifted = Shifted(tiny_bert(), sentence_tokenizer(), model_id="shifted")
    with pytest.raises(CaptureAuditError, match="1 sequences of this call did not pass"):
        agent_with(router, make_point("seen", position="prompt[-1]"), checkpoint=shifted).predict("hi", TOPIC)
    assert router.totals().requests_live == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"position": "generated[*]"}, "a decision generates nothing"),
        ({"position": "generated[2]"}, "a decision generates nothing"),
        ({"position": "prompt[0]", "layers": (3,)}, "must be 0 to 2, got 3"),
        ({"position": "prompt[0]", "tensor_type": TensorType.ATTN_OUT}, "gives no `tensor_type` 'attn_out'"),
    ],
)
def test_point_that_a_decision_cannot_give_is_refused(router: Router, fields: Any, words: str) -> None:
    with pytest.raises(EngineLimitationError, match=words):
        agent_with(router, make_point("seen", **fields))


def test_causal_model_gives_the_parts_of_its_layers(router: Router) -> None:
    point = make_point("seen", position="prompt[-1]", tensor_type=TensorType.ATTN_OUT)
    assert len(agent_with(router, point, checkpoint=causal()).predict("hi", TOPIC)["probes"]["seen"]["verdict"]) == 1


def test_checkpoint_that_cannot_be_read_is_refused(router: Router) -> None:
    with pytest.raises(EngineLimitationError, match="WordCheckpoint lacks `model` or `sequences`"):
        agent_with(router, make_point("seen", position="prompt[-1]"), checkpoint=WordCheckpoint())


def test_probe_question_without_its_probe_is_refused(router: Router) -> None:
    asked = {"toxic": {"type": "probe", "point": "laud"}}
    with pytest.raises(PredictValueError, match="make the Agent with `probes=`"):
        Agent(WordCheckpoint()).predict("hi", asked)
    agent = agent_with(router, make_point("loud", position="prompt[0]", probe_type="loud"))
    with pytest.raises(PredictValueError, match="did you mean 'loud'"):
        agent.predict("hi", asked)
    with pytest.raises(PredictValueError, match="names the `point`"):
        agent.predict("hi", {"toxic": {"type": "probe"}})
