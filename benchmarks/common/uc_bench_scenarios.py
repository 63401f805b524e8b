"""What is measured, written for the public API alone; run as a program by either package's interpreter.

    python -P uc_bench_scenarios.py NAME '{"argument": value}'

prints one JSON object on its last line. One process per scenario: nothing of one measurement is left in the next.
"""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import uc_bench_bounded as bounded
import uc_bench_hot as hot
import uc_bench_life as life

SCENARIOS = {
    function.__name__: function
    for function in (
        hot.route_inline,
        hot.route_async,
        hot.route_rows,
        hot.gil,
        hot.throughput,
        hot.latency,
        bounded.bounded,
        life.burst,
        life.registration,
        life.round_trip,
        life.backlog,
        life.live,
        life.cold,
        life.recovery,
        life.memory,
        life.torch_worker,
        life.file_sink,
    )
}

if __name__ == "__main__":
    outcome = SCENARIOS[sys.argv[1]](**json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))
    print(json.dumps(outcome))
