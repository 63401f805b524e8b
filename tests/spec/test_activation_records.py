"""A record takes what an engine captured, refuses what cannot be routed, and travels."""

from __future__ import annotations

import pickle
import time
import weakref

import numpy as np
import pytest

from undercurrent.errors import ProbingValueError
from undercurrent.spec import ActivationRecord


def test_record_takes_its_fields_by_position() -> None:
    record = ActivationRecord("req-1", "guard", 4, 10, "mlp_out", [0.1, 0.2], True)

    assert (record.request_id, record.extraction_point_name) == ("req-1", "guard")
    assert (record.layer, record.token_pos, record.tensor_type) == (4, 10, "mlp_out")
    assert record.tensor == [0.1, 0.2]
    assert record.is_generated is True


def test_record_is_stamped_when_it_is_made() -> None:
    before = time.time()
    record = ActivationRecord("req-1", "guard", 4, 10, "mlp_out", [0.1], True)

    assert before <= record.timestamp <= time.time()


def test_record_keeps_the_timestamp_it_is_given() -> None:
    assert ActivationRecord("req-1", "guard", 4, 10, "mlp_out", [0.1], True, timestamp=12.5).timestamp == 12.5


def test_metadata_is_everything_but_the_tensor() -> None:
    record = ActivationRecord("req-1", "guard", 4, 10, "mlp_out", [0.1], False, 12.5)

    assert record.metadata() == {
        "request_id": "req-1",
        "extraction_point_name": "guard",
        "layer": 4,
        "token_pos": 10,
        "tensor_type": "mlp_out",
        "is_generated": False,
        "timestamp": 12.5,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [("request_id", ""), ("extraction_point_name", ""), ("layer", -1), ("token_pos", -1), ("tensor", None)],
)
def test_record_refuses_what_cannot_be_routed(field: str, value: object) -> None:
    fields = {
        "request_id": "req-1",
        "extraction_point_name": "guard",
        "layer": 4,
        "token_pos": 10,
        "tensor_type": "mlp_out",
        "tensor": [0.1],
        "is_generated": True,
    }
    with pytest.raises(ProbingValueError, match=field):
        ActivationRecord(**{**fields, field: value})


def test_record_may_hold_an_array_whose_truth_is_undefined() -> None:
    record = ActivationRecord("req-1", "guard", 0, 0, "mlp_out", np.zeros((2, 2)), True)

    assert record.tensor.shape == (2, 2)


def test_record_can_be_changed_by_its_owner() -> None:
    record = ActivationRecord("req-1", "guard", 4, 10, "mlp_out", [0.1], True)
    record.tensor = [0.2]

    assert record.tensor == [0.2]


def test_record_survives_pickling() -> None:
    record = ActivationRecord("req-1", "guard", 4, 10, "mlp_out", [0.1], True)

    assert pickle.loads(pickle.dumps(record)) == record


def test_record_can_be_referred_to_weakly() -> None:
    record = ActivationRecord("req-1", "guard", 4, 10, "mlp_out", [0.1], True)

    assert weakref.ref(record)() is record
