"""`WebhookLogSink` against real servers: what arrives, what is tried again, what becomes a dead letter."""

from __future__ import annotations

import email.utils
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sink_lines import SIGNAL, records_of
from webhook_server import Reply, closed_port, ids, reasons, serving, write

from undercurrent.core import ProbeResult
from undercurrent.errors import ProbingTimeoutError
from undercurrent.sinks import ResultRecord, SignalRecord, WebhookCounts, WebhookLogSink

FAST = {"backoff_base": 0.0, "request_timeout": 5.0}


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    return tmp_path / "dead.ndjson"


def test_records_arrive_in_order_over_one_connection(letters: Path) -> None:
    with serving() as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters) as sink:
        write(sink, 20)
        sink.write_result("req-0", "monitor", ProbeResult("req-0", "monitor", {"flagged": True}))
        sink.close()
        assert endpoint.ids() == [*ids(20), "req-0"]
        assert len(endpoint.peers) == 1
        method, target, headers = endpoint.requests[0]
        assert (method, target, headers["Content-Type"]) == ("POST", "/hook/s3cret?token=t0ken", "application/json")
        assert sink.counts == WebhookCounts(accepted=21, delivered=21)
        assert endpoint.records[0]["payload"] == {
            "action": "flag",
            "metadata": {"score": 0.5, "probe": "mean"},
            "confidence": 0.75,
            "timestamp": 12.5,
        }
        assert endpoint.records[-1]["kind"] == "result"
    assert not letters.exists()


def test_what_is_known_of_an_activation_is_posted(letters: Path) -> None:
    with serving() as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters) as sink:
        sink.write_signal_record(SignalRecord("r", "p", SIGNAL, sequence=3, layer=4, position=10, model="m"))
        result = ProbeResult("r", "p", 1, [], {"coverage": {"complete": True}})
        sink.write_result_record(ResultRecord("r", "p", result, model="m"))
        sink.close()
        signal, result_record = endpoint.records
    assert {key: signal[key] for key in ("sequence", "layer", "position", "model", "schema_version")} == {
        "sequence": 3, "layer": 4, "position": 10, "model": "m", "schema_version": 2,
    }  # fmt: skip
    assert result_record["coverage"] == {"complete": True}


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408, 425])
def test_trouble_that_may_pass_is_tried_again(status: int, letters: Path) -> None:
    with (
        serving(Reply(status), Reply(status)) as endpoint,
        WebhookLogSink(endpoint.url, dead_letter_path=letters, **FAST) as sink,
    ):
        write(sink, 1)
        sink.close()
        assert endpoint.ids() == ["req-0"] * 3
        assert sink.counts == WebhookCounts(accepted=1, delivered=1, retried=2)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422])
def test_a_refusal_is_final(status: int, letters: Path) -> None:
    with serving(Reply(status)) as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters, **FAST) as sink:
        write(sink, 2)
        sink.close()
        assert endpoint.ids() == ids(2)
        assert sink.counts == WebhookCounts(accepted=2, delivered=1, dead_lettered=1)
    assert reasons(letters) == [(f"http_{status}", 1)]
    assert records_of(letters)[0]["request_id"] == "req-0"


