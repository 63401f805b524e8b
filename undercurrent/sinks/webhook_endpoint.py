"""One HTTP endpoint: a connection that is kept, and what its answers mean.

Nothing of a URL but scheme, host and port is ever put into words: its path and query are where tokens are.
"""

from __future__ import annotations

import contextlib
import email.utils
import ipaddress
import time
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from undercurrent.errors import ProbingTypeError, ProbingValueError, did_you_mean
from undercurrent.sinks.webhook_outbox import Answer

__all__ = ["Endpoint"]

_SCHEMES = ("http", "https")
_CONNECT_TIMEOUT_S_MAX = 5.0
_BODY_BYTES_MAX = 64 * 1024
_RETRY_AFTER_S_MAX = 3600.0
# 408 Request Timeout, 425 Too Early and 429 Too Many Requests ask to come again; every other 4xx stays what it is.
_RETRYABLE_STATUSES = frozenset({408, 425, 429})


class Endpoint:
    """Posts JSON to one URL over a connection that is kept. Called by one thread at a time.

    No redirect is followed, no proxy of the environment is used, certificates are verified. A user and password in the
    URL become an `Authorization` header.

    Raises:
        ProbingTypeError: `url` is no string.
        ProbingValueError: it is no http or https URL with a host.
    """

    def __init__(self, url: str, *, request_timeout: float) -> None:
        self._url = _parse(url)
        self._request_timeout = request_timeout
        self._headers = {"Content-Type": "application/json", "User-Agent": "undercurrent"}
        if self._url.auth:
            self._headers |= urllib3.util.make_headers(basic_auth=self._url.auth)
        self.renew()

    @property
    def is_in_clear(self) -> bool:
        """Whether what is posted can be read on the way: http, and not to this machine itself."""
        return self._url.scheme == "http" and not _is_loopback(self._url.host or "")

    def renew(self) -> None:
        """Forgets the connection; called in a child of fork, since a connection has one user."""
        is_tls = self._url.scheme == "https"
        pool = urllib3.HTTPSConnectionPool if is_tls else urllib3.HTTPConnectionPool
        self._pool: Any = pool((self._url.host or "").strip("[]"), self._url.port, target=self._url.request_uri)
        self._pool.ConnectionCls = _TargetHTTPSConnection if is_tls else _TargetConnection

    def post(self, body: bytes) -> Answer:
        """Posts `body` and says what the answer means.

        Raises:
            urllib3.exceptions.HTTPError: there was none; its words hold no path or query.
        """
        timeout_s = self._request_timeout
        deadline = time.monotonic() + timeout_s
        response = self._pool.urlopen(
            "POST",
            "/",
            body=body,
            headers=self._headers,
            retries=False,
            redirect=False,
            timeout=urllib3.Timeout(connect=min(timeout_s, _CONNECT_TIMEOUT_S_MAX), read=timeout_s),
            preload_content=False,
            # What an answer says is of no interest; unpacking it would let a few bytes become many.
            decode_content=False,
        )
        _finish(response, deadline)
        return _meaning(response.status, response.headers.get("Retry-After"))

    def close(self) -> None:
        """Closes the connection; `post` opens another."""
        self._pool.close()
        self.renew()


class _TargetConnection(HTTPConnection):
    """Asks for `target` whatever it is told to ask for.

    urllib3 logs what it is told at DEBUG, and quotes it in errors.
    """

    def __init__(self, *arguments: Any, target: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._target = target

    def putrequest(self, method: str, url: str, *arguments: Any, **options: Any) -> None:
        super().putrequest(method, self._target, *arguments, **options)


class _TargetHTTPSConnection(HTTPSConnection):
    """As `_TargetConnection`, over TLS."""

    def __init__(self, *arguments: Any, target: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._target = target

    def putrequest(self, method: str, url: str, *arguments: Any, **options: Any) -> None:
        super().putrequest(method, self._target, *arguments, **options)


def _parse(url: object) -> urllib3.util.Url:
    if not isinstance(url, str):
        raise ProbingTypeError(f"`url` must be a string, got `{type(url).__name__}`")
    try:
        parsed = urllib3.util.parse_url(url)
    except urllib3.exceptions.LocationParseError:
        # Its words quote the URL.
        raise ProbingValueError("`url` must be a URL such as https://example.com/hook, got one that is none") from None
    if parsed.scheme not in _SCHEMES:
        suggestion = did_you_mean(parsed.scheme or "", _SCHEMES)
        raise ProbingValueError(f"`url` must begin with https:// or http://, got scheme {parsed.scheme!r}{suggestion}")
    if not parsed.host or any(character.isspace() or not character.isprintable() for character in url):
        raise ProbingValueError("`url` must name a host and hold no blanks, as https://example.com/hook does")
    return parsed


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _finish(response: Any, deadline: float) -> None:
    """Reads what is left of an answer, so that the connection can be used again; a long or slow one is cut off."""
    with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
        count = 0
        while count <= _BODY_BYTES_MAX and time.monotonic() < deadline:
            chunk = response.read1(_BODY_BYTES_MAX)
            if not chunk:
                response.release_conn()
                return
            count += len(chunk)
    response.close()


def _meaning(status: int, retry_after: str | None) -> Answer:
    if 200 <= status < 300:
        return Answer(is_delivered=True)
    if 300 <= status < 400:
        return Answer(is_delivered=False, reason="redirect")
    is_retryable = status >= 500 or status in _RETRYABLE_STATUSES
    return Answer(
        is_delivered=False,
        is_retryable=is_retryable,
        reason=f"http_{status}",
        retry_after_s=_seconds(retry_after) if is_retryable else 0.0,
    )


def _seconds(retry_after: str | None) -> float:
    """`Retry-After` as seconds from now, which it gives as such or as a date; at most an hour, 0 for nonsense.

    See: RFC 9110, section 10.2.3.
    """
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _RETRY_AFTER_S_MAX)
    try:
        moment = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(0.0, moment - time.time()), _RETRY_AFTER_S_MAX)
