"""How many records reach a probe per second, and what becomes of a burst?"""

from __future__ import annotations

from undercurrent.benchmarks.harness import Row, Runner, at_least, value


def run(runner: Runner) -> list[Row]:
    """A mean probe over 4096 x float32 under `block`; a burst under the defaults; the file sink."""
    records = 20000 if runner.is_quick else 100000
    ours, peer = runner.ours("throughput", records=records), runner.peer("throughput", records=records)
    burst, burst_peer = runner.ours("burst"), runner.peer("burst")
    sink, sink_peer = runner.ours("file_sink"), runner.peer("file_sink")
    return [
        Row(
            "records/s to a mean probe, 4096 x float32, block",
            "1/s",
            ours["records_per_s"],
            ">= 500 k",
            at_least(500e3, ours["records_per_s"]),
            value(peer, "records_per_s"),
            ours["floor_records_per_s"],
            "one thread, out of memory and multiplied",
        ),
        Row(
            "burst of 20,000, default settings: lost",
            "%",
            burst["lost_percent"],
            "stands in the result",
            burst["is_accounted"],
            value(burst_peer, "lost_percent"),
            details={"ours": burst, "peer": burst_peer},
        ),
        Row(
            "FileLogSink.write_signal",
            "lines/s",
            sink["lines_per_s"],
            ">= 250 k",
            at_least(250e3, sink["lines_per_s"]),
            value(sink_peer, "lines_per_s"),
        ),
    ]
