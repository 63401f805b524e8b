"""The order of options: nothing to an encoder, something to a causal model, less when it is averaged over."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tiny_checkpoints import QUESTIONS, STATES, make_causal, make_encoder, scores_of

from undercurrent.predict.questions import parse_questions

CRITERIA = QUESTIONS["topic"]["criteria"]
ORDERS = ([0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0])


def by_order(checkpoint: Any) -> list[list[float]]:
    """Probabilities of the topics of the first state, as asked in each order; each row in the order of the keys."""
    return [
        list(
            scores_of(checkpoint, STATES[:1], {"topic": {**QUESTIONS["topic"], "option_order": order}})[0][
                0
            ].probabilities
        )
        for order in ORDERS
    ]


def spread(rows: list[list[float]]) -> float:
    """The most that one option's probability differs between orders."""
    return max(max(column) - min(column) for column in zip(*rows, strict=True))


def test_an_encoder_does_not_see_the_order() -> None:
    assert spread(by_order(make_encoder())) == 0.0


def test_an_encoder_follows_criteria_that_are_listed_otherwise() -> None:
    turned = {**QUESTIONS["topic"], "criteria": dict(reversed(CRITERIA.items()))}
    straight = scores_of(make_encoder(), STATES, QUESTIONS)
    reverse = scores_of(make_encoder(), STATES, {"topic": turned})
    for one, other in zip(straight, reverse, strict=True):
        assert one[0].probabilities == pytest.approx(other[0].probabilities[::-1], abs=1e-6)


def test_permutations_take_the_order_out_of_a_causal_model() -> None:
    alone, averaged = by_order(make_causal()), by_order(make_causal(permutations=3))
    assert spread(alone) > 0.01
    # Three rotations of three options: a start at another of them asks the same prompts.
    assert averaged[0] == pytest.approx(averaged[1], abs=1e-5)
    assert averaged[0] == pytest.approx(averaged[2], abs=1e-5)
    assert spread(averaged) < spread(alone)


def test_permutations_beyond_the_options_ask_no_more() -> None:
    assert by_order(make_causal(permutations=9)) == by_order(make_causal(permutations=3))
    with pytest.raises(ValueError, match="`permutations` must be an int >= 1, got 0"):
        make_causal(permutations=0)


def test_labels_that_begin_alike_share_a_row_and_score_as_alone() -> None:
    checkpoint = make_causal()
    parsed = parse_questions({"q": {"type": "choice", "instructions": "what", "criteria": ["aa", "ab", "b"]}})
    from undercurrent.predict import CallOptions

    encoded = checkpoint.encode("a state", parsed, CallOptions())
    rows = checkpoint.collate([encoded])
    assert [len(row.labels) for row in rows] == [2, 1]
    assert encoded.input_tokens == sum(len(row.token_ids) for row in rows)
    together = checkpoint.forward(rows)
    apart = [checkpoint.forward([_only(row, index)]) for row in rows for index, _ in row.labels]
    assert together.tolist() == pytest.approx([float(one[0]) for one in apart], abs=1e-5)


def _only(row: Any, index: int) -> Any:
    """A row that scores one of its labels."""
    import msgspec

    return msgspec.structs.replace(row, labels=tuple((0, label) for at, label in row.labels if at == index))


def test_a_causal_model_answers_evenly_when_the_state_says_nothing() -> None:
    scores = scores_of(make_causal(permutations=2), ["N/A"], QUESTIONS)[0]
    for one in scores:
        assert all(a == pytest.approx(b, abs=1e-5) for a, b in pairwise(one.probabilities))


def test_a_bare_statement_is_measured_against_being_unrelated() -> None:
    bare = scores_of(make_encoder(), ["late"], {"q": QUESTIONS["late"]})[0][0]
    described = {**QUESTIONS["late"], "criteria": {"false": "the parcel is here", "true": "it is late"}}
    named = {**QUESTIONS["late"], "labels": {"false": "calm", "true": "late"}}
    found = [scores_of(make_encoder(), ["late"], {"q": question})[0][0] for question in (described, named)]
    assert len({tuple(one.probabilities) for one in (bare, *found)}) == 3
    itself = scores_of(make_encoder(), ["the parcel is late"], {"q": QUESTIONS["late"]})[0][0]
    assert itself.probabilities[1] > 0.99
