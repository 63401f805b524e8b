"""`WebhookLogSink`: one POST of JSON per signal and result, from a thread of its own."""

from __future__ import annotations

import logging
import math
import os
import time
import urllib.parse
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from undercurrent.core import ProbeResult, ProbeSignal
from undercurrent.errors import ProbingTimeoutError, ProbingTypeError, ProbingValueError
from undercurrent.sinks.dead_letters import DeadLetterFile
from undercurrent.sinks.jsonable import to_jsonable
from undercurrent.sinks.records import ResultRecord, SignalRecord, encode_line, result_fields, signal_fields
from undercurrent.sinks.redaction import DEFAULT_PROMPT_TEXT_KEYS, RedactFn, chain, redact_keys
from undercurrent.sinks.sink import LogSink
from undercurrent.sinks.webhook_outbox import Answer, Outbox, Poster, WebhookCounts

__all__ = ["WebhookLogSink"]

_logger = logging.getLogger("undercurrent.sinks.webhook_sink")

PostFn: TypeAlias = Callable[[str, dict[str, Any]], Any]

_DRAIN_TIMEOUT_S = 30.0


class WebhookLogSink(LogSink):
    """Posts each signal and result to `url` as a JSON object, in order, over a connection that is kept.

    The methods `write_*` redact, encode and return; a thread of this process sends. Records of all bindings take one
    queue and one connection, so the sink is an object and not a handle: the relay thread of the process that attached
    it calls it. An answer other than 2xx is no delivery and no redirect is followed. 408, 425, 429, 5xx, a connection
    that fails and an answer that does not come are tried again up to `max_retries` times, after a random part of
    `backoff_base * 2**n` seconds and not before the endpoint's `Retry-After`; any other status is final. What is not
    delivered is appended to the dead-letter file with the reason.

    `close` sends what waits. At the end of an interpreter that did not close it, what waits is written to the
    dead-letter file at once. A child of fork sends its own records and none of the parent's.

    Args:
        url: http or https; nothing of it but scheme and host is ever logged.
        max_retries: attempts after the first.
        backoff_base: seconds.
        request_timeout: seconds for one attempt.
        dead_letter_path: the file, its folder must exist; None takes `webhook-dead-letters.ndjson` in the folder
            `undercurrent` of the XDG state folder.
        queue_maxsize: records that may wait; one that meets a full queue is dropped and counted.
        post_fn: replaces the POST: the sender's thread calls `post_fn(url, record)`, and again if it raises.
        redact: applied after the redaction of prompt text.
        include_prompt_text: sends the values of `DEFAULT_PROMPT_TEXT_KEYS`, which are else replaced at any depth and in
            any case of letters.

    Raises:
        ProbingTypeError: an argument is of the wrong type.
        ProbingValueError: `url` is no http or https URL, or a number is out of range.
        FileSinkError: `dead_letter_path` cannot be appended to.

    >>> posted = []
    >>> with WebhookLogSink("https://example.com/hook", post_fn=lambda url, record: posted.append(record)) as sink:
    ...     sink.write_signal("req-1", "monitor", ProbeSignal(metadata={"score": 0.25, "prompt": "secret"}))
    >>> posted[0]["payload"]["metadata"]
    {'score': 0.25, 'prompt': '[REDACTED]'}
    """

    def __init__(
        self,
        url: str,
        *,
        max_retries: int = 2,
        backoff_base: float = 0.1,
        request_timeout: float = 5.0,
        dead_letter_path: str | os.PathLike[str] | None = None,
        queue_maxsize: int = 1000,
        post_fn: PostFn | None = None,
        redact: RedactFn | None = None,
        include_prompt_text: bool = False,
    ) -> None:
        super().__init__(redact=redact)
        self._redact = _redaction(redact, includes_prompt_text=include_prompt_text)
        _check_count("max_retries", max_retries, least=0)
        _check_count("queue_maxsize", queue_maxsize, least=1)
        _check_seconds("backoff_base", backoff_base, is_zero_allowed=True)
        _check_seconds("request_timeout", request_timeout)
        name = _without_secrets(url)
        self._dead_letters = DeadLetterFile(dead_letter_path)
        self._outbox = Outbox(
            _make_poster(url, post_fn, request_timeout, name),
            self._dead_letters,
            retries_max=max_retries,
            backoff_base_s=backoff_base,
            records_max=queue_maxsize,
            endpoint_name=name,
        )
        # A sink nobody holds can be written to by nobody: its thread sends what waits and ends.
        weakref.finalize(self, self._outbox.retire).atexit = False
        _logger.info(
            "webhook %s: values of prompt-text keys are %s; a redaction of one's own: %s",
            name,
            "sent" if include_prompt_text else "redacted",
            "none" if redact is None else "yes",
        )

    @property
    def counts(self) -> WebhookCounts:
        """What became of the records so far, in this process."""
        return self._outbox.counts()

    @property
    def dropped_count(self) -> int:
        """Records that met a full queue."""
        return self.counts.dropped

    @property
    def dead_letter_path(self) -> Path:
        """The file that takes what is not delivered."""
        return self._dead_letters.path

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        """Takes one signal; raises nothing."""
        self._put(signal_fields(request_id, extraction_point_name, signal))

    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
        """Takes one result; raises nothing."""
        self._put(result_fields(request_id, extraction_point_name, result))

    def write_signal_record(self, record: SignalRecord) -> None:
        """Takes one signal with what is known of its activation."""
        known = (record.sequence, record.layer, record.position, record.model)
        self._put(signal_fields(record.request_id, record.extraction_point_name, record.signal, *known))

    def write_result_record(self, record: ResultRecord) -> None:
        """Takes one result with what is known of its request."""
        self._put(result_fields(record.request_id, record.extraction_point_name, record.result, record.model))

    def drain(self, timeout: float | None = None) -> None:
        """Returns when every record taken so far is delivered or a dead letter; None waits for 30 s at most.

        Raises:
            ProbingTimeoutError: `timeout` seconds passed first; the records go on being sent.
        """
        limit_s = _DRAIN_TIMEOUT_S if timeout is None else timeout
        if not self._outbox.drain(time.monotonic() + limit_s):
            raise ProbingTimeoutError(
                f"records of the webhook sink were still unsent after {limit_s} s: {self.counts.queue_depth};"
                " pass a longer `timeout`, or `close()` to write them to the dead-letter file"
            )

    def close(self, timeout: float | None = None) -> None:
        """Sends what waits, for `timeout` seconds at most (None: 30), and writes the rest to the dead-letter file.

        Idempotent. A record written later is a dead letter at once.
        """
        self._outbox.close(time.monotonic() + (_DRAIN_TIMEOUT_S if timeout is None else timeout))

    def _put(self, record: dict[str, Any]) -> None:
        # Before the queue, so that nothing that must not leave the process waits in it or meets the dead-letter file.
        redacted = self._apply_redaction(record)
        if redacted is not None:
            self._outbox.put(encode_line(to_jsonable(redacted)).rstrip())


