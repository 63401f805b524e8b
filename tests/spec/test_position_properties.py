"""Properties of positions: spelling and parsing agree, and ranges of rows agree with asking token by token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undercurrent.errors import PositionSyntaxError
from undercurrent.spec import (
    ExecutionMode,
    ExtractionPoint,
    PositionKind,
    PositionSelector,
    ProbeKind,
    TensorType,
    Until,
    UntilKind,
    parse_position,
)

indices = st.integers(-40, 40)
counts = st.integers(0, 40)
offsets = st.integers(-20, 20)

absolutes = st.builds(PositionSelector, st.just(PositionKind.ABSOLUTE), index=indices)
indexed = st.builds(
    PositionSelector,
    st.sampled_from([PositionKind.PROMPT_INDEX, PositionKind.GENERATED_INDEX]),
    index=indices,
    offset=offsets,
)
wildcards = st.just(PositionSelector(PositionKind.GENERATED_WILDCARD))
slices = st.builds(
    lambda start, length: PositionSelector(
        PositionKind.GENERATED_SLICE, slice_start=start, slice_stop=None if length is None else start + length
    ),
    counts,
    st.none() | st.integers(1, 20),
)
selectors = absolutes | indexed | wildcards | slices
continuous = wildcards | slices


def make_point(selector: PositionSelector, stride: int | None, until: Until | None = None) -> ExtractionPoint:
    return ExtractionPoint(
        name="point",
        layers=(0,),
        tensor_type=TensorType.MLP_OUT,
        position=selector,
        stride=stride,
        until=until,
        probe_type="probe",
        probe_kind=ProbeKind.TRAJECTORY,
        execution_mode=ExecutionMode.INLINE,
        queue_depth=None,
    )


@given(selectors)
def test_parsing_what_a_selector_spells_gives_the_selector(selector: PositionSelector) -> None:
    assert parse_position(selector.to_raw()) == selector


@given(st.text(max_size=20) | st.text("promtgenad[]*:+-0123456789 ", max_size=20))
def test_any_text_is_parsed_or_refused_in_words(text: str) -> None:
    try:
        selector = parse_position(text)
    except PositionSyntaxError as error:
        selector, refusal = None, str(error)
    else:
        refusal = ""

    assert repr(text) in refusal if selector is None else parse_position(selector.to_raw()) == selector


@given(selectors, counts, counts, counts, st.integers(0, 30))
def test_matching_range_agrees_with_asking_for_every_token(
    selector: PositionSelector, first_position: int, row_count: int, prompt_len: int, total: int
) -> None:
    asked = [
        row
        for row in range(row_count)
        if selector.matches(
            first_position + row,
            first_position + row >= prompt_len,
            prompt_len,
            num_generated_total=total,
        )
    ]
    rows = selector.matching_range(first_position, row_count, prompt_len=prompt_len, num_generated_total=total)

    assert list(rows) == asked


@given(continuous, st.none() | st.integers(1, 7), counts, counts, counts)
def test_strided_range_agrees_with_asking_the_point(
    selector: PositionSelector, stride: int | None, first_position: int, row_count: int, prompt_len: int
) -> None:
    point = make_point(selector, stride)
    positions = range(first_position, first_position + row_count)
    asked = [place for place in positions if point.matches(place, place >= prompt_len, prompt_len)]
    rows = point.matching_range(first_position, row_count, prompt_len=prompt_len)

    assert [first_position + row for row in rows] == asked


@given(continuous, st.none() | st.integers(1, 7), counts, st.integers(1, 9), st.lists(st.integers(1, 9), max_size=8))
def test_fixed_count_does_not_depend_on_how_a_generation_is_cut(
    selector: PositionSelector, stride: int | None, prompt_len: int, count: int, block_sizes: list[int]
) -> None:
    point = make_point(selector, stride, Until(UntilKind.FIXED_COUNT, count))
    taken, first_position = [], 0
    for size in [*block_sizes, 200]:
        rows = point.matching_range(first_position, size, prompt_len=prompt_len)
        taken += [first_position + row for row in rows]
        first_position += size
    unbounded = make_point(selector, stride).matching_range(0, first_position, prompt_len=prompt_len)

    assert taken == list(unbounded)[:count]


@given(continuous, st.integers(0, 20), st.integers(0, 20))
def test_stop_token_is_the_last_one_taken(selector: PositionSelector, prompt_len: int, stop_index: int) -> None:
    point = make_point(selector, None, Until(UntilKind.STOP_TOKEN, 7))
    unbounded = point.matching_range(0, 60, prompt_len=prompt_len)
    rows = point.matching_range(0, 60, prompt_len=prompt_len, stop_token_index=stop_index)

    assert list(rows) == [row for row in unbounded if row <= prompt_len + stop_index]
