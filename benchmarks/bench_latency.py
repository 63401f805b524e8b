"""How long is a record on its way to a probe?"""

from __future__ import annotations

from undercurrent.benchmarks.harness import Row, Runner, at_most, value


def run(runner: Runner) -> list[Row]:
    """From making the record to the probe's first line, medians; the ring's own latency is in `ring`."""
    rows = []
    for name, gap_s, records, target in (
        ("spinning (a record per 20 us)", 0.00002, 5000, None),
        ("napping (a record per ms)", 0.001, 1500, 300.0),
        ("parked (a record per 50 ms)", 0.05, 60, None),
    ):
        ours = runner.ours("latency", gap_s=gap_s, records=records)
        peer = runner.peer("latency", gap_s=gap_s, records=records)
        rows.append(
            Row(
                f"record to probe, worker {name}, p50",
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
