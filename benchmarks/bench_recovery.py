"""How long from nothing, and from a dead worker, to the next record seen?"""

from __future__ import annotations

from undercurrent.benchmarks.harness import Row, Runner, at_most, value


def run(runner: Runner) -> list[Row]:
    """Cold start of the first async registration; `kill -9` of a worker."""
    cold, cold_peer = runner.ours("cold"), runner.peer("cold")
    recovery = runner.ours("recovery", kills=2)
    return [
        Row(
            "cold router to its first record seen",
            "ms",
            cold["first_seen_ms"],
            "<= 300",
            at_most(300.0, cold["first_seen_ms"]),
            value(cold_peer, "first_seen_ms"),
        ),
        Row(
            "kill -9 of a worker to its next record seen",
            "ms",
            recovery["recovery_ms"],
            "<= 300",
            at_most(300.0, recovery["recovery_ms"]),
            None,
            details=recovery,
        ),
    ]
