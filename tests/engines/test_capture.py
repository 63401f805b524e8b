"""Positions to rows: the arrays against the definition of a position, token by token."""

from __future__ import annotations

import numpy as np
import pytest
from engine_points import make_point
from hypothesis import given
from hypothesis import strategies as st

from undercurrent.engines import BatchCapture, EngineLimitationError, SequenceShape
from undercurrent.engines.capture import progression
from undercurrent.spec import ExtractionPoint, Sample, SampleBy, TensorType, Until, UntilKind

_POSITIONS = st.one_of(
    st.integers(0, 30).map(str),
    st.integers(-12, 12).map("prompt[{}]".format),
    st.integers(0, 12).map("generated[{}]".format),
    st.tuples(st.integers(-5, 5), st.integers(-4, 4)).map(lambda pair: f"prompt[{pair[0]}]{pair[1]:+d}"),
    st.just("generated[*]"),
    st.integers(0, 8).map("generated[{}:]".format),
    st.tuples(st.integers(0, 8), st.integers(1, 9)).map(lambda pair: f"generated[{pair[0]}:{pair[0] + pair[1]}]"),
)


@st.composite
def _points(draw: st.DrawFn) -> ExtractionPoint:
    position = draw(_POSITIONS)
    is_continuous = ":" in position or "*" in position
    until = draw(st.sampled_from([None, Until(UntilKind.FIXED_COUNT, 3)])) if is_continuous else None
    stride = draw(st.sampled_from([None, 2, 3])) if is_continuous else None
    return make_point(draw(st.uuids()).hex, position=position, stride=stride, until=until)


@st.composite
def _batches(draw: st.DrawFn) -> list[SequenceShape]:
    prompt_lens = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    columns = max(prompt_lens)
    return [
        SequenceShape(f"r{index}", length, columns - length, tuple(draw(st.lists(_points(), max_size=3))))
        for index, length in enumerate(prompt_lens)
    ]


def _expected(sequences: list[SequenceShape], columns: range) -> set[tuple[str, str, int]]:
    """What the definition of a position says, one token and point at a time."""
    expected = set()
    for sequence in sequences:
        for point in sequence.points:
            matching = [
                position
                for position in range(columns.stop)
                if point.matches(position, position >= sequence.prompt_len, sequence.prompt_len)
            ]
            rule = point.until_rule
            if rule.kind is UntilKind.FIXED_COUNT and point.position.is_continuous:
                matching = matching[: rule.value]
            wanted = [position for position in matching if position + sequence.padding in columns]
            expected.update((sequence.request_id, point.name, position) for position in wanted)
    return expected


def _selected(capture: BatchCapture, first: int, count: int) -> list[tuple[str, str, int]]:
    rows = capture.select(first, count)
    assert np.array_equal(
        rows.columns, rows.positions + np.array([capture.sequences[index].padding for index in rows.sequences], int)
    )
    return [(*capture.names[pair], int(position)) for pair, position in zip(rows.pairs, rows.positions, strict=True)]


@given(sequences=_batches(), cuts=st.lists(st.integers(1, 7), max_size=8))
def test_every_way_of_cutting_a_generation_selects_the_rows_of_the_definition(
    sequences: list[SequenceShape], cuts: list[int]
) -> None:
    capture = BatchCapture(sequences)
    found: list[tuple[str, str, int]] = []
    column = 0
    for count in [*cuts, 30]:
        found += _selected(capture, column, count)
        column += count

    assert len(found) == len(set(found))
    assert set(found) == _expected(sequences, range(column))


@given(sequences=_batches())
def test_exhausted_means_that_nothing_is_selected_any_more(sequences: list[SequenceShape]) -> None:
    capture = BatchCapture(sequences)
    for column in range(40):
        if capture.is_exhausted(column):
            assert not _expected(sequences, range(column, 200))


def test_progression_of_a_position_that_cannot_be_is_empty() -> None:
    start, stop, _ = progression(make_point(position="prompt[-9]"), 4)
    assert start >= stop


def test_stop_token_ends_capture_behind_the_first_of_them() -> None:
    point = make_point(until=Until(UntilKind.STOP_TOKEN, 7))
    capture = BatchCapture([SequenceShape("a", 2, 0, (point,)), SequenceShape("b", 2, 0, (point,))])
    found = _selected(capture, 0, 2)
    for step, tokens in enumerate([(5, 7), (7, 7), (7, 5), (5, 5)]):
        capture.observe(2 + step, np.array(tokens)[:, None])
        found += _selected(capture, 2 + step, 1)
    assert [(request, position) for request, _, position in found] == [("a", 2), ("b", 2), ("a", 3)]


