"""The checkpoints `Router()` knows, on letters with known answers: calibration, order bias, abstention.

Run `make test-engines ARGS="-k checkpoint_weights -s"` to read the figures of docs/checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from checkpoint_items import Item, choice_items, noul_items, score_items

from undercurrent.engines.checkpoint import (
    ENGLISH_CALIBRATION,
    MULTILINGUAL_CALIBRATION,
    load_english,
    load_multilingual,
)
from undercurrent.engines.checkpoint_calibration import (
    Calibration,
    expected_calibration_error,
    fit_temperature,
    tempered,
)
from undercurrent.predict import Agent, CallOptions
from undercurrent.predict.questions import parse_questions

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

_BATCH = 32
_LANGUAGES = ("en", "de", "fr")


@pytest.fixture(scope="module")
def english() -> Any:
    return load_english(calibration=None)


@pytest.fixture(scope="module")
def multilingual() -> Any:
    return load_multilingual(calibration=None)


def probabilities(checkpoint: Any, items: Sequence[Item], **question: Any) -> list[list[float]]:
    """What a checkpoint gives each option of each item; `question` changes the items' question."""
    parsed = parse_questions({"q": {**items[0].question, **question}})
    found: list[list[float]] = []
    for at in range(0, len(items), _BATCH):
        encoded = [checkpoint.encode(item.state, parsed, CallOptions()) for item in items[at : at + _BATCH]]
        output = checkpoint.forward(checkpoint.collate(encoded))
        found += [list(row[0].probabilities) for row in checkpoint.decode(output, encoded, parsed, CallOptions())]
    return found


def best(row: Sequence[float]) -> int:
    """The option that would be answered."""
    return max(range(len(row)), key=row.__getitem__)


def accuracy(rows: Sequence[Sequence[float]], items: Sequence[Item]) -> float:
    """The share of right answers."""
    return sum(best(row) == item.answer for row, item in zip(rows, items, strict=True)) / len(items)


def calibration_error(rows: Sequence[Sequence[float]], items: Sequence[Item]) -> float:
    """The expected calibration error of the answers."""
    is_right = [best(row) == item.answer for row, item in zip(rows, items, strict=True)]
    return expected_calibration_error([max(row) for row in rows], is_right)


class Measured(NamedTuple):
    """What a temperature that was fitted to some items is, and what the one that is kept does to others."""

    fitted: float
    accuracy: float
    error_before: float
    error_after: float


def measure(
    name: str, checkpoint: Any, kept: Calibration, fitting: Sequence[Item], held_out: Sequence[Item]
) -> Measured:
    """Fits to some items, looks at the others, and prints what it finds."""
    kind = held_out[0].question["type"]
    fitted = fit_temperature(probabilities(checkpoint, fitting), [item.answer for item in fitting])
    rows = probabilities(checkpoint, held_out)
    used = kept.temperature(kind, len(rows[0]))
    before, by_fitted, after = (
        calibration_error([tempered(row, temperature) for row in rows], held_out) for temperature in (1.0, fitted, used)
    )
    right = accuracy(rows, held_out)
    print(
        f"{name} {kind}: {len(held_out)} held-out items, accuracy {right:.3f}; temperature {fitted:.3f} fits"
        f" {len(fitting)} others; calibration error {before:.3f} before, {by_fitted:.3f} with it, {after:.3f} with"
        f" {used:g}, which is kept"
    )
    return Measured(fitted, right, before, after)


def test_temperatures_calibrate_the_english_checkpoint_on_templates_it_has_not_seen(english: Any) -> None:
    asked = 0
    for make, accuracy_min in ((choice_items, 0.8), (noul_items, 0.85), (score_items, 0.75)):
        held_out = make(is_fitting=False)
        asked += len(held_out)
        found = measure("english", english, ENGLISH_CALIBRATION, make(is_fitting=True), held_out)
        assert ENGLISH_CALIBRATION.temperatures[held_out[0].question["type"]] == pytest.approx(found.fitted, rel=0.1)
        assert found.accuracy > accuracy_min
        assert found.error_after < found.error_before
    assert asked >= 300


def test_the_order_of_options_is_nothing_to_the_english_checkpoint(english: Any) -> None:
    items = choice_items(is_fitting=False, things=1)
    assert probabilities(english, items, option_order=[3, 1, 0, 2]) == probabilities(english, items)


def test_abstention_leaves_answers_that_are_more_often_right(english: Any) -> None:
    items = choice_items(is_fitting=False)
    results = Agent(load_english()).predict_batch(
        [item.state for item in items], {"q": items[0].question}, batch_size=_BATCH, min_confidence=0.8
    )
    answers = [result["answers"]["q"] for result in results]
    labels = list(items[0].question["criteria"])
    is_right = [answer["choice"] == labels[item.answer] for answer, item in zip(answers, items, strict=True)]
    passed = [right for right, answer in zip(is_right, answers, strict=True) if answer["abstention"] == "passed"]
    everything, answered = sum(is_right) / len(is_right), sum(passed) / len(passed)
    print(
        f"english abstention below 0.8: {len(passed)} of {len(items)} answered, {answered:.3f} of them right instead of"
        f" {everything:.3f}"
    )
    assert answered > everything + 0.03
    assert len(passed) > len(items) / 3


def test_the_multilingual_checkpoint_is_as_sure_as_it_is_right_without_a_temperature(multilingual: Any) -> None:
    fitting = choice_items(is_fitting=True, languages=_LANGUAGES, things=1)
    held_out = [
        *choice_items(is_fitting=False, things=6),
        *choice_items(is_fitting=False, languages=("de", "fr"), things=8),
    ]
    assert len(held_out) >= 300
    found = measure("multilingual", multilingual, MULTILINGUAL_CALIBRATION, fitting, held_out)
    # Four topics: chance is a quarter.
    assert found.accuracy > 0.3
    assert found.error_after < 0.15


def test_permutations_reduce_the_order_bias_of_the_multilingual_checkpoint(multilingual: Any) -> None:
    items = choice_items(is_fitting=False, things=1)[::2]
    averaging = load_multilingual(calibration=None, permutations=4)
    straight, reversed_order = [0, 1, 2, 3], [3, 2, 1, 0]
    biases = []
    for checkpoint in (multilingual, averaging):
        one, other = (probabilities(checkpoint, items, option_order=order) for order in (straight, reversed_order))
        moved = [max(abs(a - b) for a, b in zip(*rows, strict=True)) for rows in zip(one, other, strict=True)]
        flips = sum(best(a) != best(b) for a, b in zip(one, other, strict=True))
        biases.append(sum(moved) / len(moved))
        print(
            f"multilingual, permutations={1 if checkpoint is multilingual else 4}: {flips} of {len(items)} answers turn"
            f" when the list is reversed, the probability that changes most moves by {biases[-1]:.3f}"
        )
    assert biases[1] < biases[0]
