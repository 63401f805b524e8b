"""What does `route()` cost the engine's thread?"""

from __future__ import annotations

from undercurrent.benchmarks.harness import Row, Runner, at_most, value


def run(runner: Runner) -> list[Row]:
    """CPU time of the calling thread per call."""
    inline, inline_peer = runner.ours("route_inline"), runner.peer("route_inline")
    rows = [
        Row(
            "route() inline, no-op probe",
            "us",
            inline["route_us"],
            "0.5",
            at_most(0.5, inline["route_us"]),
            value(inline_peer, "route_us"),
        ),
        Row(
            "the same, four threads, calls against one",
            "x",
            inline["threads_ratio"],
            "no lock",
            None,
            value(inline_peer, "threads_ratio"),
        ),
    ]
    for name, gap_s, calls, target in (
        ("back to back, worker awake", 0.0, 20000, 1.6),
        ("one record per ms, worker napping", 0.001, 1500, 2.5),
        ("one record per 50 ms, worker parked", 0.05, 60, 13.0),
    ):
        ours = runner.ours("route_async", gap_s=gap_s, calls=calls)
        peer = runner.peer("route_async", gap_s=gap_s, calls=calls)
        rows.append(
            Row(
                f"route() async 8 KiB, {name}",
                "us",
                ours["route_us"],
                f"{target:g}",
                at_most(target, ours["route_us"]),
                value(peer, "route_us"),
                ours["copy_us"],
                "numpy copy, same pace",
                ours,
            )
        )
    return rows
