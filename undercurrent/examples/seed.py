"""One probe twice, inline and async: the inline one stops the loop, the async one only reports.

Run it: `python -m undercurrent.examples.seed`. It is a plain script without a `__main__` guard, and needs none: worker
processes never run the main module.
"""

from undercurrent.core import ProbeAction, ProbeFactory, RequestContext
from undercurrent.core.examples import TrajectoryScoreProbe
from undercurrent.router import Router
from undercurrent.spec import ActivationRecord, ExecutionMode, ExtractionPoint, ProbeKind, TensorType, parse_position


def make_point(name, mode, queue_depth=None):
    return ExtractionPoint(
        name=name,
        layers=(4,),
        tensor_type=TensorType.MLP_OUT,
        position=parse_position("generated[*]"),
        stride=None,
        until=None,
        probe_type="running_mean",
        probe_kind=ProbeKind.TRAJECTORY,
        execution_mode=mode,
        queue_depth=queue_depth,
    )


class ListSink:
    """Collects everything async probes report."""

    def __init__(self):
        self.signals, self.results = [], []

    def write_signal(self, request_id, extraction_point_name, signal):
        self.signals.append((extraction_point_name, signal.action))

    def write_result(self, request_id, extraction_point_name, result):
        self.results.append((extraction_point_name, result.verdict))


points = [make_point("guard", ExecutionMode.INLINE), make_point("monitor", ExecutionMode.ASYNC, queue_depth=16)]
router = Router(probe_registry={"running_mean": ProbeFactory(TrajectoryScoreProbe, {"threshold": 0.5})})
sink = ListSink()
router.attach_log_sink(sink)
router.register_request("req-1", points, RequestContext("req-1", {}, None))

stopped_at = None
for step, values in enumerate([[0.1, 0.2], [0.4, 0.6], [0.9, 1.0], [0.9, 0.9]]):
    for point in points:
        record = ActivationRecord("req-1", point.name, 4, 10 + step, "mlp_out", values, True)
        signal = router.route(record)
        if point.name == "monitor":
            assert signal is None  # async: never a signal back to the caller
        elif signal is not None and signal.action is ProbeAction.ABORT:
            stopped_at = step  # inline: an adapter would stop generating now
    if stopped_at is not None:
        break

results = router.end_request("req-1")  # drains the async queue first
print("aborted at step", stopped_at)  # aborted at step 2
print(results["monitor"].verdict)  # the async probe saw the same 3 activations
print(sink.signals)  # [('monitor', <ProbeAction.ABORT: 'abort'>)] -- logged, not acted on
router.shutdown()
