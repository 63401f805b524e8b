"""What do publishing and the way through the ring cost, from Python to Python?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from undercurrent.benchmarks.harness import SCENARIOS, Row, Runner, at_least, at_most

_PUBLISH_US = {"numpy": (0.3, 0.5), "bf16": (0.35, 0.55)}
_LATENCY_US = {"spinning": 3.0, "napping": 300.0, "parked": 30.0}


def run(runner: Runner) -> list[Row]:
    """8 KiB records, a live consumer on another CPU; the published package has no ring to compare with."""
    measured = runner.script(SCENARIOS.with_name("uc_bench_ring.py"), "20000" if runner.is_quick else "100000")
    rows: list[Row] = []
    for name, (near_us, far_us) in _PUBLISH_US.items():
        if name in measured:
            rows += _of_source(name, measured[name], near_us, far_us, measured["copy_us"])
    for state, limit_us in _LATENCY_US.items():
        latency = measured["numpy"]["latency_us"].get(state)
        what = f"ring, one way, consumer {state}, p50"
        row = Row(what, "us", latency, f"{limit_us:g}", at_most(limit_us, latency))
        is_parked = state == "parked"
        rows.append(replace(row, floor=measured["pipe_us"], floor_name="a pipe, same pace") if is_parked else row)
    return rows


def _of_source(name: str, of: dict[str, Any], near_us: float, far_us: float, copy_us: float) -> list[Row]:
    publish_us, rate = of["publish_us"], of["records_per_s"]
    # The target depends on where the host put the two CPUs, which a guest cannot choose: the far one is judged.
    target = f"{near_us:g} near / {far_us:g} far"
    return [
        Row(
            f"ring publish 8 KiB {name}, live consumer",
            "us",
            publish_us,
            target,
            at_most(far_us, publish_us),
            floor=copy_us,
            floor_name="numpy copy",
        ),
        Row(f"ring records/s {name}, block", "1/s", rate, ">= 1.5 M", at_least(1.5e6, rate)),
    ]
