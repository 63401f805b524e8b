"""How long is a record on its way to a probe?"""

from __future__ import annotations

from undercurrent.benchmarks.harness import Row, Runner, at_most, value


def run(runner: Runner) -> list[Row]:
    """From making the record to the probe's first line, medians; the ring's own latency is in `ring`."""
    rows = []
    for name, target, arguments in (
        ("a record per 20 us (worker spins)", None, {"gap_s": 0.00002, "records": 5000}),
        ("a record per ms (worker expects it)", 300.0, {"gap_s": 0.001, "records": 1500}),
        ("a record per 50 ms (worker expects it)", None, {"gap_s": 0.05, "records": 60}),
        ("0.5 to 1.5 ms apart (worker naps)", 300.0, {"gap_s": 0.001, "records": 1500, "unevenness": 0.5}),
        ("25 to 75 ms apart (worker parked)", None, {"gap_s": 0.05, "records": 60, "unevenness": 0.5}),
    ):
        ours = runner.ours("latency", **arguments)
        peer = runner.peer("latency", **arguments)
        rows.append(
            Row(
                f"record to probe, {name}, p50",
                "us",
                ours["p50_us"],
                "" if target is None else f"{target:g}",
                None if target is None else at_most(target, ours["p50_us"]),
                value(peer, "p50_us"),
                details=ours,
            )
        )
    return [*rows, *_of_bounded_points(runner)]


def _of_bounded_points(runner: Runner) -> list[Row]:
    """`route()` of a point that blocks until its signal comes; 0.1.0's has no bound once its breaker has tripped."""
    rows = []
    for name, busy in (("", 0), (", 4 busy processes on 2 CPUs", 4)):
        ours = runner.ours("bounded", busy=busy)
        peer = runner.peer("bounded", busy=busy)
        rows += [
            Row(
                f"bounded inline round trip{name}, p{percent}",
                "us",
                ours[f"p{percent}_us"],
                f"{target:g}",
                at_most(target, ours[f"p{percent}_us"]),
                value(peer, f"p{percent}_us"),
                ours[f"floor_p{percent}_us"],
                "two pipes",
                ours,
            )
            for percent, target in ((50, 60.0), (99, 300.0))
        ]
    return rows
