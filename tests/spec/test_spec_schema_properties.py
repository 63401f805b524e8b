"""Whatever the JSON Schema accepts loads, and whatever loads it accepts, but for the rules it cannot say."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from undercurrent.errors import SpecValidationError
from undercurrent.spec import json_schema, parse_dict, parse_yaml, probe_spec_to_dict, to_yaml
from undercurrent.spec.json_schema import BEYOND_JSON_SCHEMA, UnsayableRule

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
UNSAYABLE = [re.compile(rule.message) for rule in BEYOND_JSON_SCHEMA]
PROPERTIES = SCHEMA["$defs"]["ExtractionPoint"]["properties"]
POINT = {
    "name": "guard",
    "layers": 4,
    "tensor_type": "mlp_out",
    "position": "generated[*]",
    "probe_type": "running_mean",
    "probe_kind": "trajectory",
}

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def issues_of(document: Any) -> tuple[str, ...]:
    """What the loader has against a document; nothing if it loads."""
    try:
        parse_dict(document)
    except SpecValidationError as error:
        return error.issues
    return ()


def is_unsayable(issue: str) -> bool:
    return any(pattern.search(issue) for pattern in UNSAYABLE)


def agree(document: Any) -> None:
    """The schema accepts what loads; what it accepts and does not load breaks rules it cannot say, and no others."""
    issues = issues_of(document)
    if VALIDATOR.is_valid(document):
        assert all(is_unsayable(issue) for issue in issues), issues
    else:
        assert issues, [error.message for error in VALIDATOR.iter_errors(document)]


# ---- documents made from the schema ---------------------------------------------------------------------------------


def from_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of one schema, as far as its own keywords say; what it demands across keys is left to be filtered."""
    if "$ref" in schema:
        return st.deferred(lambda: from_schema(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]))
    if "anyOf" in schema:
        return st.one_of([from_schema(option) for option in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object":
            return objects(schema)
        case "array":
            return st.lists(from_schema(schema["items"]), min_size=schema.get("minItems", 0), max_size=3)
        case "integer":
            return st.integers(schema.get("minimum", -(10**20)), schema.get("maximum", 10**20))
        case "number":
            low, high = schema.get("exclusiveMinimum", schema.get("minimum")), schema.get("maximum")
            return st.floats(low, high, exclude_min="exclusiveMinimum" in schema)
        case "string":
            if "pattern" in schema:
                return st.from_regex(schema["pattern"])
            return st.text(min_size=schema.get("minLength", 0), max_size=8)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return plain


def objects(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the required keys and few of the others: many at once would break a demand across keys each time."""
    properties = schema.get("properties", {})
    if not properties:
        return st.dictionaries(st.text(max_size=5), plain, max_size=2)
    required = set(schema.get("required", ()))
    optional = sorted(set(properties) - required)

    def choose(keys: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({key: from_schema(properties[key]) for key in (*sorted(required), *keys)})

    return st.lists(st.sampled_from(optional), unique=True, max_size=4).flatmap(choose) if optional else choose([])


def points_from_schema() -> st.SearchStrategy[dict[str, Any]]:
    """Points the schema accepts, whole."""

    def complete(drawn: dict[str, Any]) -> dict[str, Any]:
        old = {"layers": "layer", "tensor_type": "tensor"}
        return {key: value for key, value in POINT.items() if old.get(key) not in drawn} | drawn

    modes = st.sampled_from([{}, {"execution_mode": "async"}, {"execution_mode": "inline"}])
    return st.tuples(objects(SCHEMA["$defs"]["ExtractionPoint"]), modes).map(
        lambda pair: complete({**pair[0], **pair[1]})
    )


@settings(max_examples=200, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(points_from_schema(), st.sampled_from([{}, {"version": 1}, {"version": "1"}]))
def test_what_the_schema_accepts_loads(point: dict[str, Any], version: dict[str, Any]) -> None:
    document = {**version, "extraction_points": [point]}
    assume(VALIDATOR.is_valid(document))

    assert all(is_unsayable(issue) for issue in issues_of(document))


# ---- documents that are nearly right --------------------------------------------------------------------------------

near_values: dict[str, list[Any]] = {
    "name": ["guard", "", " ", 3, None, "\n"],
    "layers": [0, -1, True, "6", 6.0, [], [1, 1], [True], [2.5], [2**31], {}, None],
    "layer": [3, [1], ...],
    "tensor": ["kv", "kvv", ...],
    "every_n": [1, 0, None, ...],
    "tensor_type": ["mlp_out", "MLP_OUT", "kv", "", 1],
    "position": [0, -1, True, 5.0, "5", "-0", "-7", " generated[*] ", "generated[*]+1", "generated[3:3]",
                 "generated[-2]", "prompt[*]", "prompt[0]-1",
                  "prompt[-1]+1", "Generated[0]", "generated[:3]", "generated[2:]", 10**19,
                 "generated[٣]", "5+1", "", None],
    "stride": [1, 0, -1, True, 2.0, None, "2"],
    "until": ["generation_end", "fixed_count", {"fixed_count": 1}, {"stop_token": ""}, {"stop_token": 0}, {}, None, 5,
              {"fixed_count": 2, "stop_token": "a"}, {"count": 1}],
    "probe_type": ["p", "", "\t", 1],
    "probe_kind": ["trajectory", "single_shot", "both"],
    "execution_mode": ["inline", "async", "Async", None],
    "queue_depth": [1, 0, 2**20, 2**20 + 1, None, True],
    "intervention": [{}, None, {"mode": "reject", "timeout_ms": None}, {"mode": "block_until_signal"}, "reject",
                     {"mode": "block_until_signal", "timeout_ms": 5}, {"timeout_ms": 5}, {"on_timeout": "abort"},
                     {"mode": "block_until_signal", "timeout_ms": None},
                     {"mode": "block_until_signal", "timeout_ms": 0}, {"mode": "reject", "on_timeout": None}],
    "probe_args": [{}, {"a": [1]}, None, []],
    "overflow_policy": ["block", "drop_oldest", "drop_newest", "drop", None],
    "block_timeout_s": [1, 0.5, 0, -1, 86_401, None, "1", True],
    "probe_timeout_s": [1, 0, None, float("nan"), float("inf")],
    "workers": [1, 2, 0, 1024, 1025, None],
    "batch": [1, 16, 17, 0, None, 8.0],
    "on_error": ["raise", "abort", "continue", "ignore", None],
    "threads": [1, 0, None, True],
    "gpu": [True, False, 0, None],
    "sample": [{"rate": 0.5}, {"rate": 1}, {"rate": 0}, {"rate": 1, "by": "record"}, {"by": "record"}, {}, None, 0.5],
    "bogus": [1, ...],
}  # fmt: skip


def entries(changes_max: int = 4) -> st.SearchStrategy[dict[str, Any]]:
    """Points of near values in a few keys; `...` leaves a key out."""
    keys = st.lists(st.sampled_from(sorted(near_values)), unique=True, max_size=changes_max)
    changes = keys.flatmap(lambda chosen: st.fixed_dictionaries({k: st.sampled_from(near_values[k]) for k in chosen}))
    missing = st.sampled_from([None, None, None, *POINT])
    return st.tuples(changes, missing).map(
        lambda pair: {k: v for k, v in {**POINT, **pair[0]}.items() if v is not ... and (k != pair[1] or k in pair[0])}
    )


def test_near_values_cover_every_key() -> None:
    assert set(near_values) == set(PROPERTIES) | {"bogus"}


@settings(max_examples=400)
@given(entries())
def test_schema_and_loader_agree_on_points_that_are_nearly_right(entry: dict[str, Any]) -> None:
    agree({"extraction_points": [entry]})


@settings(max_examples=300)
@given(st.sampled_from(sorted(near_values)), plain)
def test_schema_and_loader_agree_on_any_value_of_a_key(key: str, value: Any) -> None:
    agree({"extraction_points": [{**POINT, key: value}]})


@settings(max_examples=200)
@given(st.sampled_from(["version", "extraction_points", "points"]), plain)
def test_schema_and_loader_agree_on_any_document(key: str, value: Any) -> None:
    agree({"extraction_points": [], key: value})


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
@given(entries(2))
def test_what_loads_is_written_as_what_the_schema_accepts_and_reads_the_same(entry: dict[str, Any]) -> None:
    document = {"extraction_points": [entry]}
    assume(not issues_of(document))
    spec = parse_dict(document)

    written = probe_spec_to_dict(spec)
    assert VALIDATOR.is_valid(written)
    assert parse_dict(written) == spec
    assert parse_yaml(to_yaml(spec)) == spec


# ---- the rules the schema cannot say --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", BEYOND_JSON_SCHEMA, ids=lambda rule: rule.says)
def test_rule_the_schema_cannot_say_is_kept_by_the_loader(rule: UnsayableRule) -> None:
    text = rule.example
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError:
        given = None
    if given is None or "duplicate" in rule.message:
        with pytest.raises(SpecValidationError, match=rule.message):
            parse_yaml(text)
        return
    points = given.get("extraction_points", [given])
    document = {"extraction_points": [{**POINT, **point} for point in points]}
    issues = issues_of(document)
    assert len(issues) == 1
    assert re.search(rule.message, issues[0])
    assert VALIDATOR.is_valid(document)
