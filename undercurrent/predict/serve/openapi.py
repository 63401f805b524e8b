"""The OpenAPI document of the app, made from the types of its bodies."""

from __future__ import annotations

from typing import Any

import msgspec

from undercurrent.predict.serve.bodies import BatchBody, PredictBody
from undercurrent.predict.serve.limits import ServeLimits
from undercurrent.predict.serve.problems import PROBLEM_TYPE

__all__ = ["document"]

_REFS = "#/components/schemas/{name}"
_NOT_BLANK = {"type": "string", "pattern": r"\S"}
_INSTRUCTIONS = {
    "description": "What the model answers; what is no text is shown to it as JSON.",
    "anyOf": [
        _NOT_BLANK,
        {"type": "number"},
        {"type": "object", "minProperties": 1},
        {"type": "array", "minItems": 1},
    ],
}
_ORDER = {
    "description": "A permutation of the options, in which they are shown.",
    "type": ["array", "null"],
    "items": {"type": "integer", "minimum": 0},
}


_NO_ORDER = {"type": ["array", "null"], "maxItems": 0}


def document(limits: ServeLimits, version: str) -> dict[str, Any]:
    """The document, for OpenAPI 3.1."""
    _, schemas = msgspec.json.schema_components([PredictBody, BatchBody], ref_template=_REFS)
    for name in ("PredictBody", "BatchItem"):
        schemas[name]["properties"]["questions"] = {"$ref": "#/components/schemas/Questions"}
    schemas["BatchBody"]["properties"]["requests"]["maxItems"] = limits.batch_size_max
    schemas |= {
        "Questions": {
            "type": "object",
            "description": "Definitions by question id.",
            "propertyNames": _NOT_BLANK,
            "maxProperties": limits.question_count_max,
            "additionalProperties": {"oneOf": [_choice(), _score(), _noul(), _PROBE]},
        },
        "Result": _result(),
        "Problem": _problem(),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Undercurrent decisions",
            "version": version,
            "description": "A text, a document or a conversation in; answers to typed questions out.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": {
            "/v1/predict": _post("predict", "Answers questions about one state.", "PredictBody", _ref("Result")),
            "/v1/predict_batch": _post(
                "predict_batch",
                "Answers many requests; results are in their order.",
                "BatchBody",
                {
                    "type": "object",
                    "required": ["results"],
                    "properties": {"results": {"type": "array", "items": _ref("Result")}},
                },
            ),
            "/healthz": _get("healthz", "Whether the process lives.", _STATUS),
            "/readyz": _get("readyz", "Whether it takes requests now.", _STATUS, refuses=True),
            "/metrics": _get("metrics", "What it has done, for Prometheus.", None),
            "/openapi.json": _get("openapi", "This document.", {"type": "object"}),
        },
        "components": {"schemas": schemas},
    }


_STATUS = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}


_PROBE = {
    "type": "object",
    "title": "probe",
    "description": "Answered by the probe that is attached to the checkpoint under that name.",
    "required": ["type", "point"],
    "properties": {"type": {"const": "probe"}, "point": {"type": "string", "minLength": 1}, "option_order": _NO_ORDER},
}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": _REFS.format(name=name)}


def _choice() -> dict[str, Any]:
    label = {"type": ["string", "number", "boolean"]}
    criteria = {
        "description": "Labels, or descriptions by label.",
        "oneOf": [
            {"type": "object", "minProperties": 1},
            {"type": "array", "minItems": 1, "uniqueItems": True, "items": label},
        ],
    }
    return _question("choice", {"criteria": criteria}, required=["criteria"])


def _score() -> dict[str, Any]:
    level = {"not": {"type": "null"}}
    criteria = {"description": "Levels, the lowest first.", "type": "array", "minItems": 1, "items": level}
    return _question("score", {"criteria": criteria}, required=["criteria"])


def _noul() -> dict[str, Any]:
    sides = {
        "description": "What yes and no mean.",
        "type": ["object", "null"],
        "propertyNames": {"pattern": "^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$"},
    }
    labels = {
        "description": "What yes and no are called: two different texts.",
        "type": "object",
        "properties": {"true": _NOT_BLANK, "false": _NOT_BLANK},
        "required": ["true", "false"],
        "additionalProperties": False,
    }
    return _question("noul", {"criteria": sides, "labels": labels}, required=[])


def _question(kind: str, properties: dict[str, Any], *, required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "title": kind,
        "required": ["type", "instructions", *required],
        "properties": {"type": {"const": kind}, "instructions": _INSTRUCTIONS, "option_order": _ORDER, **properties},
    }


def _result() -> dict[str, Any]:
    answer = {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"type": "string"},
            "choice": {"type": ["string", "number", "boolean"]},
            "score": {"type": "number"},
            "noul": {"type": "number", "minimum": 0, "maximum": 1},
            "confidence": {"type": "number"},
            "answer_confidence": {"type": "number"},
            "probabilities": {"type": "object"},
            "abstention": {"type": "string"},
        },
    }
    return {
        "type": "object",
        "required": ["answers"],
        "properties": {
            "model": {"type": "string"},
            "answers": {"type": "object", "additionalProperties": answer},
            "usage": {"type": "object"},
            "routing": {"type": "object"},
            "probes": {"type": "object", "description": "What attached probes said, by point."},
        },
    }


def _problem() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "Problem details, RFC 9457.",
        "required": ["title", "status", "code", "detail"],
        "properties": {
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string"},
            "detail": {"type": "string"},
            "correlation_id": {"type": "string"},
            "failed": {"type": "array", "items": {"type": "integer"}},
            "not_started": {"type": "array", "items": {"type": "integer"}},
        },
    }


def _post(name: str, summary: str, body: str, answer: dict[str, Any]) -> dict[str, Any]:
    retry = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    problems = {
        "400": "The body is no JSON.",
        "408": "The body did not come in time.",
        "413": "The body, or the batch, is too large.",
        "415": "The body is said to be something else than JSON.",
        "422": "The request cannot be answered; `detail` says what to change.",
        "500": "Something failed here; `correlation_id` finds it in the log.",
        "504": "No answer was found in time.",
    }
    operation = {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
        "responses": {
            "200": {"description": "Answered.", "content": {"application/json": {"schema": answer}}},
            **{status: _refusal(text) for status, text in problems.items()},
            "503": {**_refusal("Busy, stopping, or without the checkpoint that was asked for."), "headers": retry},
        },
    }
    return {"post": operation}


def _get(name: str, summary: str, answer: dict[str, Any] | None, *, refuses: bool = False) -> dict[str, Any]:
    kind = "text/plain" if answer is None else "application/json"
    content = {kind: {"schema": answer or {"type": "string"}}}
    responses: dict[str, Any] = {"200": {"description": "Here it is.", "content": content}}
    if refuses:
        responses["503"] = {"description": "Not now.", "content": content}
    return {"get": {"operationId": name, "summary": summary, "responses": responses}}


def _refusal(text: str) -> dict[str, Any]:
    return {"description": text, "content": {PROBLEM_TYPE: {"schema": _ref("Problem")}}}
