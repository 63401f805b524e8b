"""What every place runs: a probe class of the running program itself, one request, one line of JSON, no guard.

The tests run this text as a script, from stdin, in notebook cells and in forked processes.
"""

import json
import os

from undercurrent.core import Probe, ProbeFactory, ProbeResult
from undercurrent.router import Router
from undercurrent.spec import ActivationRecord, load_spec

SCALE = 2.0


class ScaledSum(Probe):
    """Adds up what it is given; its verdict says in which process."""

    probe_kind = "trajectory"

    def on_start(self, request_ctx):
        self.total = 0.0

    def on_activation(self, record):
        self.total += SCALE * sum(record.tensor)

    def on_end(self, request_ctx):
        return ProbeResult(self.request_id, self.extraction_point_name, {"total": self.total, "pid": os.getpid()})


spec = load_spec("""
extraction_points:
  - {name: monitor, layers: 4, tensor_type: mlp_out, position: "generated[*]", probe_type: scaled_sum,
     probe_kind: trajectory, execution_mode: async}
""")

router = Router(probe_registry={"scaled_sum": ProbeFactory(ScaledSum)})
with router.request(spec) as request:
    for position in range(10):
        request.route(ActivationRecord(request.request_id, "monitor", 4, position, "mlp_out", [1.0, 2.0], True))
result = request.results["monitor"]
answer = {"verdict": result.verdict, "coverage": result.metadata["coverage"], "pid": os.getpid()}
if os.environ.get("PLACE_SHUTDOWN", "yes") == "yes":
    router.shutdown()
print(json.dumps(answer), flush=True)
