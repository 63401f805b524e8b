"""A bounded inline point of one request, as the engine sees it: it asks a guard and waits for the answer."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from undercurrent.core import ProbeResult
from undercurrent.errors import WorkerError
from undercurrent.ipc.layout import CLOSED, CORRUPT, FULL, OK, PEER_DIED, TIMEOUT
from undercurrent.spec import ActivationRecord
from undercurrent.workers.answers import ELSEWHERE, ERROR, NOTHING, decode_answer, decode_error
from undercurrent.workers.binding import AsyncBinding
from undercurrent.workers.references import MalformedValueError

if TYPE_CHECKING:
    from undercurrent.workers.guards import GuardLane

__all__ = ["Ask", "GuardAnswer", "GuardBinding"]

START_LIMIT_S = 10.0
_LARGE_ANSWERS_MAX = 4


class GuardAnswer(msgspec.Struct, frozen=True):
    """What became of one record."""

    signal: Any = None
    """What the probe returned, if it did."""
    reason: str | None = None
    """Why there is none: `timeout`, `exception`, `worker_died`, `not_taken` (the record does not fit the ring) or
    `closed` (this binding has no guard any more)."""
    error_type: str = ""
    error: str = ""


_SILENCE = GuardAnswer()

Ask: TypeAlias = tuple[int, int, float, float]
"""A record on its way, `GuardBinding.take` waits for its answer: its position in the ring, the count of interruptions
before it was sent, when that was and when its answer is due, both monotonic. A bare tuple, made once per record."""


def _read(kind: int, data: bytes) -> GuardAnswer:
    if kind == ERROR:
        error_type, text = decode_error(data)
        return GuardAnswer(reason="exception", error_type=error_type, error=text)
    try:
        return GuardAnswer(decode_answer(kind, data))
    except MalformedValueError as error:
        return GuardAnswer(reason="exception", error_type=type(error).__name__, error=str(error))


class GuardBinding(AsyncBinding):
    """Asks one record at a time: a second thread of the same request waits for its turn, within its own deadline."""

    reaches_sinks = False  # the router tells the sinks of inline points
    lane: GuardLane

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._turn = threading.Lock()
        self.is_start_answered = False
        """Whether the guard has built the probe, or failed to."""
        self._is_started = False
        self._large = threading.Condition()
        self._large_answers: dict[int, tuple[int, bytes]] = {}  # by sequence; guarded by _large

    # The next two are called once per record, with caches that have grown cold: each line not gone through saves time.

    def begin(self, record: ActivationRecord, asked_at: float, deadline: float) -> Ask | GuardAnswer:
        """Sends `record`; `take` must follow on any thread, where it was sent. Nobody else can ask until then.

        `asked_at` is the present moment; both are monotonic.
        """
        turn = self._turn
        if not turn.acquire(False):
            if not turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
                self.note_unasked()
                return GuardAnswer(reason="timeout")
            asked_at = time.monotonic()
        status = CORRUPT
        try:
            ring = self.ring
            ask = ring.next_position, ring.answer_interrupts, asked_at, deadline
            status = self._try_once(record)
            if status != OK and status != FULL:
                status = self._accept_slowly(status, record)
        finally:
            if status != OK and status != FULL:
                turn.release()
        if status in (OK, FULL):
            return ask
        return GuardAnswer(reason="closed" if status == CLOSED else "not_taken")

    def take(self, ask: Ask | GuardAnswer, *, is_alone: bool) -> GuardAnswer:
        """Waits for the answer to what `begin` sent, or returns why that was not sent.

        `is_alone` says that this thread waits for no other guard: this one then runs on its CPU, see `guard_place`.
        """
        if isinstance(ask, GuardAnswer):
            return ask
        sequence, interrupts, asked_at, deadline = ask
        try:
            status, kind, data = self.ring.await_answer(sequence, deadline, interrupts, is_alone)
            if status == OK and kind == ELSEWHERE:
                status, kind, data = self._await_large(ask)
        finally:
            self._turn.release()
        if status == OK:
            self._is_started = True
            return _SILENCE if kind == NOTHING else _read(kind, data)
        if status == TIMEOUT:
            self.lane.note_overdue(self, sequence, asked_at)
            return GuardAnswer(reason="timeout")
        if status in (PEER_DIED, CLOSED):
            return GuardAnswer(reason="worker_died")
        return GuardAnswer(reason="exception", error_type="RingCorruptError", error="the answer cell holds nonsense")

    def _await_large(self, ask: Ask) -> tuple[int, int, bytes]:
        sequence, interrupts, _, deadline = ask
        with self._large:
            self._large.wait_for(
                lambda: sequence in self._large_answers or self.ring.answer_interrupts != interrupts,
                max(0.0, deadline - time.monotonic()),
            )
            found = self._large_answers.get(sequence)
            self._large_answers.clear()
        if found is not None:
            return OK, *found
        is_dead = self.ring.answer_interrupts != interrupts
        return (PEER_DIED if is_dead else TIMEOUT), 0, b""

    # ---- called on the supervisor's thread ---------------------------------------------------------------------------

    def keep_large_answer(self, sequence: int, kind: int, data: bytes) -> None:
        """An answer that no cell can hold has arrived."""
        with self._large:
            if len(self._large_answers) >= _LARGE_ANSWERS_MAX:  # late ones, which nobody waits for
                self._large_answers.clear()
            self._large_answers[sequence] = (kind, data)
            self._large.notify_all()

    def note_start(self, error: BaseException | None) -> None:
        """See `AsyncBinding`."""
        self.is_start_answered = self._is_started = True
        super().note_start(error)

    def note_loss(self, reason: str) -> None:
        """See `AsyncBinding`; ends the wait that runs."""
        self._is_started = False
        super().note_loss(reason)
        self._end_wait()

    def keep_answer(self, result: bytes | ProbeResult | None) -> None:
        """See `AsyncBinding`; ends the wait that runs."""
        super().keep_answer(result)
        self._end_wait()

    def _end_wait(self) -> None:
        self.ring.interrupt_answer()
        with self._large:
            self._large.notify_all()

    def _note_closed(self) -> None:
        self._count_unserved += 1

    def note_unasked(self) -> None:
        """Counts a record that was answered without asking; it is not seen."""
        self._count_unserved += 1

    @property
    def call_limit_s(self) -> float:
        """See `AsyncBinding`. Where the point says nothing, a start or an end may take longer than a record."""
        is_record = self._is_started and not self.is_ending
        if is_record or self.plan.point.probe_timeout_s is not None:
            return self.plan.probe_timeout_s
        return max(self.plan.probe_timeout_s, START_LIMIT_S)

    def wait_running(self, deadline: float) -> None:
        """Waits until the probe has started.

        Raises:
            WorkerError: no guard can be had, or not in time (`is_start_answered` is false).
            BaseException: what the probe's constructor or `on_start` raised (`is_start_answered` is true).
        """
        begun = time.monotonic()
        try:
            self.wait_started(min(deadline, begun + self.call_limit_s))
        except WorkerError:
            if self.is_start_answered or self.is_finished:
                raise
            # A constructor or `on_start` that hangs keeps every request of the point from its guard.
            self.lane.note_overdue(self, 0, begun)
            self.wait_started(deadline)
