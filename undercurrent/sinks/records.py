"""The records of the sinks: one JSON object per signal and per result."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from msgspec import UNSET

from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal
from undercurrent.sinks.jsonable import as_plain, to_jsonable

__all__ = [
    "SCHEMA_VERSION",
    "ResultRecord",
    "SignalRecord",
    "encode_line",
    "encode_result_line",
    "encode_signal_line",
    "result_fields",
    "signal_fields",
]

SCHEMA_VERSION: Final = 2
"""Counts up when a key changes its meaning. 0.1.0 wrote no version; that is 1."""


class SignalRecord(msgspec.Struct, frozen=True, gc=False):
    """A signal with what is known about the activation it is about; what is not known is None and is not written."""

    request_id: str
    extraction_point_name: str
    signal: ProbeSignal
    sequence: int | None = None
    """Number of the activation within its binding; a gap between two is what was dropped, lost or not signalled."""
    layer: int | None = None
    position: int | None = None
    """Absolute token position."""
    model: str | None = None


class ResultRecord(msgspec.Struct, frozen=True, gc=False):
    """A result with what is known about its request; coverage is read from `result.metadata["coverage"]`."""

    request_id: str
    extraction_point_name: str
    result: ProbeResult
    model: str | None = None


class _SignalPayload(msgspec.Struct, gc=False):
    """The part of a signal's line that comes from the probe; written in the order of the fields."""

    action: Any
    metadata: Any
    confidence: Any
    timestamp: Any


class _Line(msgspec.Struct, gc=False):
    """A signal's line; a field that is UNSET is not written."""

    kind: str
    schema_version: int
    request_id: Any
    extraction_point_name: Any
    timestamp: float
    sequence: Any
    layer: Any
    position: Any
    model: Any
    payload: Any


_encode = msgspec.json.Encoder().encode
_now = time.time


def encode_signal_line(
    request_id: str,
    extraction_point_name: str,
    signal: ProbeSignal,
    sequence: int | None = None,
    layer: int | None = None,
    position: int | None = None,
    model: str | None = None,
) -> bytes:
    """Returns the record of `signal` as one line of JSON, newline included; never raises for what the signal holds."""
    action, confidence, timestamp = signal.action, signal.confidence, signal.timestamp
    line = _Line(
        "signal",
        SCHEMA_VERSION,
        request_id,
        extraction_point_name,
        _now(),
        UNSET if sequence is None else sequence,
        UNSET if layer is None else layer,
        UNSET if position is None else position,
        UNSET if model is None else model,
        _SignalPayload(
            action if type(action) is ProbeAction else as_plain(action),
            as_plain(signal.metadata),
            confidence if confidence is None else as_plain(confidence),
            as_plain(timestamp),
        ),
    )
    try:
        return _encode(line) + b"\n"
    except Exception:
        # An id or text with lone surrogates, which the look at the types does not see.
        return encode_line(signal_fields(request_id, extraction_point_name, signal, sequence, layer, position, model))


def encode_result_line(
    request_id: str, extraction_point_name: str, result: ProbeResult, model: str | None = None
) -> bytes:
    """Returns the record of `result` as one line of JSON, newline included; never raises for what the result holds."""
    return encode_line(result_fields(request_id, extraction_point_name, result, model))


def encode_line(fields: dict[str, Any]) -> bytes:
    """Returns a record that `to_jsonable` made as one line of JSON, newline included."""
    return _encode(fields) + b"\n"


def signal_fields(
    request_id: str,
    extraction_point_name: str,
    signal: ProbeSignal,
    sequence: int | None = None,
    layer: int | None = None,
    position: int | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """Returns the record of `signal` as dicts and lists that belong to the caller."""
    known = {"sequence": sequence, "layer": layer, "position": position, "model": model}
    return _fields("signal", request_id, extraction_point_name, known, _signal_payload(signal))


def result_fields(
    request_id: str, extraction_point_name: str, result: ProbeResult, model: str | None = None
) -> dict[str, Any]:
    """Returns the record of `result` as dicts and lists that belong to the caller."""
    metadata = getattr(result, "metadata", None)
    coverage = metadata.get("coverage") if isinstance(metadata, dict) else None
    return _fields(
        "result", request_id, extraction_point_name, {"model": model, "coverage": coverage}, _result_payload(result)
    )


def _fields(
    kind: str, request_id: str, extraction_point_name: str, known: dict[str, Any], payload: Any
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kind": kind,
        "schema_version": SCHEMA_VERSION,
        "request_id": to_jsonable(request_id),
        "extraction_point_name": to_jsonable(extraction_point_name),
        "timestamp": _now(),
    }
    fields.update((name, to_jsonable(value)) for name, value in known.items() if value is not None)
    fields["payload"] = payload
    return fields


def _signal_payload(signal: Any) -> Any:
    if not isinstance(signal, ProbeSignal):
        return to_jsonable(signal)
    return {
        "action": to_jsonable(signal.action),
        "metadata": to_jsonable(signal.metadata),
        "confidence": to_jsonable(signal.confidence),
        "timestamp": to_jsonable(signal.timestamp),
    }


def _result_payload(result: Any) -> Any:
    # A probe's `on_end` may return anything; what is no result is written as it is.
    if not isinstance(result, ProbeResult):
        return to_jsonable(result)
    history = result.signal_history
    is_list = isinstance(history, (list, tuple))
    return {
        "request_id": to_jsonable(result.request_id),
        "extraction_point_name": to_jsonable(result.extraction_point_name),
        "verdict": to_jsonable(result.verdict),
        "signal_history": [_signal_payload(signal) for signal in history] if is_list else to_jsonable(history),
        "metadata": to_jsonable(result.metadata),
    }
