"""The JSON Schema says what the loader says, as far as JSON Schema can."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from undercurrent.errors import SpecValidationError
from undercurrent.spec import json_schema, parse_dict

POINT = {
    "name": "guard",
    "layers": 4,
    "tensor_type": "mlp_out",
    "position": "generated[*]",
    "probe_type": "running_mean",
    "probe_kind": "trajectory",
}
BOUNDED = {"mode": "block_until_signal", "timeout_ms": 5}


def accepts(document: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(json_schema()).is_valid(document)


def loads(document: dict[str, Any]) -> bool:
    try:
        parse_dict(document)
    except SpecValidationError:
        return False
    return True


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_schema_speaks_of_public_types_and_describes_every_key() -> None:
    schema = json_schema()

    assert {"ExtractionPoint", "InterventionPolicy", "Until", "Sample", "TensorType"} <= set(schema["$defs"])
    assert not [name for name in schema["$defs"] if name.endswith("Schema")]
    properties = schema["$defs"]["ExtractionPoint"]["properties"]
    assert [name for name, value in properties.items() if not value.get("description")] == []


def test_deprecated_keys_are_accepted_and_not_suggested() -> None:
    properties = json_schema()["$defs"]["ExtractionPoint"]["properties"]

    assert all(properties[name]["doNotSuggest"] for name in ("layer", "tensor", "every_n"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layers": [1, 2]},
        {"layers": []},
        {"layers": True},
        {"layers": -1},
        {"layers": ...},
        {"layers": ..., "layer": 3},
        {"layer": 3},
        {"tensor_type": ..., "tensor": "kv"},
        {"tensor_type": "nope"},
        {"position": 3},
        {"position": "prompt[-1]+1"},
        {"position": "prompt[*]"},
        {"position": "generated[*]+1"},
        {"position": "generated[٣]"},
        {"position": True},
        {"position": 3, "stride": 2},
        {"position": 3, "every_n": 2},
        {"position": "prompt[0]", "until": "generation_end"},
        {"stride": 2},
        {"stride": None},
        {"stride": 0},
        {"stride": 2, "every_n": 2},
        {"until": "generation_end"},
        {"until": "fixed_count"},
        {"until": {"fixed_count": 3}},
        {"until": {"stop_token": "x"}},
        {"until": {"fixed_count": 3, "stop_token": 2}},
        {"until": {}},
        {"queue_depth": 4},
        {"queue_depth": 4, "execution_mode": "async"},
        {"queue_depth": None},
        {"execution_mode": "async", "probe_kind": "single_shot"},
        {"execution_mode": "async", "intervention": {"mode": "reject"}},
        {"execution_mode": "async", "intervention": BOUNDED},
        {"intervention": BOUNDED},
        {"intervention": {"mode": "block_until_signal"}},
        {"intervention": {"timeout_ms": 5}},
        {"intervention": {"on_timeout": "abort"}},
        {"intervention": {}},
        {"intervention": None},
        {"workers": 1},
        {"workers": 2},
        {"workers": 2, "execution_mode": "async"},
        {"batch": 4},
        {"batch": 4, "execution_mode": "async"},
        {"batch": 17, "execution_mode": "async"},
        {"block_timeout_s": 1, "execution_mode": "async"},
        {"block_timeout_s": 1, "execution_mode": "async", "overflow_policy": "block"},
        {"block_timeout_s": 1, "execution_mode": "async", "overflow_policy": "drop_oldest"},
        {"threads": 2},
        {"threads": 2, "intervention": BOUNDED},
        {"gpu": False},
        {"gpu": True},
        {"gpu": True, "execution_mode": "async"},
        {"on_error": "abort"},
        {"on_error": "raise", "execution_mode": "async"},
        {"on_error": "abort", "execution_mode": "async"},
        {"on_error": "abort", "intervention": BOUNDED},
        {"sample": {"rate": 0.5}},
        {"sample": {"rate": 0}},
        {"sample": {"by": "record"}},
        {"probe_args": {"threshold": 0.5}},
        {"probe_args": None},
        {"bogus": 1},
    ],
)
def test_schema_and_loader_agree(changes: dict[str, Any]) -> None:
    document = {"extraction_points": [{k: v for k, v in {**POINT, **changes}.items() if v is not ...}]}

    assert accepts(document) == loads(document)


@pytest.mark.parametrize("version", ["1", 1, "2", 2, None])
def test_schema_and_loader_agree_on_versions(version: object) -> None:
    document = {"version": version, "extraction_points": []}

    assert accepts(document) == loads(document)


def test_caller_may_change_the_schema_it_got() -> None:
    json_schema()["$defs"].clear()

    assert json_schema()["$defs"]
