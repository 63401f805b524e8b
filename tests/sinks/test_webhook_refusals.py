"""What `WebhookLogSink` keeps to itself, refuses, and does with records it cannot deliver."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from sink_lines import records_of
from source_tree import ROOT
from webhook_server import Reply, closed_port, ids, reasons, serving, write

from undercurrent.core import ProbeSignal
from undercurrent.errors import ProbingTypeError, ProbingValueError
from undercurrent.sinks import FileSinkNotFoundError, WebhookCounts, WebhookLogSink, redact_keys

FAST = {"backoff_base": 0.0, "request_timeout": 5.0}


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    return tmp_path / "dead.ndjson"


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dead letters of a sink without a path stay in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


# ---- redaction and secrets ------------------------------------------------------------------------------------------

TEXTS = {"prompt": "a", "Prompt": "b", "nested": [{"generated_text": "c", "query": "d"}], "score": 1}


def test_prompt_text_is_redacted_before_it_leaves(letters: Path) -> None:
    with serving() as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters) as sink:
        sink.write_signal("r", "p", ProbeSignal(metadata=dict(TEXTS)))
        sink.close()
        hidden = "[REDACTED]"
        assert endpoint.records[0]["payload"]["metadata"] == {
            "prompt": hidden, "Prompt": hidden, "nested": [{"generated_text": hidden, "query": hidden}], "score": 1,
        }  # fmt: skip


def test_prompt_text_is_sent_when_asked_for_and_a_redaction_runs_alone(letters: Path) -> None:
    with (
        serving() as endpoint,
        WebhookLogSink(
            endpoint.url, dead_letter_path=letters, include_prompt_text=True, redact=redact_keys("score")
        ) as sink,
    ):
        sink.write_signal("r", "p", ProbeSignal(metadata=dict(TEXTS)))
        sink.close()
        assert endpoint.records[0]["payload"]["metadata"] == {**TEXTS, "score": "[REDACTED]"}


def test_a_redaction_of_ones_own_runs_after_the_default(letters: Path) -> None:
    seen: list[Any] = []

    def keep(record: dict[str, Any]) -> dict[str, Any] | None:
        seen.append(record["payload"]["metadata"]["prompt"])
        return None

    with serving() as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters, redact=keep) as sink:
        sink.write_signal("r", "p", ProbeSignal(metadata={"prompt": "secret"}))
        sink.close()
        assert (seen, endpoint.requests, sink.counts) == (["[REDACTED]"], [], WebhookCounts())


def test_a_redaction_that_fails_lets_nothing_out(letters: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(record: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError(f"cannot clean {record}")

    with serving() as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters, redact=fail) as sink:
        sink.write_signal("r", "p", ProbeSignal(metadata={"word": "hush"}))
        sink.close()
        assert not endpoint.requests
    assert sink.redaction_error_count == 1
    assert "hush" not in caplog.text
    assert not letters.exists()


def test_dead_letters_hold_what_was_redacted_as_such(letters: Path) -> None:
    with serving(Reply(400)) as endpoint, WebhookLogSink(endpoint.url, dead_letter_path=letters) as sink:
        sink.write_signal("r", "p", ProbeSignal(metadata={"prompt": "hush"}))
    assert b"hush" not in letters.read_bytes()
    assert letters.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("reply", [Reply(400), Reply(302, {"Location": "/x"}), Reply(is_reset=True), None])
def test_secrets_of_the_url_are_in_no_log(reply: Reply | None, letters: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(default=reply or Reply(500)) as endpoint:
        url = endpoint.url.replace("127.0.0.1", "user:passw0rd@127.0.0.1")
        if reply is None:
            url = url.replace(str(endpoint.port), str(closed_port()))
        with WebhookLogSink(url, dead_letter_path=letters, **FAST) as sink:
            write(sink, 1)
        if reply is not None:
            assert endpoint.requests[0][1] == "/hook/s3cret?token=t0ken"
            assert endpoint.requests[0][2]["Authorization"] == "Basic dXNlcjpwYXNzdzByZA=="
    assert "http://127.0.0.1" in caplog.text
    for secret in ("s3cret", "t0ken", "passw0rd", "dXNlcjpw"):
        assert secret not in caplog.text
        assert secret.encode() not in letters.read_bytes()


@pytest.mark.parametrize("is_known", [True, False])
def test_only_an_endpoint_whose_certificate_is_known_gets_records(
    is_known: bool, letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = ROOT / "tests" / "data" / "loopback_certificate.pem"
    # Read by OpenSSL, in place of the system's own certificates.
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate if is_known else letters))
    with serving(certificate=certificate) as endpoint:
        url = f"https://localhost:{endpoint.port}/hook"
        with WebhookLogSink(url, dead_letter_path=letters, **FAST) as sink:
            write(sink, 2)
        assert endpoint.ids() == (ids(2) if is_known else [])
    assert sink.counts.delivered == (2 if is_known else 0)
    assert is_known or {reason for reason, _ in reasons(letters)} == {"SSLError"}


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///etc/passwd", "got scheme 'file'"),
        ("ftp://example.com/x", "got scheme 'ftp'"),
        ("htps://example.com", "did you mean 'https'"),
        ("example.com/hook", "https://"),
        ("", "https://"),
        ("http://", "host"),
        ("http://example.com/a b", "blanks"),
        ("http://example.com/a\nb", "blanks"),
        ("http://[::1", "URL"),
        ("http://example.com:99999/", "URL"),
    ],
)
def test_a_url_that_cannot_be_posted_to_is_refused(url: str, words: str, letters: Path) -> None:
    with pytest.raises(ProbingValueError, match="`url`") as refused:
        WebhookLogSink(url, dead_letter_path=letters)
    assert words in str(refused.value)


def test_a_url_that_is_refused_is_not_quoted(letters: Path) -> None:
    for url in ("ftp://user:s3cret@example.com/t0ken", "http://example.com:99999/t0ken?s3cret"):
        with pytest.raises(ProbingValueError) as refused:
            WebhookLogSink(url, dead_letter_path=letters)
        assert "s3cret" not in str(refused.value)
        assert "t0ken" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_retries": -1}, ProbingValueError),
        ({"max_retries": True}, ProbingTypeError),
        ({"max_retries": 1.0}, ProbingTypeError),
        ({"backoff_base": -0.1}, ProbingValueError),
        ({"backoff_base": float("nan")}, ProbingValueError),
        ({"backoff_base": "1"}, ProbingTypeError),
        ({"request_timeout": 0}, ProbingValueError),
        ({"request_timeout": float("inf")}, ProbingValueError),
        ({"request_timeout": True}, ProbingTypeError),
        ({"queue_maxsize": 0}, ProbingValueError),
        ({"queue_maxsize": None}, ProbingTypeError),
        ({"post_fn": "post"}, ProbingTypeError),
        ({"redact": "keys"}, ProbingTypeError),
        ({"dead_letter_path": "/nowhere/dead.ndjson"}, FileSinkNotFoundError),
    ],
)
def test_an_argument_out_of_range_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments)) if error is not FileSinkNotFoundError else "/nowhere"):
        WebhookLogSink("https://example.com/hook", **arguments)


def test_a_url_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ProbingTypeError, match="`url`"):
        WebhookLogSink(b"https://example.com")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://example.com/hook", True),
        ("http://10.0.0.1/hook", True),
        ("https://example.com/hook", False),
        ("http://localhost:80/", False),
        ("http://127.9.9.9/", False),
        ("http://[::1]:8080/", False),
    ],
)
def test_a_url_in_the_clear_is_warned_of_once(url: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    WebhookLogSink(url).close()
    assert caplog.text.count("in the clear") == warns


# ---- the dead-letter file -------------------------------------------------------------------------------------------


def test_dead_letters_lie_in_the_state_folder_by_default(state_folder: Path) -> None:
    with serving(default=Reply(400)) as endpoint, WebhookLogSink(endpoint.url) as sink:
        assert not state_folder.exists()
        write(sink, 1)
    assert sink.dead_letter_path == state_folder / "undercurrent" / "webhook-dead-letters.ndjson"
    assert reasons(sink.dead_letter_path) == [("http_400", 1)]
    assert sink.dead_letter_path.parent.stat().st_mode & 0o777 == 0o700


def test_a_relative_state_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    sink = WebhookLogSink("https://example.com")
    assert sink.dead_letter_path == tmp_path / ".local/state/undercurrent/webhook-dead-letters.ndjson"


def test_a_dead_letter_that_cannot_be_written_is_counted_as_lost(
    state_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state_folder.write_text("a file where the folder should be")
    with serving(Reply(400)) as endpoint, WebhookLogSink(endpoint.url) as sink:
        write(sink, 2)
        sink.close()
        assert endpoint.ids() == ids(2)
    assert sink.counts == WebhookCounts(accepted=2, delivered=1, lost=1)
    assert "a dead letter is lost" in caplog.text
    assert "0.75" not in caplog.text


def test_a_record_of_which_redaction_left_nothing_is_still_a_dead_letter(letters: Path) -> None:
    sink = WebhookLogSink("https://example.com", dead_letter_path=letters, redact=lambda record: {})
    sink.close()
    write(sink, 1)
    assert records_of(letters) == [{"dead_letter": {"reason": "closed", "attempts": 0}}]
