"""The spec format as JSON Schema, for editors and for other languages.

The structs in `schema` give the shape. Added here are the deprecated keys and what one key demands of another. What
JSON Schema cannot say stays with the loader and stands in `BEYOND_JSON_SCHEMA`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from undercurrent.spec.schema import DEPRECATED_KEYS, SpecSchema

__all__ = ["BEYOND_JSON_SCHEMA", "UnsayableRule", "json_schema"]

_ID = "urn:undercurrent:probe-spec:1"
_TITLES = {
    "SpecSchema": "ProbeSpec",
    "PointSchema": "ExtractionPoint",
    "InterventionSchema": "InterventionPolicy",
    "UntilSchema": "Until",
    "SampleSchema": "Sample",
}
_CONTINUOUS = {"properties": {"position": {"type": "string", "pattern": r"^\s*generated\[(?:\*|[0-9]+:[0-9]*)\]\s*$"}}}
_ASYNC = {"required": ["execution_mode"], "properties": {"execution_mode": {"const": "async"}}}
_BLOCKS = {"required": ["mode"], "properties": {"mode": {"const": "block_until_signal"}}}
_WITH_BOUND = {"required": ["timeout_ms"], "properties": {"timeout_ms": {"type": "integer"}}}
_BOUNDED = {"required": ["intervention"], "properties": {"intervention": {"type": "object", **_BLOCKS}}}
_ASYNC_KEYS = ("queue_depth", "overflow_policy", "block_timeout_s", "workers", "batch")
_PROCESS_KEYS = ("probe_timeout_s", "threads", "gpu")
_NEUTRAL = {"workers": 1, "gpu": False, "on_error": "raise"}


@dataclass(frozen=True, slots=True)
class UnsayableRule:
    """One thing the loader refuses and the JSON Schema lets through."""

    says: str
    """The rule, as a sentence without its end."""
    example: str
    """Keys of a point, or a whole text, that break it."""
    message: str
    """Regular expression of what the loader answers."""


BEYOND_JSON_SCHEMA = (
    UnsayableRule("names are unique in a file", "{extraction_points: [{name: a}, {name: a}]}", r"is taken by"),
    UnsayableRule("a slice is not empty", 'position: "generated[5:3]"', r"must be greater than start"),
    UnsayableRule(
        "a prompt position does not lead before the first token", 'position: "prompt[2]-5"', r"leads before the first"
    ),
    UnsayableRule(
        "`batch` fits `queue_depth`",
        "{execution_mode: async, queue_depth: 4, batch: 8}",
        r"the lesser of `queue_depth`",
    ),
    UnsayableRule(
        "a whole number is written without a point or exponent", "layers: 6.0", r", got -?[\d.]+(\.0|e\+\d+)(;|$)"
    ),
    UnsayableRule("a number is one", "{sample: {rate: .nan}}", r", got nan$"),
    UnsayableRule("the keys of `probe_args` are strings", "probe_args: {3: 4}", r"must have strings as keys"),
    UnsayableRule("no key stands twice in a mapping", "{name: a, name: b}", r"duplicate key"),
    UnsayableRule("the text is YAML in UTF-8 of at most 4 Mi characters", "{extraction_points: [", r"invalid YAML"),
)
"""What a document that the schema accepts may still be refused for; all there is, as a property test shows."""


def json_schema() -> dict[str, Any]:
    """The spec format as JSON Schema, draft 2020-12; a new dict at each call."""
    schema = _rename(msgspec.json.schema(SpecSchema))
    definitions = schema.pop("$defs")
    spec = definitions.pop("ProbeSpec")
    _complete_point(definitions["ExtractionPoint"])
    definitions["Until"].update(minProperties=1, maxProperties=1)
    definitions["InterventionPolicy"].update(
        {"if": _BLOCKS, "then": _WITH_BOUND, "else": _nothing_of("timeout_ms", "on_timeout")}
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _ID,
        **spec,
        "title": "Undercurrent probe spec",
        "$defs": definitions,
    }


def _complete_point(point: dict[str, Any]) -> None:
    properties = point["properties"]
    rules: list[dict[str, Any]] = []
    for old, (new, _) in DEPRECATED_KEYS.items():
        properties[old] = {
            **properties[new],
            "deprecated": True,
            "doNotSuggest": True,
            "description": f"Deprecated: use {new}.",
        }
        if new in point["required"]:
            point["required"].remove(new)
            rules.append({"oneOf": [{"required": [new]}, {"required": [old]}]})
        else:
            rules.append({"not": {"required": [new, old]}})
    in_process = {"anyOf": [_ASYNC, _BOUNDED]}
    if_blocks = {"properties": {"overflow_policy": {"enum": ["block", None]}}}
    point["allOf"] = [
        *rules,
        *({"if": _is_set(key), "then": _CONTINUOUS} for key in ("stride", "every_n", "until")),
        *({"if": _is_set(key), "then": _ASYNC} for key in _ASYNC_KEYS),
        *({"if": _is_set(key), "then": in_process} for key in _PROCESS_KEYS),
        {"if": _is_set("on_error"), "then": {"not": in_process}},
        {"if": _is_set("block_timeout_s"), "then": if_blocks},
        {"if": _ASYNC, "then": {"properties": {"probe_kind": {"const": "trajectory"}}, "not": _BOUNDED}},
    ]


def _is_set(key: str) -> dict[str, Any]:
    return {"required": [key], "properties": {key: {"not": {"const": _NEUTRAL.get(key)}}}}


def _nothing_of(*keys: str) -> dict[str, Any]:
    return {"properties": {key: {"const": None} for key in keys}}


def _rename(value: Any) -> Any:
    """The schema with the names of the public types instead of those of the structs behind them."""
    if isinstance(value, dict):
        return {_TITLES.get(key, key): _rename(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rename(item) for item in value]
    if isinstance(value, str):
        prefix = "#/$defs/"
        if value.startswith(prefix):
            return prefix + _TITLES.get(value[len(prefix) :], value[len(prefix) :])
        return _TITLES.get(value, value)
    return value
