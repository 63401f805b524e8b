"""Points and probes that the tests of engines share."""

from __future__ import annotations

from typing import Any

from undercurrent.core import Probe, ProbeAction, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.router import Router
from undercurrent.spec import ActivationRecord, ExecutionMode, ExtractionPoint, ProbeKind, TensorType, parse_position


class Keep(Probe):
    """Its verdict is every record it saw: (layer, position, is_generated, tensor)."""

    probe_kind = "trajectory"

    def on_start(self, request_ctx: RequestContext) -> None:
        self.seen: list[tuple[int, int, bool, Any]] = []

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        self.seen.append((record.layer, record.token_pos, record.is_generated, record.tensor))
        return None

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, self.seen)


class AbortAfter(Keep):
    """Aborts with its `count`-th record."""

    def __init__(self, *, count: int) -> None:
        self._count = count

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        super().on_activation(record)
        return ProbeSignal(ProbeAction.ABORT, metadata={"why": "enough"}) if len(self.seen) >= self._count else None


class Broken(Keep):
    """Raises at its `count`-th record."""

    def __init__(self, *, count: int = 1) -> None:
        self._count = count

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        super().on_activation(record)
        if len(self.seen) >= self._count:
            raise RuntimeError("this probe is broken")
        return None


class Scribble(Keep):
    """Overwrites every tensor it is given."""

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        record.tensor[:] = 1e6
        return super().on_activation(record)


PROBES = {
    "keep": ProbeFactory(Keep),
    "abort": ProbeFactory(AbortAfter),
    "broken": ProbeFactory(Broken),
    "scribble": ProbeFactory(Scribble),
}


def make_point(
    name: str = "point",
    *,
    layers: tuple[int, ...] = (1,),
    tensor_type: TensorType = TensorType.RESIDUAL_STREAM,
    position: str | int = "generated[*]",
    probe_type: str = "keep",
    **fields: Any,
) -> ExtractionPoint:
    """An inline point; `fields` are further fields of `ExtractionPoint`."""
    return ExtractionPoint(
        **{
            "name": name,
            "layers": layers,
            "tensor_type": tensor_type,
            "position": parse_position(position),
            "stride": None,
            "until": None,
            "probe_type": probe_type,
            "probe_kind": ProbeKind.TRAJECTORY,
            "execution_mode": ExecutionMode.INLINE,
            "queue_depth": None,
            **fields,
        }
    )


def make_router() -> Router:
    """A router that knows the probes of this module."""
    return Router(PROBES)


def positions(generation: Any, name: str = "point") -> list[int]:
    """The positions of the records that a `Keep` saw, in order."""
    return [position for _, position, _, _ in generation.results[name].verdict]
