"""What do async probes cost a decode loop that keeps its core busy?"""

from __future__ import annotations

from undercurrent.benchmarks.harness import Row, Runner, at_most, value


def run(runner: Runner) -> list[Row]:
    """CPU time of the engine's thread per step is judged; wall time is reported beside it."""
    pairs = 6 if runner.is_quick else 20
    rows = []
    for count, cpu_target, wall_target in ((1, 1.03, 1.05), (4, 1.10, 1.15)):
        ours = runner.ours("gil", async_probes=count, pairs=pairs)
        threads = runner.ours("gil", async_probes=count, pairs=pairs, mode="thread")
        peer = runner.peer("gil", async_probes=count, pairs=pairs)
        details = {"ours": ours, "threads": threads, "peer": peer}
        for kind, target in (("cpu", cpu_target), ("wall", wall_target)):
            key = f"{kind}_ratio"
            rows.append(
                Row(
                    f"decode loop, {count} async probe(s) of 1 ms, {kind}",
                    "x",
                    ours[key],
                    f"<= {target:.2f}",
                    at_most(target, ours[key]),
                    value(peer, key),
                    threads[key],
                    "our threads",
                    details,
                )
            )
    return rows
