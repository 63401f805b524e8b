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
    return rows
