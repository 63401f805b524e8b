"""`WebhookLogSink` at the ends of processes, in children of fork, and behind a router."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from router_points import REGISTRY, context, fresh_id, make_point, make_record
from sink_lines import SIGNAL, records_of
from webhook_server import Reply, closed_port, ids, reasons, serving, write

from undercurrent.router import Router
from undercurrent.sinks import WebhookCounts, WebhookLogSink


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    return tmp_path / "dead.ndjson"


EXIT_WITHOUT_CLOSE = """
import sys
from undercurrent.core import ProbeSignal
from undercurrent.sinks import WebhookLogSink
url, path, count = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
sink = WebhookLogSink(url, dead_letter_path=path, backoff_base=10.0)
for index in range(count):
    sink.write_signal(f"req-{index}", "monitor", ProbeSignal())
if sys.argv[4:] == ["raise"]:
    raise SystemExit(3)
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", EXIT_WITHOUT_CLOSE, *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize(("how", "status"), [((), 0), (("raise",), 3)])
def test_what_is_unsent_at_a_normal_exit_is_in_the_dead_letter_file(how: Any, status: int, letters: Path) -> None:
    answer = run(f"http://127.0.0.1:{closed_port()}/", str(letters), "100", *how)
    assert answer.returncode == status, answer.stderr
    assert sorted(record["request_id"] for record in records_of(letters)) == sorted(ids(100))
    # One was being tried again, and its answer is known.
    assert {reason for reason, _ in reasons(letters)} <= {"interpreter_exit", "NewConnectionError"}


def test_unsent_records_lie_in_the_state_folder_by_default(tmp_path: Path) -> None:
    answer = run(f"http://127.0.0.1:{closed_port()}/", "", "2", XDG_STATE_HOME=str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    assert len(records_of(tmp_path / "undercurrent" / "webhook-dead-letters.ndjson")) == 2


def test_a_record_being_sent_at_exit_is_delivered_or_a_dead_letter(letters: Path) -> None:
    with serving() as endpoint:
        answer = run(endpoint.url, str(letters), "3")
        assert answer.returncode == 0, answer.stderr
        left = [record["request_id"] for record in records_of(letters)] if letters.exists() else []
        assert sorted({*endpoint.ids(), *left}) == ids(3)
        assert len(endpoint.ids()) == len(set(endpoint.ids()))


def test_an_endpoint_that_never_answers_does_not_hold_up_the_exit(letters: Path) -> None:
    never = threading.Event()
    with serving(default=Reply(after=never)) as endpoint:
        answer = run(endpoint.url, str(letters), "2")
        never.set()
    assert answer.returncode == 0, answer.stderr
    assert sorted(record["request_id"] for record in records_of(letters)) == ids(2)


def in_child(work: Any) -> int:
    """Runs `work` in a forked child and returns its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_delivers_its_own_records_and_none_of_the_parents(letters: Path) -> None:
    answer = threading.Event()
    with serving(Reply(), Reply(after=answer)) as endpoint:
        sink = WebhookLogSink(endpoint.url, dead_letter_path=letters)
        write(sink, 1)
        sink.drain()
        write(sink, 3, first=1)
        assert endpoint.await_requests(2)

        def work() -> None:
            assert sink.counts == WebhookCounts()
            write(sink, 2, first=100)
            sink.close()
            assert sink.counts == WebhookCounts(accepted=2, delivered=2)

        # Held by a thread of the parent, as a lock may be at any moment.
        with sink._outbox._changed, sink._dead_letters._lock:
            assert in_child(work) == 0
        answer.set()
        sink.close()
        assert sorted(endpoint.ids()) == sorted([*ids(4), *ids(2, first=100)])
        assert len(endpoint.peers) == 2
        assert sink.counts == WebhookCounts(accepted=4, delivered=4)
    assert not letters.exists()


def test_a_sink_closed_before_the_fork_stays_closed_in_the_child(letters: Path) -> None:
    with serving() as endpoint:
        sink = WebhookLogSink(endpoint.url, dead_letter_path=letters)
        sink.close()
        assert in_child(lambda: write(sink, 1)) == 0
        assert not endpoint.requests
    assert reasons(letters) == [("closed", 0)]


def senders() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "undercurrent-sinks-webhook"}


def test_a_sink_nobody_holds_sends_what_waits_and_ends_its_thread(letters: Path) -> None:
    before = senders()
    answer = threading.Event()
    with serving(Reply(after=answer)) as endpoint:
        sink = WebhookLogSink(endpoint.url, dead_letter_path=letters)
        write(sink, 3)
        assert endpoint.await_requests(1)
        (sender,) = senders() - before
        del sink
        gc.collect()
        answer.set()
        sender.join(20)
        assert not sender.is_alive()
        assert endpoint.ids() == ids(3)


def test_a_router_posts_each_binding_in_order_and_its_result_last(letters: Path) -> None:
    requests = [fresh_id() for _ in range(3)]
    point = make_point("monitor", "async", probe_type="flagging", overflow_policy="block")
    with serving() as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters) as sink:
        with Router(REGISTRY, worker_pool_size=2) as router:
            router.attach_log_sink(sink)
            for request in requests:
                router.register_request(request, [point], context(request))
            for position in range(20):
                for request in requests:
                    router.route(make_record(request, "monitor", position=position))
            for request in requests:
                router.end_request(request)
        sink.close()
        assert len(endpoint.peers) == 1
        for request in requests:
            mine = [record for record in endpoint.records if record["request_id"] == request]
            assert [record["kind"] for record in mine] == ["signal"] * 20 + ["result"]
            assert [record["position"] for record in mine[:-1]] == list(range(20))
            assert mine[0]["layer"] == 4
            assert mine[-1]["coverage"]["complete"]


def test_a_sink_in_a_router_of_threads_posts_too(letters: Path) -> None:
    request = fresh_id()
    with serving() as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters) as sink:
        with Router(REGISTRY, worker_mode="thread") as router:
            router.add_log_sink(sink)
            router.register_request(request, [make_point("monitor", "async", probe_type="flagging")], context(request))
            router.route(make_record(request, "monitor"))
            router.end_request(request)
            router.remove_log_sink(sink)
        sink.close()
        assert [record["kind"] for record in endpoint.records] == ["signal", "result"]


def test_the_thread_starts_with_the_first_record(letters: Path) -> None:
    before = senders()
    with WebhookLogSink("https://example.com/hook", dead_letter_path=letters, post_fn=lambda *_: None) as sink:
        assert senders() <= before
        sink.write_signal("r", "p", SIGNAL)
        sink.drain()
        assert len(senders() - before) == 1
    assert senders() <= before