def test_attempts_end_and_the_next_record_has_its_turn(letters: Path) -> None:
    replies = [Reply(503)] * 3
    with serving(*replies) as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters, **FAST) as sink:
        write(sink, 2)
        sink.close()
        assert endpoint.ids() == ["req-0"] * 3 + ["req-1"]
        assert sink.counts == WebhookCounts(accepted=2, delivered=1, retried=2, dead_lettered=1)
    assert reasons(letters) == [("http_503", 3)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_no_delivery(status: int, letters: Path) -> None:
    with serving() as elsewhere, serving() as endpoint:
        endpoint.default = Reply(status, {"Location": elsewhere.url})
        with WebhookLogSink(endpoint.url, dead_letter_path=letters, **FAST) as sink:
            write(sink, 1)
        assert sink.counts == WebhookCounts(accepted=1, dead_lettered=1)
        assert not elsewhere.requests
    assert reasons(letters) == [("redirect", 1)]


def test_a_reset_connection_is_tried_again(letters: Path) -> None:
    with (
        serving(Reply(), Reply(is_reset=True)) as endpoint,
        WebhookLogSink(endpoint.url, dead_letter_path=letters, **FAST) as sink,
    ):
        write(sink, 3)
        sink.close()
        assert endpoint.ids() == ["req-0", "req-1", "req-1", "req-2"]
        assert sink.counts == WebhookCounts(accepted=3, delivered=3, retried=1)


def test_an_endpoint_that_is_down_gets_nothing_and_nothing_is_lost(letters: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}/hook"
    with WebhookLogSink(url, dead_letter_path=letters, **FAST) as sink:
        write(sink, 10)
    assert sink.counts == WebhookCounts(accepted=10, retried=20, dead_lettered=10)
    assert [record["request_id"] for record in records_of(letters)] == ids(10)
    assert set(reasons(letters)) == {("NewConnectionError", 3)}


def test_an_answer_that_does_not_come_is_tried_again(letters: Path) -> None:
    never = threading.Event()
    with (
        serving(Reply(after=never)) as endpoint,
        WebhookLogSink(
            endpoint.url, dead_letter_path=letters, backoff_base=0.0, request_timeout=0.3, max_retries=50
        ) as sink,
    ):
        write(sink, 1)
        sink.close()
        assert sink.counts.delivered == 1
        assert sink.counts.retried >= 1
        never.set()


def test_slow_endpoint_holds_up_no_write(letters: Path) -> None:
    answer = threading.Event()
    with (
        serving(Reply(after=answer)) as endpoint,
        WebhookLogSink(endpoint.url, dead_letter_path=letters, queue_maxsize=50) as sink,
    ):
        write(sink, 1)
        assert endpoint.await_requests(1)
        write(sink, 50, first=1)
        assert sink.counts == WebhookCounts(accepted=51, queue_depth=51)
        answer.set()
        sink.drain(20)
        assert endpoint.ids() == ids(51)


def test_full_queue_drops_the_newest_counts_and_says_so_once(letters: Path, caplog: pytest.LogCaptureFixture) -> None:
    answer = threading.Event()
    with (
        serving(Reply(after=answer)) as endpoint,
        WebhookLogSink(endpoint.url, dead_letter_path=letters, queue_maxsize=2) as sink,
    ):
        write(sink, 1)
        assert endpoint.await_requests(1)
        write(sink, 5, first=1)
        assert sink.dropped_count == 3
        answer.set()
        sink.close()
        assert endpoint.ids() == ids(3)
        assert sink.counts == WebhookCounts(accepted=3, delivered=3, dropped=3)
    assert caplog.text.count("is full") == 1


def test_drain_that_takes_too_long_is_an_error(letters: Path) -> None:
    answer = threading.Event()
    with (
        serving(Reply(after=answer)) as endpoint,
        WebhookLogSink(endpoint.url, dead_letter_path=letters) as sink,
    ):
        write(sink, 1)
        with pytest.raises(ProbingTimeoutError, match="unsent"):
            sink.drain(0.05)
        with pytest.raises(TimeoutError):
            sink.drain(0.0)
        answer.set()
        sink.drain()
        assert sink.counts.delivered == 1


def test_close_has_a_deadline_and_what_is_left_is_a_dead_letter(letters: Path) -> None:
    answer = threading.Event()
    with (
        serving(Reply(after=answer)) as endpoint,
        WebhookLogSink(endpoint.url, dead_letter_path=letters) as sink,
    ):
        write(sink, 4)
        assert endpoint.await_requests(1)
        sink.close(timeout=0.1)
        assert sink.counts == WebhookCounts(accepted=4, dead_lettered=4)
        assert [record["request_id"] for record in records_of(letters)] == ids(4)
        assert reasons(letters) == [("closed", 1)] + [("closed", 0)] * 3
        answer.set()
    assert sink.counts == WebhookCounts(accepted=4, dead_lettered=4)


def test_a_record_written_after_close_is_a_dead_letter(letters: Path) -> None:
    with serving() as endpoint:
        sink = WebhookLogSink(endpoint.url, dead_letter_path=letters)
        sink.close()
        sink.close()
        write(sink, 2)
        assert not endpoint.requests
    assert reasons(letters) == [("closed", 0)] * 2
    assert sink.counts == WebhookCounts(accepted=2, dead_lettered=2)


def test_retry_after_is_waited_for(letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soon = email.utils.format_datetime(email.utils.localtime().astimezone(), usegmt=False)
    replies = [
        Reply(429, {"Retry-After": "120"}),
        Reply(503, {"Retry-After": "999999"}),
        Reply(408, {"Retry-After": soon}),
        Reply(429, {"Retry-After": "in a while"}),
    ]
    with (
        serving(*replies) as endpoint,
        WebhookLogSink(endpoint.url, dead_letter_path=letters, max_retries=4, backoff_base=0.001) as sink,
    ):
        waits = watch_waits(sink, monkeypatch)
        write(sink, 1)
        sink.close()
        assert sink.counts.delivered == 1
    assert waits[:2] == [120.0, 3600.0]
    assert waits[2] <= 0.008
    assert waits[3] <= 0.016


def test_back_off_doubles_with_full_jitter_and_is_capped(letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []

    def middle(low: float, high: float) -> float:
        asked.append((low, high))
        return high / 2

    monkeypatch.setattr("undercurrent.sinks.webhook_outbox.random.uniform", middle)
    with (
        serving(default=Reply(500)) as endpoint,
        WebhookLogSink(endpoint.url, dead_letter_path=letters, max_retries=12, backoff_base=0.1) as sink,
    ):
        waits = watch_waits(sink, monkeypatch)
        write(sink, 1)
    assert asked == [(0.0, min(0.1 * 2**attempt, 300.0)) for attempt in range(12)]
    assert waits == [high / 2 for _, high in asked]


def watch_waits(sink: WebhookLogSink, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses the sink's sender asks for, each of which is over at once."""
    waits: list[float] = []

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return self.is_set()

    monkeypatch.setattr(sink._outbox, "_given_up", Impatient())
    return waits


def test_long_answers_are_cut_off_and_short_ones_keep_the_connection(letters: Path) -> None:
    replies = [Reply(body=b"x" * 1000), Reply(body=b"x" * 1_000_000), Reply()]
    with serving(*replies) as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters) as sink:
        write(sink, 3)
        sink.close()
        assert sink.counts.delivered == 3
        assert len(endpoint.peers) == 2


def test_post_fn_replaces_the_post_and_is_tried_again(letters: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def post(url: str, record: dict[str, Any]) -> None:
        calls.append((url, record))
        if len(calls) < 3 or record["request_id"] == "req-1":
            raise ConnectionError("not now")

    sink = WebhookLogSink("queue://anything", post_fn=post, dead_letter_path=letters, backoff_base=0.0)
    write(sink, 2)
    sink.close()
    assert [record["request_id"] for _, record in calls] == ["req-0"] * 3 + ["req-1"] * 3
    assert {url for url, _ in calls} == {"queue://anything"}
    assert sink.counts == WebhookCounts(accepted=2, delivered=1, retried=4, dead_lettered=1)
    assert reasons(letters) == [("ConnectionError", 3)]


def test_counts_add_up_while_writers_race(letters: Path) -> None:
    replies = [Reply(status) for status in (200, 500, 400, 302, 200, 503)] * 10
    with serving(*replies) as endpoint:
        sink = WebhookLogSink(endpoint.url, dead_letter_path=letters, queue_maxsize=20, max_retries=1, backoff_base=0.0)
        writers = [threading.Thread(target=write, args=(sink, 50, 100 * index)) for index in range(4)]
        for writer in writers:
            writer.start()
        deadline = time.monotonic() + 20
        while any(writer.is_alive() for writer in writers) and time.monotonic() < deadline:
            counts = sink.counts
            assert counts.accepted <= 200 - counts.dropped
        for writer in writers:
            writer.join()
        sink.close()
        counts = sink.counts
        assert counts.accepted + counts.dropped == 200
        assert counts.accepted == counts.delivered + counts.dead_lettered
        assert len(endpoint.requests) == counts.accepted + counts.retried
        for first in range(0, 400, 100):
            mine = [name for name in dict.fromkeys(endpoint.ids()) if first <= int(name[4:]) < first + 100]
            assert mine == sorted(mine, key=lambda name: int(name[4:]))
    assert len(records_of(letters)) == counts.dead_lettered


@pytest.mark.parametrize("answer", [b"", b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200\r\nContent-Length: x\r\n\r\n"])
def test_an_answer_that_is_none_is_tried_again(answer: bytes, letters: Path) -> None:
    delivered = answer.startswith(b"HTTP/1.1 200")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)

        def speak() -> None:
            for _ in range(1 if delivered else 2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        speaker = threading.Thread(target=speak)
        speaker.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        sink = WebhookLogSink(url, dead_letter_path=letters, max_retries=1, backoff_base=0.0, request_timeout=5.0)
        write(sink, 1)
        sink.close()
        speaker.join()
    assert sink.counts.delivered == delivered
    assert sink.counts.dead_lettered == (not delivered)


def test_a_post_that_raises_system_exit_ends_neither_the_thread_nor_the_record(letters: Path) -> None:
    def leave(url: str, record: dict[str, Any]) -> None:
        raise SystemExit

    sink = WebhookLogSink("https://e", post_fn=leave, dead_letter_path=letters, max_retries=0)
    write(sink, 2)
    sink.close()
    assert reasons(letters) == [("SystemExit", 1)] * 2
