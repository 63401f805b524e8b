"""Records on their way to an endpoint: a bounded queue, one sender thread, attempts, dead letters, counts.

The thread `undercurrent-sinks-webhook` is a daemon, since an interpreter that ends must not wait for an endpoint; what
it has not sent by then is written to the dead-letter file by an exit hook, so that it owns no data that ends with it.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import random
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from undercurrent.sinks.dead_letters import DeadLetterFile
from undercurrent.sinks.line_file import FileSinkError

__all__ = ["Answer", "Outbox", "Poster", "WebhookCounts"]

_logger = logging.getLogger("undercurrent.sinks.webhook_sink")

_QUEUE_BYTES_MAX = 64 * 1024 * 1024
_BACKOFF_S_MAX = 300.0
# An endpoint that works answers within this; a record whose answer is still out is better written twice than lost.
_EXIT_GRACE_S = 0.5
_SAY_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one attempt."""

    is_delivered: bool
    is_retryable: bool = False
    reason: str = ""
    """Why it was not delivered, e.g. `http_400`, `redirect`, or the class of an error."""
    retry_after_s: float = 0.0
    """How long the endpoint asks to be left alone."""


class Poster(Protocol):
    """What brings one record to an endpoint; called by one thread at a time."""

    def post(self, body: bytes) -> Answer:
        """Tries once; an error it raises is an answer that never came, and the attempt is repeated."""

    def renew(self) -> None:
        """Forgets connections that belong to the parent of a forked process."""

    def close(self) -> None:
        """Gives back what it holds; `post` may be called again."""


@dataclass(frozen=True, slots=True)
class WebhookCounts:
    """What became of the records of a `WebhookLogSink` in this process.

    `accepted = delivered + dead_lettered + lost + queue_depth`, whenever no record is just being written to the file.
    """

    accepted: int = 0
    """Records that were taken."""
    delivered: int = 0
    """Records the endpoint answered with 2xx."""
    retried: int = 0
    """Attempts beyond the first, over all records."""
    dead_lettered: int = 0
    """Records written to the dead-letter file."""
    dropped: int = 0
    """Records that met a full queue and were not taken."""
    lost: int = 0
    """Records that could be neither delivered nor written to the dead-letter file."""
    queue_depth: int = 0
    """Records that wait or are being sent."""