def test_stop_token_may_be_the_text_of_one_token() -> None:
    point = make_point(until=Until(UntilKind.STOP_TOKEN, "\n"))
    capture = BatchCapture([SequenceShape("a", 1, 0, (point,))], token_id_of={"\n": 3}.get)
    capture.observe(1, np.array([[3]]))
    assert _selected(capture, 1, 3) == [("a", "point", 1)]


def test_stop_text_of_several_tokens_is_refused() -> None:
    point = make_point(until=Until(UntilKind.STOP_TOKEN, "END OF TEXT"))
    with pytest.raises(EngineLimitationError, match="not one token"):
        BatchCapture([SequenceShape("a", 1, 0, (point,))], token_id_of=lambda _text: None)


def test_position_from_the_end_of_a_generation_is_refused() -> None:
    with pytest.raises(EngineLimitationError, match="not known while it runs"):
        BatchCapture([SequenceShape("a", 1, 0, (make_point(position="generated[-1]"),))])


def test_an_ended_sequence_selects_nothing_more_and_its_neighbour_does() -> None:
    capture = BatchCapture([SequenceShape("a", 3, 1, (make_point(),)), SequenceShape("b", 4, 0, (make_point(),))])
    assert len(_selected(capture, 4, 1)) == 2
    capture.end_sequence(0, column=5)
    assert [request for request, _, _ in _selected(capture, 5, 1)] == ["b"]


def test_sampling_by_request_takes_all_rows_of_a_request_or_none() -> None:
    point = make_point(sample=Sample(0.5))
    counts = {
        f"r{index}": len(BatchCapture([SequenceShape(f"r{index}", 1, 0, (point,))]).select(1, 10))
        for index in range(60)
    }
    assert set(counts.values()) == {0, 10}
    assert {name for name, count in counts.items() if count} == {
        name for name in counts if point.sample.keeps_request(name)
    }


def test_sampling_by_record_takes_the_positions_that_the_router_would_keep() -> None:
    point = make_point(sample=Sample(0.5, SampleBy.RECORD))
    rows = BatchCapture([SequenceShape("r", 1, 0, (point,))]).select(1, 200)
    assert rows.positions.tolist() == [
        position for position in range(1, 201) if point.sample.keeps_record("r", position)
    ]
    assert 60 < len(rows) < 140


def test_tensors_are_in_the_order_in_which_a_model_computes_them() -> None:
    points = (
        make_point("a", layers=(2, 0)),
        make_point("b", layers=(0,), tensor_type=TensorType.MLP_OUT),
        make_point("c", layers=(4,), tensor_type=TensorType.FINAL_NORM),
        make_point("d", layers=(0,), tensor_type=TensorType.ATTN_OUT),
    )
    capture = BatchCapture([SequenceShape("r", 1, 0, points)])
    assert list(capture.keys) == [
        (0, TensorType.ATTN_OUT),
        (0, TensorType.MLP_OUT),
        (0, TensorType.RESIDUAL_STREAM),
        (2, TensorType.RESIDUAL_STREAM),
        (4, TensorType.FINAL_NORM),
    ]
    rows = capture.select(1, 1)
    assert [capture.names[pair][1] for pair in capture.rows_of(rows, (0, TensorType.MLP_OUT)).pairs] == ["b"]


def test_a_batch_without_points_selects_nothing() -> None:
    capture = BatchCapture([SequenceShape("a", 3), SequenceShape("b", 2, 1)])
    assert len(capture.select(0, 3)) == 0
    assert len(capture.select(3, 1)) == 0
    assert capture.is_exhausted(0)
    assert list(capture.keys) == []


def test_refused_drafts_and_what_lies_behind_a_stop_token_are_not_accepted() -> None:
    point = make_point(until=Until(UntilKind.STOP_TOKEN, 9))
    capture = BatchCapture([SequenceShape("a", 2, 0, (point,))])
    rows = capture.select(2, 5)
    assert capture.accept(rows, column_count=5).tolist() == [True, True, True, False, False]
    capture.observe(2, np.array([[1, 9, 1]]))
    assert capture.accept(rows, column_count=5).tolist() == [True, True, False, False, False]
