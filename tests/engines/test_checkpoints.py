"""What holds for every checkpoint, over tiny models with random weights: budgets, batches, threads, windows, errors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoints import QUESTIONS, STATES, make_causal, make_encoder, make_laya, scores_of

from undercurrent.engines.checkpoint_calibration import Calibration
from undercurrent.engines.checkpoint_texts import Budget
from undercurrent.predict import Agent, CallOptions, Checkpoint
from undercurrent.predict.checkpoint import LongCheckpoint
from undercurrent.predict.questions import parse_questions

KINDS = ("encoder", "causal", "laya")


@pytest.fixture(params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    makers: dict[str, Callable[[], Any]] = {
        "encoder": make_encoder,
        "causal": make_causal,
        "laya": lambda: make_laya(tmp_path / "model", temperature_by_options={}),
    }
    return makers[request.param]()


def flat(scores: Any) -> list[float]:
    """All probabilities, in their order."""
    return [value for row in scores for one in row for value in one.probabilities]


def test_it_keeps_the_protocol(checkpoint: Any) -> None:
    assert isinstance(checkpoint, Checkpoint)
    assert isinstance(checkpoint, LongCheckpoint)
    assert checkpoint.device == "cpu"
    assert checkpoint.uses_lang is False
    model = getattr(checkpoint, "_model", None) or checkpoint._network
    assert checkpoint.size_bytes == sum(part.nbytes for part in (*model.parameters(), *model.buffers())) > 10_000


def test_probabilities_are_in_the_order_of_the_keys_and_sum_to_one(checkpoint: Any) -> None:
    scores = scores_of(checkpoint, STATES, QUESTIONS)
    assert [[len(one.probabilities) for one in row] for row in scores] == [[3, 3, 2]] * len(STATES)
    for one in (one for row in scores for one in row):
        assert sum(one.probabilities) == pytest.approx(1.0)
        assert min(one.probabilities) > 0.0


def test_a_batch_answers_as_single_states_do(checkpoint: Any) -> None:
    together = scores_of(checkpoint, STATES, QUESTIONS)
    one_by_one = [scores_of(checkpoint, [state], QUESTIONS)[0] for state in STATES]
    assert flat(together) == pytest.approx(flat(one_by_one), abs=1e-5)


def test_questions_asked_together_answer_as_when_asked_alone(checkpoint: Any) -> None:
    together = scores_of(checkpoint, STATES[:2], QUESTIONS)
    for at, (name, question) in enumerate(QUESTIONS.items()):
        alone = scores_of(checkpoint, STATES[:2], {name: question})
        assert flat(alone) == pytest.approx(flat([[row[at]] for row in together]), abs=1e-5)


def test_states_change_answers(checkpoint: Any) -> None:
    first, second = scores_of(checkpoint, STATES[:2], QUESTIONS)
    assert flat([first]) != pytest.approx(flat([second]), abs=1e-4)


def test_an_agent_answers_with_it(checkpoint: Any) -> None:
    result = Agent(checkpoint).predict(STATES[0], QUESTIONS)
    assert set(result["answers"]["topic"]["probabilities"]) == {"delivery", "billing", "other"}
    assert result["answers"]["anger"]["legend"] == {"0": "calm", "1": "not calm", "2": "angry"}
    assert 0.0 <= result["answers"]["late"]["noul"] <= 1.0
    assert result["usage"]["input_tokens"] > result["usage"]["state_tokens"] > 0
    assert result["usage"]["truncated"] is False


def test_a_text_loses_its_end_and_a_conversation_its_oldest_turns(checkpoint: Any) -> None:
    options = CallOptions(max_len=90 if checkpoint.model_id != "tiny-causal" else 330)
    parsed = parse_questions(QUESTIONS)
    filler = "hello please thanks " * 60

    def answers(state: Any) -> Any:
        return flat(scores_of(checkpoint, [state], QUESTIONS, options))

    encoded = checkpoint.encode(filler, parsed, options)
    assert encoded.state_tokens_dropped > 0
    assert set(encoded.truncated_questions) == set(QUESTIONS)
    assert answers(filler + "the parcel is late") == pytest.approx(answers(filler + "wrong card"), abs=1e-7)
    assert answers("the parcel is late " + filler) != pytest.approx(answers("wrong card " + filler), abs=1e-4)
    turns = [{"role": "user", "content": filler}]
    assert answers(["late", *turns]) == pytest.approx(answers(["bill", *turns]), abs=1e-7)
    assert answers([*turns, "late"]) != pytest.approx(answers([*turns, "bill"]), abs=1e-4)


def test_usage_counts_what_is_read_and_what_is_not(checkpoint: Any) -> None:
    agent = Agent(checkpoint)
    whole = agent.predict("the parcel is late", QUESTIONS)["usage"]
    tight = agent.predict("the parcel is late " * 80, QUESTIONS, max_len=None)["usage"]
    assert whole["state_tokens_dropped"] == 0
    assert tight["state_tokens"] == tight["state_tokens_dropped"] + _seen(checkpoint)
    assert tight["truncated_questions"] == list(QUESTIONS)


def _seen(checkpoint: Any) -> int:
    """Tokens of a long text that the question with the least room sees."""
    long = "the parcel is late " * 80
    parsed = parse_questions(QUESTIONS)
    encoded = checkpoint.encode(long, parsed, CallOptions())
    return int(encoded.state_tokens - encoded.state_tokens_dropped)


def test_options_that_do_not_fit_are_refused_by_name(checkpoint: Any) -> None:
    many = {
        "which": {"type": "choice", "instructions": "what", "criteria": [f"card {'a ' * 9}{at}" for at in range(40)]}
    }
    with pytest.raises(ValueError, match=r"question 'which'.*40 options.*`max_len`"):
        Agent(checkpoint).predict("a card", many, max_len=24, head_max_len=10)


def test_threads_get_what_one_thread_gets(checkpoint: Any) -> None:
    states = [f"{state} {at}" for at in range(6) for state in ("my parcel is late", "wrong bill")]
    expected = [flat(scores_of(checkpoint, [state], QUESTIONS)) for state in states]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda state: flat(scores_of(checkpoint, [state], QUESTIONS)), states * 3))
    for at, values in enumerate(found):
        assert values == pytest.approx(expected[at % len(states)], abs=1e-5)


def test_long_states_are_read_in_windows_that_reach_the_end(checkpoint: Any) -> None:
    agent = Agent(checkpoint)
    text = "hello please thanks " * 120 + "the parcel is late"
    total = checkpoint.encode(text, parse_questions(QUESTIONS), CallOptions()).state_tokens
    windows = checkpoint.split(text, parse_questions(QUESTIONS), CallOptions(), window_tokens=20, stride_tokens=15)
    assert windows[0].token_start == 0
    assert windows[-1].token_end == total
    assert all(b.token_start - a.token_start == 15 and b.token_start < a.token_end for a, b in pairwise(windows))
    assert agent.predict_long(text, QUESTIONS)["usage"]["windows"] > 1
    assert agent.predict_long("late", QUESTIONS)["usage"]["windows"] == 1
    with pytest.raises(ValueError, match="`stride` must be at most"):
        agent.predict_long(text, QUESTIONS, window=10, stride=11)


def test_temperatures_change_confidences_and_no_choice(tmp_path: Path) -> None:
    for make in (make_encoder, make_causal):
        plain = scores_of(make(), STATES, QUESTIONS)
        flatter = scores_of(make(calibration=Calibration({"choice": 3.0})), STATES, QUESTIONS)
        for before, after in zip(plain, flatter, strict=True):
            assert max(after[0].probabilities) < max(before[0].probabilities)
            assert after[0].probabilities.index(max(after[0].probabilities)) == before[0].probabilities.index(
                max(before[0].probabilities)
            )
            assert after[1:] == before[1:]


@pytest.mark.parametrize("make", [make_encoder, make_causal])
def test_budgets_of_a_call_may_not_go_beyond_the_checkpoints(make: Callable[..., Any]) -> None:
    agent = Agent(make(budget=Budget(400, 300)))
    with pytest.raises(ValueError, match="`max_len` must be from 1 to 400, got 401"):
        agent.predict("a", QUESTIONS, max_len=401)
    with pytest.raises(ValueError, match="`head_max_len` must be from 1 to `max_len` 350, got 351"):
        agent.predict("a", QUESTIONS, max_len=350, head_max_len=351)
