"""The spec format as JSON Schema, for editors and for other languages.

The structs in `schema` give the shape. Added here are the deprecated keys and what one key demands of another. What
JSON Schema cannot say stays with the loader: unique names, slices that are not empty, a batch that fits its ring.
"""

from __future__ import annotations

from typing import Any

import msgspec

from undercurrent.spec.schema import DEPRECATED_KEYS, SpecSchema

__all__ = ["json_schema"]

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
_BOUNDED = {"required": ["intervention"], "properties": {"intervention": {"type": "object", **_BLOCKS}}}
_ASYNC_KEYS = ("queue_depth", "overflow_policy", "block_timeout_s", "workers", "batch")
_PROCESS_KEYS = ("probe_timeout_s", "threads", "gpu")
_NEUTRAL = {"workers": 1, "gpu": False, "on_error": "raise"}


def json_schema() -> dict[str, Any]:
    """The spec format as JSON Schema, draft 2020-12; a new dict at each call."""
    schema = _rename(msgspec.json.schema(SpecSchema))
    definitions = schema.pop("$defs")
    spec = definitions.pop("ProbeSpec")
    _complete_point(definitions["ExtractionPoint"])
    definitions["Until"].update(minProperties=1, maxProperties=1)
    definitions["InterventionPolicy"].update(
        {"if": _BLOCKS, "then": {"required": ["timeout_ms"]}, "else": _nothing_of("timeout_ms", "on_timeout")}
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
