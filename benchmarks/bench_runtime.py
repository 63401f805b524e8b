"""What does the coalition runtime cost, beside a bare task group and the published package?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from undercurrent.benchmarks.harness import BenchmarkError, Row, Runner, at_least, at_most, value
from undercurrent.benchmarks.runtime_peer import RUNTIME_PEER, runtime_peer_python

PROGRAM = Path(__file__).resolve().parent / "common" / "uc_bench_runtime.py"


def run(runner: Runner) -> list[Row]:
    """Scheduler, archive, reading and keys."""
    peer = _peer(runner)
    scale = 10 if runner.is_quick else 1
    rows = [
        *_scheduler_rows(runner, peer, scale),
        *_archive_rows(runner, peer, scale),
        *_reading_rows(runner, peer, scale),
    ]
    return [replace(row, peer_name=RUNTIME_PEER.replace("==", " ")) for row in rows]


def measure(runner: Runner, python: Path | None, scenario: str, **arguments: Any) -> dict[str, Any]:
    """Runs one scenario of the runtime's program, under this interpreter where `python` is None."""
    runner.say(f"{scenario} {json.dumps(arguments)} ({'ours' if python is None else 'peer'})")
    return runner.script(PROGRAM, scenario, json.dumps(arguments), python=python)


def _peer(runner: Runner) -> Path | None:
    if runner.peer_python is None:
        return None
    try:
        return runtime_peer_python()
    except BenchmarkError as error:
        runner.say(f"peer: {error}")
        return None


def _both(
    runner: Runner, peer: Path | None, scenario: str, peer_arguments: dict[str, Any] | None = None, **arguments: Any
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    ours = measure(runner, None, scenario, **arguments)
    if peer is None:
        return ours, None
    try:
        return ours, measure(runner, peer, scenario, **{**arguments, **(peer_arguments or {})})
    except BenchmarkError as error:
        runner.say(f"peer: {error}")
        return ours, None


def _scheduler_rows(runner: Runner, peer: Path | None, scale: int) -> list[Row]:
    ours, theirs = _both(runner, peer, "scheduler", jobs=100_000 // scale, pairs=3 if scale > 1 else 5)
    memory, peer_memory = _both(runner, peer, "memory", jobs=100_000 // scale)
    run, peer_run = _both(runner, peer, "archived_run", jobs=20_000 // scale)
    return [
        Row(
            "no-op job, CPU",
            "us",
            ours["job_us"],
            "<= 1.4x beside it",
            at_most(1.4, ours["ratio"]),
            value(theirs, "job_us"),
            ours["floor_us"],
            "bare task group, same semaphores",
            details={"ours": ours, "peer": theirs},
        ),
        Row(
            "memory growth over 100,000 jobs, store of 128",
            "KiB",
            memory["growth_kib"],
            "<= 1024",
            at_most(1024, memory["growth_kib"]),
            value(peer_memory, "growth_kib"),
        ),
        Row(
            "no-op job with its row committed (peer: flush_every 1), CPU",
            "us",
            run["cpu_us"],
            "",
            None,
            value(peer_run, "cpu_us"),
            details={"ours": run, "peer": peer_run},
        ),
    ]


def _archive_rows(runner: Runner, peer: Path | None, scale: int) -> list[Row]:
    rows = []
    for flush_every in (1, 50):
        ours, theirs = _both(
            runner, peer, "append", {"flush_every": flush_every}, rows=100_000 // scale, flush_every=None
        )
        peer_rate = value(theirs, "rows_per_s")
        rows.append(
            Row(
                f"archive appends, peer at flush_every {flush_every}",
                "rows/s",
                ours["rows_per_s"],
                ">= 1.3x the peer",
                None if peer_rate is None else at_least(1.3 * peer_rate, ours["rows_per_s"]),
                peer_rate,
                details={"ours": ours, "peer": theirs},
            )
        )
    late, peer_late = _both(runner, peer, "latency", seconds=2.0 / scale)
    rows.append(
        Row(
            "added latency of the loop while appending, p99.9 (peer: flush_every 1)",
            "us",
            late["added_p999_us"],
            "<= 1000",
            at_most(1000, late["added_p999_us"]),
            value(peer_late, "added_p999_us"),
            details={"ours": late, "peer": peer_late},
        )
    )
    return rows


def _reading_rows(runner: Runner, peer: Path | None, scale: int) -> list[Row]:
    stream, peer_stream = _both(runner, peer, "stream", rows=100_000 // scale)
    key, peer_key = _both(runner, peer, "key", calls=20_000 // scale)
    return [
        Row(
            "loading 100,000 rows and streaming them",
            "rows/s",
            stream["rows_per_s"],
            ">= 200,000",
            at_least(200_000, stream["rows_per_s"]),
            value(peer_stream, "rows_per_s"),
            details={"ours": stream, "peer": peer_stream},
        ),
        Row(
            "coalition key, 16 players",
            "us",
            key["key_us"],
            "<= 4",
            at_most(4.0, key["key_us"]),
            value(peer_key, "key_us"),
        ),
    ]
