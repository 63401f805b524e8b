"""Positions: what the grammar takes and refuses, and which tokens a position selects."""

from __future__ import annotations

import pytest

from undercurrent.errors import PositionSyntaxError
from undercurrent.spec import PositionKind, PositionSelector, parse_position


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (5, PositionKind.ABSOLUTE),
        ("5", PositionKind.ABSOLUTE),
        (" 5 ", PositionKind.ABSOLUTE),
        ("prompt[0]", PositionKind.PROMPT_INDEX),
        ("prompt[-1]+1", PositionKind.PROMPT_INDEX),
        ("generated[-2]-3", PositionKind.GENERATED_INDEX),
        ("generated[*]", PositionKind.GENERATED_WILDCARD),
        ("generated[2:]", PositionKind.GENERATED_SLICE),
        ("generated[2:5]", PositionKind.GENERATED_SLICE),
    ],
)
def test_grammar_takes_its_forms(raw: int | str, kind: PositionKind) -> None:
    selector = parse_position(raw)

    assert selector.kind is kind
    assert selector.to_raw() == raw


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "+3",
        "5+1",
        "5.0",
        "Generated[4]",
        "prompt[*]",
        "prompt[1:2]",
        "generated[:4]",
        "generated[-3:]",
        "generated[4] + 1",
        "generated[ 4 ]",
        "generated[+1]",
        "generated[]",
        "generated[٣]",
        "generated[²]",
        "generated[4]\n+1",
        "generated[1]x",
        "prompt[1]generated[1]",
        "generated[9999999999999999999]",
        "9999999999999999999",
    ],
)
def test_grammar_refuses_everything_else(raw: str) -> None:
    with pytest.raises(PositionSyntaxError, match="expected an absolute integer index"):
        parse_position(raw)


@pytest.mark.parametrize("raw", [True, False, 5.0, None, [5], b"5"])
def test_only_ints_and_strings_are_positions(raw: object) -> None:
    with pytest.raises(PositionSyntaxError, match="invalid position"):
        parse_position(raw)  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", ["generated[*]+1", "generated[2:]-1", "generated[2:5]+0"])
def test_offset_behind_a_continuous_form_is_refused(raw: str) -> None:
    with pytest.raises(PositionSyntaxError, match="offset goes with one position"):
        parse_position(raw)


@pytest.mark.parametrize("raw", ["generated[3:3]", "generated[3:2]"])
def test_empty_slice_is_refused_with_a_slice_that_works(raw: str) -> None:
    with pytest.raises(PositionSyntaxError, match=r"generated\[3:4\]"):
        parse_position(raw)


@pytest.mark.parametrize(
    ("raw", "absolute"),
    [
        (5, 5),
        ("prompt[2]", 2),
        ("prompt[-1]", 9),
        ("prompt[-1]+1", 10),
        ("prompt[12]", 12),
        ("generated[0]", 10),
        ("generated[3]", 13),
        ("generated[0]-1", 9),
    ],
)
def test_point_form_resolves_to_an_absolute_position(raw: int | str, absolute: int) -> None:
    assert parse_position(raw).resolve_absolute(prompt_len=10) == absolute


def test_end_of_the_generation_resolves_once_its_length_is_known() -> None:
    selector = parse_position("generated[-1]")

    assert selector.needs_generation_length
    assert selector.resolve_absolute(10) is None
    assert selector.resolve_absolute(10, num_generated_total=5) == 14


def test_end_of_the_prompt_needs_no_generation_length() -> None:
    assert not parse_position("prompt[-1]").needs_generation_length


def test_continuous_form_resolves_to_no_single_position() -> None:
    assert parse_position("generated[*]").resolve_absolute(10) is None


def test_wildcard_matches_generated_tokens_only() -> None:
    selector = parse_position("generated[*]")

    assert selector.matches(12, True, prompt_len=10)
    assert not selector.matches(2, False, prompt_len=10)


def test_slice_counts_from_the_first_generated_token() -> None:
    selector = parse_position("generated[1:3]")

    assert [index for index in range(20) if selector.matches(index, index >= 10, prompt_len=10)] == [11, 12]


def test_generated_index_wins_over_the_absolute_one_where_it_is_given() -> None:
    selector = parse_position("generated[1:3]")

    assert selector.matches(99, True, prompt_len=10, generated_index=2)
    assert not selector.matches(11, True, prompt_len=10, generated_index=0)


def test_negative_absolute_index_never_matches() -> None:
    selector = parse_position(-1)

    assert not any(selector.matches(index, False, prompt_len=10) for index in range(-2, 12))


def test_offset_may_cross_the_border_into_the_prompt() -> None:
    selector = parse_position("generated[0]-1")

    assert selector.matches(9, False, prompt_len=10)


def test_selector_built_by_hand_spells_itself() -> None:
    selector = PositionSelector(PositionKind.GENERATED_SLICE, slice_start=2, slice_stop=9)

    assert selector.to_raw() == "generated[2:9]"


def test_spelling_does_not_count_for_equality() -> None:
    assert parse_position("5") == parse_position(5)
    assert hash(parse_position("prompt[07]")) == hash(parse_position("prompt[7]"))
