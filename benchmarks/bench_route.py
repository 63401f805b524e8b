"""What does `route()` cost the engine's thread?"""

from __future__ import annotations

from undercurrent.benchmarks.harness import Row, Runner, at_least, at_most, value


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
    for name, gap_s, calls, target, floor, floor_name in (
        ("back to back, worker awake", 0.0, 20000, 1.6, "copy_us", "numpy copy, same pace"),
        ("one record per ms, worker napping", 0.001, 1500, 2.5, "place_us", "numpy copy, same pace and memory"),
        ("one record per 50 ms, worker parked", 0.05, 60, 13.0, "wake_us", "the copy, and a byte to a sleeper"),
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
                ours[floor],
                floor_name,
                ours,
            )
        )
    return [*rows, *_of_rows(runner)]


def _of_rows(runner: Runner) -> list[Row]:
    """A step's rows in one call per point; the published package has no such call."""
    small = runner.ours("route_rows", requests=64, points=1)
    large = runner.ours("route_rows", requests=256, points=4, repeats=20)
    limit_us = 1.5 * small["copies_us"] + 10
    loop = small["loop_us"] / small["rows_us"]
    return [
        Row(
            "route_rows, 64 x 8 KiB",
            "us",
            small["rows_us"],
            f"<= {limit_us:.0f}",
            at_most(limit_us, small["rows_us"]),
            floor=small["copies_us"],
            floor_name="one copy",
            details=small,
        ),
        Row("the same, a loop of route() against it", "x", loop, ">= 3", at_least(3.0, loop)),
        Row(
            "a step of 1,024 rows, 4 points",
            "us",
            large["rows_us"],
            "<= 700",
            at_most(700.0, large["rows_us"]),
            floor=large["copies_us"],
            floor_name="four copies",
            details=large,
        ),
        Row("1,024 rows copied by numpy, each to a place of its own", "us", large["apart_us"]),
    ]