class Outbox:
    """Sends records one after the other, in order. Owns its thread, which the first record starts.

    Thread-safe. A child of fork has an empty outbox with counts of its own: what waits in the parent is the parent's.
    """

    def __init__(
        self,
        poster: Poster,
        dead_letters: DeadLetterFile,
        *,
        retries_max: int,
        backoff_base_s: float,
        records_max: int,
        endpoint_name: str,
    ) -> None:
        self._poster = poster
        self._dead_letters = dead_letters
        self._retries_max = retries_max
        self._backoff_base_s = backoff_base_s
        self._records_max = records_max
        self._endpoint_name = endpoint_name
        self._start_over()
        _remember(self)

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        """Guards every field below."""
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._in_hand: bytes | None = None
        """The record the sender works on; None as well when it was taken from it."""
        self._attempts = 0
        """How often that record was tried."""
        self._counts = WebhookCounts()
        self._is_closed = False
        self._said_at_s: dict[str, float] = {}
        self._given_up = threading.Event()
        self._thread: threading.Thread | None = None

    def renew(self) -> None:
        """Forgets what is the parent's; called in a child of fork."""
        is_closed = self._is_closed
        self._dead_letters.renew()
        self._poster.renew()
        self._start_over()
        self._is_closed = is_closed

    def counts(self) -> WebhookCounts:
        """The counts as they are now."""
        with self._changed:
            return replace(self._counts, queue_depth=len(self._waiting) + (self._in_hand is not None))

    def put(self, record: bytes) -> None:
        """Takes a record for sending. A full queue drops it, counted; after `close` it is a dead letter at once."""
        with self._changed:
            is_closed = self._is_closed
            is_full = len(self._waiting) >= self._records_max or self._waiting_bytes + len(record) > _QUEUE_BYTES_MAX
            is_dropped = is_full and not is_closed
            self._count(**({"dropped": 1} if is_dropped else {"accepted": 1}))
            if not is_full and not is_closed:
                self._start_thread()
                self._waiting.append(record)
                self._waiting_bytes += len(record)
                self._changed.notify_all()
        if is_closed:
            self._bury([record], "closed", 0)
        elif is_dropped and self._may_say("full"):
            _logger.warning(
                "webhook %s: the queue of %d records is full; %d were dropped so far (said once a minute)",
                self._endpoint_name,
                self._records_max,
                self._counts.dropped,
            )

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="undercurrent-sinks-webhook", daemon=True)
            self._thread.start()

    def _count(self, **more: int) -> None:
        now = {name: getattr(self._counts, name) + count for name, count in more.items()}
        self._counts = replace(self._counts, **now)

    def _may_say(self, what: str) -> bool:
        """Whether a log line of this kind is due; an endpoint that is down would else fill the log."""
        now = time.monotonic()
        if now - self._said_at_s.get(what, -math.inf) < _SAY_AGAIN_S:
            return False
        self._said_at_s[what] = now
        return True

    # ---- the end ---------------------------------------------------------------------------------------------------

    def drain(self, deadline: float) -> bool:
        """Waits until nothing waits or is being sent; False when `deadline` (monotonic) passed first."""
        with self._changed:
            while self._waiting or self._in_hand is not None:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    return False
        return True

    def close(self, deadline: float) -> None:
        """Takes no more, sends until `deadline` (monotonic), and writes what is left to the dead-letter file."""
        self.retire()
        if not self.drain(deadline):
            self._give_up("closed")
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
        if thread is None or not thread.is_alive():
            self._poster.close()
        self._dead_letters.close()

    def retire(self) -> None:
        """Takes no more; the thread ends behind what waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def end_with_interpreter(self) -> None:
        """Writes what waits to the dead-letter file at once, and what is being sent unless its answer is there soon."""
        self.retire()
        self._given_up.set()
        self._bury(self._take_waiting(), "interpreter_exit", 0)
        self.drain(time.monotonic() + _EXIT_GRACE_S)
        self._give_up("interpreter_exit")

    def _give_up(self, reason: str) -> None:
        self._given_up.set()
        with self._changed:
            in_hand, self._in_hand = self._in_hand, None
            attempts = self._attempts
        if in_hand is not None:
            self._bury([in_hand], reason, attempts)
        self._bury(self._take_waiting(), reason, 0)

    def _take_waiting(self) -> list[bytes]:
        with self._changed:
            waiting = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            return waiting

    # ---- the sender's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:  # ends behind the last record of a closed outbox
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                record = self._in_hand = self._waiting.popleft()
                self._attempts = 0
                self._waiting_bytes -= len(record)
            self._settle(record, self._send(record))

    def _send(self, record: bytes) -> Answer:
        while True:
            self._attempts += 1
            answer = self._attempt(record)
            if answer.is_delivered or not answer.is_retryable or self._attempts > self._retries_max:
                return answer
            # Full jitter: senders that failed together do not come back together.
            exponent = min(self._attempts - 1, 32)
            delay_s = random.uniform(0.0, min(self._backoff_base_s * 2**exponent, _BACKOFF_S_MAX))
            if self._given_up.wait(max(delay_s, answer.retry_after_s)):
                return answer
            with self._changed:
                self._count(retried=1)

    def _attempt(self, record: bytes) -> Answer:
        try:
            return self._poster.post(record)
        except BaseException as error:
            # Also `SystemExit`, which would end this thread without a word. The error's own words may quote what is
            # secret: a token, a record.
            return Answer(is_delivered=False, is_retryable=True, reason=type(error).__name__)

    def _settle(self, record: bytes, answer: Answer) -> None:
        with self._changed:
            if self._in_hand is not record:
                return  # taken away meanwhile, and written by who took it
            if answer.is_delivered:
                self._in_hand = None
                self._count(delivered=1)
                self._changed.notify_all()
                return
        if self._may_say("undelivered"):
            _logger.warning(
                "webhook %s: a record was not delivered in %d attempts (%s); such go to %r (said once a minute)",
                self._endpoint_name,
                self._attempts,
                answer.reason,
                str(self._dead_letters.path),
            )
        # Still in hand while it is written, so that `drain` and the exit do not overtake it; a record that is taken
        # away just now is in the file twice, never not at all.
        self._bury([record], answer.reason, self._attempts, is_in_hand=True)

    def _bury(self, records: list[bytes], reason: str, attempts: int, *, is_in_hand: bool = False) -> None:
        for record in records:
            try:
                self._dead_letters.write(record, reason=reason, attempts=attempts)
                outcome = {"dead_lettered": 1}
            except FileSinkError as error:
                outcome = {"lost": 1}
                if self._may_say("lost"):
                    _logger.error("webhook %s: a dead letter is lost: %s", self._endpoint_name, error)
            with self._changed:
                if is_in_hand:
                    if self._in_hand is not record:
                        continue
                    self._in_hand = None
                self._count(**outcome)
                self._changed.notify_all()


_living: weakref.WeakSet[Outbox] = weakref.WeakSet()
_is_watched = False


def _remember(outbox: Outbox) -> None:
    global _is_watched
    _living.add(outbox)
    if not _is_watched:
        _is_watched = True
        atexit.register(_end_all)
        os.register_at_fork(after_in_child=_renew_all)


def _end_all() -> None:
    for outbox in list(_living):
        outbox.end_with_interpreter()


def _renew_all() -> None:
    """A lock that a thread of the parent held would stay held in the child for ever, and no thread is there to send."""
    for outbox in list(_living):
        outbox.renew()
