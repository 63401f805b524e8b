"""`ActivationRecord`: one activation on its way from an engine to a probe."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NoReturn

from undercurrent.errors import ProbingValueError

__all__ = ["ActivationRecord"]

_now = time.time


@dataclass(slots=True, init=False, weakref_slot=True)
class ActivationRecord:
    """One activation of one layer at one position of one request.

    Mutable and owned by whoever holds it: a probe's record is its own copy, unless its class says `reads_in_place`.
    The constructor is written out because one is made per token and point, and the generated one costs twice as much.

    >>> record = ActivationRecord("req-1", "guard", 4, 10, "mlp_out", [0.1, 0.2], True)
    >>> record.layer, record.token_pos
    (4, 10)
    """

    request_id: str
    extraction_point_name: str
    layer: int
    """Index of the decoder layer, from 0."""
    token_pos: int
    """Absolute position in prompt and generated text together, from 0."""
    tensor_type: str
    """The word of a `TensorType`, as a plain string."""
    tensor: Any
    """An array-like: numpy, torch, bytes-like, or numbers in lists and tuples."""
    is_generated: bool
    timestamp: float = 0.0
    """Seconds since the epoch at capture; now, when it is left out."""

    def __init__(
        self,
        request_id: str,
        extraction_point_name: str,
        layer: int,
        token_pos: int,
        tensor_type: str,
        tensor: Any,
        is_generated: bool,
        timestamp: float | None = None,
    ) -> None:
        if not request_id or not extraction_point_name or layer < 0 or token_pos < 0 or tensor is None:
            _refuse(request_id, extraction_point_name, layer, token_pos)
        self.request_id = request_id
        self.extraction_point_name = extraction_point_name
        self.layer = layer
        self.token_pos = token_pos
        self.tensor_type = tensor_type
        self.tensor = tensor
        self.is_generated = is_generated
        self.timestamp = _now() if timestamp is None else timestamp

    def metadata(self) -> dict[str, Any]:
        """Everything but the tensor, by field name."""
        return {
            "request_id": self.request_id,
            "extraction_point_name": self.extraction_point_name,
            "layer": self.layer,
            "token_pos": self.token_pos,
            "tensor_type": self.tensor_type,
            "is_generated": self.is_generated,
            "timestamp": self.timestamp,
        }


def _refuse(request_id: str, extraction_point_name: str, layer: int, token_pos: int) -> NoReturn:
    if not request_id:
        raise ProbingValueError(f"`ActivationRecord.request_id` must be a non-empty string, got {request_id!r}")
    if not extraction_point_name:
        raise ProbingValueError(
            f"`ActivationRecord.extraction_point_name` must be a non-empty string, got {extraction_point_name!r}"
        )
    if layer < 0:
        raise ProbingValueError(f"`ActivationRecord.layer` must be >= 0, got {layer!r}")
    if token_pos < 0:
        raise ProbingValueError(f"`ActivationRecord.token_pos` must be >= 0, got {token_pos!r}")
    raise ProbingValueError("`ActivationRecord.tensor` must not be None; pass the captured activation")