class _PostFunction:
    """Somebody's own way to an endpoint: any return is a delivery, any error is tried again."""

    def __init__(self, url: str, post_fn: PostFn) -> None:
        self._url = url
        self._post_fn = post_fn

    def post(self, body: bytes) -> Answer:
        """Calls it with a record of its own."""
        self._post_fn(self._url, msgspec.json.decode(body))
        return Answer(is_delivered=True)

    def renew(self) -> None:
        """Its connections are its own business."""

    def close(self) -> None:
        """It has no end."""


def _make_poster(url: str, post_fn: PostFn | None, request_timeout: float, name: str) -> Poster:
    if post_fn is not None:
        if not callable(post_fn):
            raise ProbingTypeError(f"`post_fn` must be a function of a URL and a record or None, got {post_fn!r}")
        return _PostFunction(url, post_fn)
    # urllib3 costs as much to import as the rest of this package; only who posts pays for it.
    from undercurrent.sinks.webhook_endpoint import Endpoint

    endpoint = Endpoint(url, request_timeout=request_timeout)
    if endpoint.is_in_clear:
        _logger.warning("webhook %s: records travel in the clear; use https for hosts other than this one", name)
    return endpoint


def _redaction(redact: RedactFn | None, *, includes_prompt_text: bool) -> RedactFn | None:
    if includes_prompt_text:
        return redact
    default = redact_keys(*DEFAULT_PROMPT_TEXT_KEYS, ignore_case=True)
    return default if redact is None else chain(default, redact)


def _without_secrets(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(str(url))
        return f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "<url>"


def _check_count(name: str, value: object, *, least: int) -> None:
    if type(value) is not int:
        raise ProbingTypeError(f"`{name}` must be an int >= {least}, got {value!r}")
    if value < least:
        raise ProbingValueError(f"`{name}` must be >= {least}, got {value}")


def _check_seconds(name: str, value: object, *, is_zero_allowed: bool = False) -> None:
    bound = ">= 0" if is_zero_allowed else "> 0"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ProbingTypeError(f"`{name}` must be a number of seconds {bound}, got {value!r}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not is_zero_allowed):
        raise ProbingValueError(f"`{name}` must be a finite number of seconds {bound}, got {value}")
