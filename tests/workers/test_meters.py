"""Meters count in fixed buckets, report each thing once, and stay bounded whatever labels come."""

from __future__ import annotations

import threading
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_points import make_point

from undercurrent.core import ProbeAction, ProbeSignal
from undercurrent.workers.measures import OTHER, Measures, PointKey
from undercurrent.workers.meters import (
    ACTIONS,
    BUCKET_BOUNDS_NS,
    CALL_AT,
    ERRORS_AT,
    HISTOGRAM_WORDS,
    POINT_WORDS,
    RECORDS_AT,
    WAIT_AT,
    WRITE_AT,
    PointMeter,
    SharedMeter,
    SinkMeter,
    place_of,
)

KEY = PointKey("watch", "collect", "async")


def words_of(taken: bytes) -> list[int]:
    return list(array("Q", taken))


def test_buckets_are_one_two_and_five_of_each_decade_from_a_microsecond_to_100_seconds() -> None:
    assert BUCKET_BOUNDS_NS[:4] == (1_000, 2_000, 5_000, 10_000)
    assert BUCKET_BOUNDS_NS[-1] == 100 * 10**9
    assert list(BUCKET_BOUNDS_NS) == sorted(set(BUCKET_BOUNDS_NS))


@given(st.integers(0, 10**12), st.integers(1, 16))
def test_a_duration_lies_in_the_first_bucket_whose_bound_it_does_not_exceed(duration_ns: int, count: int) -> None:
    meter = PointMeter()
    meter.note_wait(duration_ns, count)
    histogram = words_of(meter.take())[WAIT_AT : WAIT_AT + HISTOGRAM_WORDS]
    expected = sum(bound < duration_ns for bound in BUCKET_BOUNDS_NS)
    assert [place for place, found in enumerate(histogram[:-1]) if found] == [expected]
    assert histogram[expected] == count
    assert histogram[-1] == duration_ns * count


def test_a_batch_s_time_is_shared_out_over_its_records() -> None:
    meter = PointMeter()
    meter.note_call(80_000, 16)
    histogram = words_of(meter.take())[CALL_AT : CALL_AT + HISTOGRAM_WORDS]
    assert histogram[BUCKET_BOUNDS_NS.index(5_000)] == 16
    assert histogram[-1] == 80_000


def test_what_was_taken_is_not_reported_again() -> None:
    meter = PointMeter()
    meter.note_signal(ProbeSignal(ProbeAction.FLAG))
    assert words_of(meter.take())[ACTIONS.index("flag")] == 1
    assert meter.take() == b""
    meter.note_signal(ProbeSignal())
    assert words_of(meter.take())[: len(ACTIONS)] == [1, 0, 0, 0]


@pytest.mark.parametrize("odd", [None, "abort", object()])
def test_what_is_no_signal_is_counted_as_other(odd: object) -> None:
    assert ACTIONS[place_of(odd)] == "other"


@pytest.mark.parametrize("action", ["halt", ["a", "list"]])
def test_a_signal_whose_action_was_overwritten_is_counted_as_other(action: object) -> None:
    signal = ProbeSignal()
    signal.action = action  # type: ignore[assignment]
    assert ACTIONS[place_of(signal)] == "other"


def test_a_sink_s_write_is_measured_once_per_batch_of_records() -> None:
    meter = SinkMeter()
    meter.note_record(is_written=True)
    meter.note_record(is_written=False)
    assert meter.has_unwritten
    meter.note_write(3_000)
    assert not meter.has_unwritten
    words = words_of(meter.take())
    assert (words[RECORDS_AT], words[ERRORS_AT]) == (1, 1)
    assert sum(words[WRITE_AT : WRITE_AT + HISTOGRAM_WORDS - 1]) == 1


def test_threads_lose_no_count_of_a_shared_meter() -> None:
    meter = SharedMeter(HISTOGRAM_WORDS)

    def note_many() -> None:
        for _ in range(2_000):
            meter.note(0, 1_500)

    threads = [threading.Thread(target=note_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.read()[1] == 8_000


def test_points_beyond_the_bound_are_counted_as_other_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    measures = Measures(series_max=2)
    keys = [measures.fit(PointKey(f"p{n}", "collect", "async")) for n in range(5)]

    assert keys[:2] == [("p0", "collect", "async"), ("p1", "collect", "async")]
    assert set(keys[2:]) == {(OTHER, OTHER, "async")}
    assert measures.fit(PointKey("p0", "collect", "async")) == keys[0]
    assert measures.read().capped_count == 3
    assert len(caplog.records) == 1


def test_sinks_and_their_events_are_bounded_too() -> None:
    measures = Measures()
    for number in range(2_000):
        measures.sink(f"Sink{number}")
        measures.add_sink_events("Sink0", {f"event{number}": 1})
    reading = measures.read()
    assert len(reading.sinks) <= 65
    assert len(reading.sink_events) <= 1_025
    assert sum(reading.sink_events.values()) == 2_000


def test_long_labels_are_cut() -> None:
    key = Measures().fit(PointKey("n" * 10_000, "p" * 10_000, "inline"))
    assert (len(key.point), len(key.probe)) == (128, 128)


@pytest.mark.parametrize("size", [8, 8 * POINT_WORDS - 1, 8 * POINT_WORDS + 8])
def test_measures_of_the_wrong_size_are_logged_and_left_out(size: int, caplog: pytest.LogCaptureFixture) -> None:
    measures = Measures()
    measures.add_point(measures.point(KEY), bytes(size))
    measures.add_sink("ListSink", bytes(size), {})
    assert set(measures.read().points[KEY]) == {0}
    assert len(caplog.records) == 2


def test_what_a_worker_says_cannot_make_a_sum_wrap() -> None:
    measures = Measures()
    for _ in range(100):
        measures.add_point(measures.point(KEY), b"\xff" * 8 * POINT_WORDS)
    assert measures.read().points[KEY][0] == 100 * (2**64 - 1)


@pytest.mark.parametrize(("said_ns", "counted_ns"), [(-(10**15), 0), (10**18, 3_600 * 10**9)])
def test_a_clock_that_says_nonsense_cannot_make_a_sum_wrap(said_ns: int, counted_ns: int) -> None:
    meter = PointMeter()
    for _ in range(1_000):
        meter.note_wait(said_ns, 16)
    assert words_of(meter.take())[WAIT_AT + HISTOGRAM_WORDS - 1] == 16_000 * counted_ns


def test_a_point_of_a_specification_has_one_meter_however_often_it_is_made() -> None:
    measures = Measures()
    meters = {id(measures.meter_of(make_point("watch", "async"))) for _ in range(3_000)}
    assert len(meters) == 1


def test_a_key_says_inline_for_every_point_that_is_not_async() -> None:
    assert PointKey.of(make_point("a", "async")).mode == "async"
    assert PointKey.of(make_point("a", "inline")).mode == "inline"


def test_a_forked_child_begins_at_zero() -> None:
    measures = Measures()
    measures.point(KEY).bump(0)
    measures.count_restart("uc-0", "died")
    measures.renew_after_fork()
    reading = measures.read()
    assert reading.points[KEY][0] == 0
    assert reading.restarts == {}


def test_what_a_worker_says_cannot_make_a_counter_fall() -> None:
    measures = Measures()
    measures.add_sink("ListSink", b"", {"lost": 3})
    measures.add_sink("ListSink", b"", {"lost": -2})
    assert measures.read().sink_events == {("ListSink", "lost"): 3}
