"""What do bindings cost: to register, to end, and to keep a thousand of?"""

from __future__ import annotations

from undercurrent.benchmarks.harness import Row, Runner, at_most, value


def run(runner: Runner) -> list[Row]:
    """Wall time of the calls; threads, memory and wake-ups of live bindings."""
    ours, peer = runner.ours("registration"), runner.peer("registration")
    backlog, backlog_peer = runner.ours("backlog"), runner.peer("backlog")
    live = runner.ours("live", idle_s=5.0 if runner.is_quick else 10.0)
    live_peer = runner.peer("live", idle_s=5.0)
    memory, memory_peer = runner.ours("memory"), runner.peer("memory")
    return [
        Row(
            "register, 4 async points, warm",
            "us",
            ours["register_us"],
            "<= 70",
            at_most(70, ours["register_us"]),
            value(peer, "register_us"),
        ),
        Row(
            "end, 4 async points, idle",
            "us",
            ours["end_us"],
            "<= 200",
            at_most(200, ours["end_us"]),
            value(peer, "end_us"),
        ),
        Row(
            "end, backlog 32 x 1 ms",
            "ms",
            backlog["end_ms"],
            "<= 40",
            at_most(40, backlog["end_ms"]),
            value(backlog_peer, "end_ms"),
            32.0,
            "the probe's own time",
        ),
        Row(
            "1,000 live bindings: more threads",
            "",
            live["threads"],
            "0",
            live["threads"] == 0,
            value(live_peer, "threads"),
        ),
        Row(
            "1,000 live bindings: memory",
            "MiB",
            live["memory_mib"],
            "<= 120",
            at_most(120, live["memory_mib"]),
            value(live_peer, "memory_mib"),
            1000 * 8 * 8 / 1024,
            "the records",
        ),
        Row(
            "1,000 live bindings idle: wake-ups",
            "1/s",
            live["wakes_per_s"],
            "<= 2",
            at_most(2.0, live["wakes_per_s"]),
            value(live_peer, "wakes_per_s"),
        ),
        Row(
            "1,000 live bindings idle: one core",
            "%",
            live["core_percent"],
            "< 0.5",
            at_most(0.5, live["core_percent"]),
            value(live_peer, "core_percent"),
        ),
        Row(
            "router with one worker, its own memory",
            "MiB",
            memory["router_mib"],
            "+ 10",
            at_most(10.0, memory["router_mib"]),
            value(memory_peer, "router_mib"),
        ),
        Row("numpy worker", "MiB", memory["worker_mib"], "40", at_most(40.0, memory["worker_mib"])),
    ]
