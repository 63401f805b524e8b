"""What do bindings cost: to register, to end, and to keep a thousand of?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from undercurrent.benchmarks.harness import Row, Runner, at_most, value


def run(runner: Runner) -> list[Row]:
    """Wall time of the calls; threads, memory and wake-ups of live bindings."""
    return [*_calls(runner), *_live(runner), *_memory(runner)]


def _calls(runner: Runner) -> list[Row]:
    ours, peer = runner.ours("registration"), runner.peer("registration")
    backlog, backlog_peer = runner.ours("backlog"), runner.peer("backlog")
    trip_us = runner.ours("round_trip")["round_trip_us"]
    idle = _row("end, 4 async points, idle", "us", ours, "end_us", 200, peer)
    behind = _row("end, backlog 32 x 1 ms", "ms", backlog, "end_ms", 40, backlog_peer)
    return [
        _row("register, 4 async points, warm", "us", ours, "register_us", 70, peer),
        replace(idle, floor=trip_us, floor_name="a byte to a process and back"),
        replace(behind, floor=32.0, floor_name="the probe's own time"),
    ]


def _live(runner: Runner) -> list[Row]:
    ours = runner.ours("live", idle_s=5.0 if runner.is_quick else 10.0)
    peer = runner.peer("live", idle_s=5.0)
    memory = _row("1,000 live bindings: memory", "MiB", ours, "memory_mib", 120, peer)
    return [
        _row("1,000 live bindings: more threads", "", ours, "threads", 0, peer),
        replace(memory, floor=1000 * 8 * 8 / 1024, floor_name="the records"),
        _row("1,000 live bindings idle: wake-ups", "1/s", ours, "wakes_per_s", 2, peer),
        _row("1,000 live bindings idle: of one core", "%", ours, "core_percent", 0.5, peer),
    ]


def _memory(runner: Runner) -> list[Row]:
    ours, peer = runner.ours("memory"), runner.peer("memory")
    return [
        _row("router with one worker, its own memory", "MiB", ours, "router_mib", 10, peer),
        _row("numpy worker", "MiB", ours, "worker_mib", 40, None),
        _row("torch worker", "MiB", runner.ours("torch_worker"), "worker_mib", 250, None),
    ]


def _row(what: str, unit: str, ours: dict[str, Any], key: str, limit: float, peer: dict[str, Any] | None) -> Row:
    return Row(what, unit, ours[key], f"<= {limit:g}", at_most(limit, ours[key]), value(peer, key))
