"""The pieces that the tests of published calls share, written as users of 0.1.0 wrote them."""

from __future__ import annotations

from typing import Any

from undercurrent import (
    ActivationRecord,
    ExecutionMode,
    ExtractionPoint,
    Probe,
    ProbeAction,
    ProbeKind,
    ProbeResult,
    ProbeSignal,
    RequestContext,
    TensorType,
    parse_position,
)

TEXT = """
version: "1"
extraction_points:
  - name: guard
    layers: 4
    tensor_type: mlp_out
    position: "generated[*]"
    probe_type: running_mean
    probe_kind: trajectory
    stride: 2
    probe_args: {threshold: 0.5}
  - name: gate
    layers: [4, 8]
    tensor_type: residual_stream
    position: "prompt[-1]"
    probe_type: classifier
    probe_kind: single_shot
    intervention: {mode: block_until_signal, timeout_ms: 50, on_timeout: abort}
  - name: monitor
    layers: 4
    tensor_type: mlp_out
    position: "generated[2:5]"
    probe_type: running_mean
    probe_kind: trajectory
    execution_mode: async
    queue_depth: 16
"""


def make_point(**fields: Any) -> ExtractionPoint:
    given: dict[str, Any] = {
        "name": "guard",
        "layers": (4,),
        "tensor_type": TensorType.MLP_OUT,
        "position": parse_position("generated[*]"),
        "stride": None,
        "until": None,
        "probe_type": "running_mean",
        "probe_kind": ProbeKind.TRAJECTORY,
        "execution_mode": ExecutionMode.INLINE,
        "queue_depth": None,
    }
    return ExtractionPoint(**{**given, **fields})


def make_record(values: Any, name: str = "guard", position: int = 10) -> ActivationRecord:
    return ActivationRecord("req-1", name, 4, position, "mlp_out", values, True)


class Counting(Probe):
    """Counts, and flags every second record."""

    probe_kind = "trajectory"

    def __init__(self, every: int = 2) -> None:
        super().__init__()
        self.every = every

    def on_start(self, request_ctx: RequestContext) -> None:
        self.count = 0

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        self.count += 1
        return ProbeSignal(ProbeAction.FLAG, {"n": self.count}) if self.count % self.every == 0 else None

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, self.count)
