"""What sinks count of themselves is told once per event, and a sink that cannot say is left alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undercurrent.core import ProbeSignal
from undercurrent.sinks import FileLogSink
from undercurrent.sinks.counting import SinkCounts


def test_events_since_the_last_look_are_told_once(tmp_path: Path) -> None:
    def refuse(record: dict[str, Any]) -> None:
        raise ValueError("no")

    with FileLogSink(tmp_path / "lines", redact=refuse) as sink:
        counts = SinkCounts(sink)
        for _ in range(3):
            sink.write_signal("req", "watch", ProbeSignal())
        assert counts.take() == {"redaction_error": 3}
        assert counts.take() == {}


def test_what_was_counted_before_is_not_told() -> None:
    class Sink:
        dropped_count = 7

    counts = SinkCounts(Sink())
    assert counts.take() == {}


def test_a_dataclass_of_counts_is_read_field_by_field() -> None:
    @dataclass
    class Counts:
        delivered: int = 0
        queue_depth: int = 0

    class Sink:
        counts = Counts()

    sink = Sink()
    counts = SinkCounts(sink)
    sink.counts = Counts(delivered=4, queue_depth=9)
    assert counts.take() == {"delivered": 4}
    assert counts.waiting == 9


def test_a_sink_that_says_nothing_or_raises_tells_nothing() -> None:
    class Raising:
        @property
        def counts(self) -> object:
            raise OSError("gone")

    for sink in (object(), Raising()):
        counts = SinkCounts(sink)
        assert counts.take() == {}
        assert counts.waiting is None


def test_an_event_is_not_told_again_after_the_sink_failed_to_answer_once() -> None:
    class Sink:
        def __init__(self) -> None:
            self.is_broken = False

        @property
        def lost_count(self) -> int:
            if self.is_broken:
                raise OSError("gone")
            return 5

    sink = Sink()
    counts = SinkCounts(sink)
    sink.is_broken = True
    assert counts.take() == {}
    sink.is_broken = False
    assert counts.take() == {}
