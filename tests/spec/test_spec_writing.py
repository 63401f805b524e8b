"""Specs are written back as they would be read: canonical keys, no defaults, nothing lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercurrent.errors import ProbingTypeError, SpecValidationError
from undercurrent.spec import (
    ProbeSpec,
    TensorType,
    extraction_point_to_dict,
    find_point_problems,
    parse_dict,
    parse_yaml,
    probe_spec_to_dict,
    to_yaml,
)

POINT = {
    "name": "guard",
    "layers": 4,
    "tensor_type": "mlp_out",
    "position": "generated[*]",
    "probe_type": "running_mean",
    "probe_kind": "trajectory",
}


def load_one(**changes: Any) -> ProbeSpec:
    return parse_dict({"extraction_points": [{**POINT, **changes}]})


def test_defaults_are_left_out_and_the_mode_is_written() -> None:
    assert extraction_point_to_dict(load_one().get("guard")) == {**POINT, "execution_mode": "inline"}


def test_document_carries_the_version() -> None:
    assert probe_spec_to_dict(load_one())["version"] == "1"


def test_several_layers_stay_a_list() -> None:
    assert extraction_point_to_dict(load_one(layers=[1, 2]).get("guard"))["layers"] == [1, 2]


def test_yaml_begins_with_the_version_and_keeps_the_order_of_keys() -> None:
    text = to_yaml(load_one(stride=2, probe_args={"threshold": 0.5}))

    assert text.startswith("version: '1'\nextraction_points:\n- name: guard\n  layers: 4\n")
    assert text.endswith("  stride: 2\n  probe_args:\n    threshold: 0.5\n")


def test_value_that_yaml_cannot_hold_is_refused() -> None:
    with pytest.raises(ProbingTypeError, match="plain values"):
        to_yaml(load_one(probe_args={"model": object()}))


numbers = st.integers(-1000, 1000) | st.floats(allow_nan=False, allow_infinity=False, width=32)
arguments = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=10),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=5,
)
seconds = st.floats(0.001, 1000)
untils = (
    st.just("generation_end")
    | st.builds(lambda count: {"fixed_count": count}, st.integers(1, 99))
    | st.builds(lambda token: {"stop_token": token}, st.integers(0, 99) | st.text(min_size=1, max_size=5))
)
asynchronous = st.fixed_dictionaries(
    {"execution_mode": st.just("async")},
    optional={
        "queue_depth": st.integers(16, 4096),
        "overflow_policy": st.just("block"),
        "block_timeout_s": seconds,
        "probe_timeout_s": seconds,
        "workers": st.integers(1, 8),
        "batch": st.integers(1, 16),
        "threads": st.integers(1, 8),
        "gpu": st.booleans(),
    },
)
inline = st.fixed_dictionaries({}, optional={"on_error": st.sampled_from(["raise", "abort", "continue"])})
bounded = st.fixed_dictionaries(
    {
        "intervention": st.fixed_dictionaries(
            {"mode": st.just("block_until_signal"), "timeout_ms": st.integers(1, 1000)},
            optional={"on_timeout": st.sampled_from(["continue", "abort"])},
        )
    }
)
common = st.fixed_dictionaries(
    {
        "layers": st.integers(0, 99) | st.lists(st.integers(0, 99), min_size=1, max_size=4),
        "tensor_type": st.sampled_from([kind.value for kind in TensorType]),
        "position": st.sampled_from(["generated[*]", "generated[2:]", "generated[2:9]"]),
    },
    optional={
        "stride": st.integers(1, 99),
        "until": untils,
        "probe_args": st.dictionaries(st.text(max_size=5), arguments, max_size=3),
        "sample": st.fixed_dictionaries(
            {"rate": st.floats(0.01, 1)}, optional={"by": st.sampled_from(["request", "record"])}
        ),
    },
)


@given(common, asynchronous | inline | bounded)
def test_written_spec_reads_as_the_same_spec(fields: dict[str, Any], mode: dict[str, Any]) -> None:
    spec = load_one(**fields, **mode)

    assert parse_dict(probe_spec_to_dict(spec)) == spec
    assert parse_yaml(to_yaml(spec)) == spec
    assert all(find_point_problems(point) == () for point in spec)


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.floats()))
def test_numbers_keep_their_value_through_yaml(values: dict[str, float]) -> None:
    back = parse_yaml(to_yaml(load_one(probe_args=values))).get("guard").probe_args

    for name, value in values.items():
        assert back[name] == value or (math.isnan(back[name]) and math.isnan(value))


def test_written_point_with_a_problem_is_refused_when_it_is_read() -> None:
    document = probe_spec_to_dict(load_one())
    document["extraction_points"][0]["stride"] = 0

    with pytest.raises(SpecValidationError, match="stride"):
        parse_dict(document)
