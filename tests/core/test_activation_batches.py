"""A batch is a sequence of records with columns and one stacked array."""

from __future__ import annotations

import numpy as np
import pytest

from undercurrent.core import ActivationBatch
from undercurrent.errors import ProbingValueError
from undercurrent.spec import ActivationRecord


def make_batch(*tensors: object) -> ActivationBatch:
    return ActivationBatch.from_records(
        [
            ActivationRecord("req-1", "guard", 4 + index, 10 + index, "mlp_out", tensor, index > 0, float(index))
            for index, tensor in enumerate(tensors)
        ]
    )


def test_batch_is_a_sequence_of_records() -> None:
    batch = make_batch([0.0], [1.0], [2.0])

    assert len(batch) == 3
    assert [record.tensor for record in batch] == [[0.0], [1.0], [2.0]]
    assert batch[-1].token_pos == 12
    assert [record.token_pos for record in batch[:2]] == [10, 11]


def test_columns_are_arrays_in_order() -> None:
    batch = make_batch([0.0], [1.0])

    assert batch.positions.tolist() == [10, 11]
    assert batch.layers.tolist() == [4, 5]
    assert batch.is_generated.tolist() == [False, True]
    assert batch.timestamps.tolist() == [0.0, 1.0]
    assert batch.sequences.tolist() == [0, 1]
    assert [batch.positions.dtype, batch.layers.dtype, batch.is_generated.dtype] == ["int64", "int32", "bool"]


def test_sequences_may_have_gaps() -> None:
    records = list(make_batch([0.0], [1.0]))

    assert ActivationBatch.from_records(records, sequences=[3, 7]).sequences.tolist() == [3, 7]
    with pytest.raises(ProbingValueError, match="one entry per record"):
        ActivationBatch.from_records(records, sequences=[3])


def test_stack_has_one_row_per_record_and_keeps_the_dtype() -> None:
    stacked = make_batch(np.ones(3, np.float32), np.zeros(3, np.float32)).stack()

    assert stacked.shape == (2, 3)
    assert stacked.dtype == np.float32


def test_stack_belongs_to_the_caller() -> None:
    tensor = np.ones(3)
    make_batch(tensor).stack()[0, 0] = 9.0

    assert tensor[0] == 1.0


def test_stack_takes_lists_and_bytes() -> None:
    assert make_batch([1.0, 2.0], (3.0, 4.0)).stack().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert make_batch(b"ab", bytearray(b"cd"), memoryview(b"ef")).stack().tolist() == [[97, 98], [99, 100], [101, 102]]


@pytest.mark.parametrize("tensors", [([1.0], [1.0, 2.0]), ()])
def test_stack_refuses_what_has_no_one_shape(tensors: tuple[object, ...]) -> None:
    with pytest.raises(ProbingValueError, match="tensors of one shape"):
        make_batch(*tensors).stack()


def test_stack_gives_bfloat16_tensors_as_float32() -> None:
    torch = pytest.importorskip("torch")
    stacked = make_batch(torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)).stack()

    assert stacked.dtype == np.float32
    assert stacked.tolist() == [[1.5, -2.0]]
