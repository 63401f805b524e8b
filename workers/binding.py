"""The engine's end of one async binding: `accept` copies records into the ring, the rest asks for the verdict.

`accept` runs on any engine thread; completion comes from the supervisor's thread (or the relay's, after the sinks).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undercurrent.core import Coverage, ProbeResult
from undercurrent.errors import RingError, UnsupportedPayloadError, WorkerError
from undercurrent.ipc import ProducerRing
from undercurrent.ipc.layout import CLOSED, CORRUPT, FULL, NO_SLOT, OK, TOO_LARGE, UNSUPPORTED
from undercurrent.spec import ActivationRecord, OverflowPolicy
from undercurrent.workers.frames import OPAQUE_KIND_MIN, decode_value, describe, encode_opaque
from undercurrent.workers.plans import BindingPlan, BindingStatistics

if TYPE_CHECKING:
    from undercurrent.workers.lane import Lane

_logger = logging.getLogger("undercurrent.workers")

_REFUSALS = {NO_SLOT: "no_memory", TOO_LARGE: "too_large", UNSUPPORTED: "unsupported"}
_ROOM_SLICE_S = 1.0


class RowTarget(NamedTuple):
    """Where rows of one binding go."""

    lane: Lane | None
    """None for a binding that blocks when it is full: its rows go one by one, by `AsyncBinding.accept`."""
    ring: ProducerRing


class AsyncBinding:
    """One point of one request, served by a worker. Made by `Supervisor.open_binding` only."""

    reaches_sinks = True
    """Whether the supervisor hands the result to the sink objects of this process."""

    # What most bindings never change stands here, as each request makes several.
    point_id = 0
    context_data = b""
    is_ending = False
    is_abandoned = False
    is_finished = False
    drain_until: float | None = None
    worker_losses = 0
    last_word_interrupts: int | None = None
    """None, or the ring's count of interruptions when its last word was asked for."""
    on_settled: Callable[[], None] | None = None
    """Called once, on any thread, when the ring's counters can change no more."""
    _answer: bytes | ProbeResult | None = None
    _result: ProbeResult | None = None
    _final_statistics: BindingStatistics | None = None
    _earlier_counters: tuple[int, ...] = (0, 0, 0, 0)
    _dead_user: tuple[int, ...] = ()
    _start_answer: threading.Event | None = None  # made when somebody wants to know
    _start_error: BaseException | None = None
    _count_forked = 0
    _count_unserved = 0  # records that came after the ring was closed; approximate under several threads

    def __init__(self, binding_id: int, plan: BindingPlan, ring: ProducerRing, lane: Lane, worker_key: bytes) -> None:
        self.binding_id = binding_id
        self.plan = plan
        self.lane = lane
        self.worker_key = worker_key
        self.ring = ring
        self.since = time.time()
        self.reasons: list[str] = []
        self._pid = os.getpid()
        self._publish = ring.publish
        self._publish_opaque = ring.publish_opaque
        self._done = threading.Lock()
        self._done.acquire()
        self._logged: set[str] = set()
        is_blocking = plan.overflow_policy is OverflowPolicy.BLOCK
        self.row_target = RowTarget(None if is_blocking else lane, ring)
        if is_blocking:
            self._turn = threading.Lock()  # one route() at a time waits, the others queue behind it
            self.accept = self._accept_in_turn  # type: ignore[method-assign]

    # ---- the hot path --------------------------------------------------------------------------------------------

    def accept(self, record: ActivationRecord) -> None:
        """Copies `record` into the ring, or counts why not; never raises for the ring's sake and never waits."""
        try:
            kind, source = describe(record.tensor)
        except UnsupportedPayloadError as error:
            self._log_once("unsupported", str(error))
            self._accept_slowly(UNSUPPORTED, record)
            return
        # Written out instead of calling `_try_once`: this runs once per token and point.
        publish = self._publish if kind < OPAQUE_KIND_MIN else self._publish_opaque
        flags = 1 if record.is_generated else 0
        status = publish(source, kind, record.layer, record.token_pos, flags, record.timestamp)
        if status != OK and status != FULL:
            self._accept_slowly(status, record)

    def _try_once(self, record: ActivationRecord) -> int:
        """One attempt; the answer is the ring's, or UNSUPPORTED."""
        try:
            kind, source = describe(record.tensor)
        except UnsupportedPayloadError as error:
            self._log_once("unsupported", str(error))
            return UNSUPPORTED
        publish = self._publish if kind < OPAQUE_KIND_MIN else self._publish_opaque
        return publish(source, kind, record.layer, record.token_pos, 1 if record.is_generated else 0, record.timestamp)

    def _accept_slowly(self, status: int, record: ActivationRecord) -> int:
        """Deals with every answer of the ring but OK and FULL; returns the last one."""
        if status == UNSUPPORTED:
            status = self._publish_encoded(record)
            if status in (OK, FULL):
                return status
        if status == CLOSED:
            self._note_closed()
        elif status == CORRUPT:
            self._log_once("corrupt", "its ring is corrupt and was closed; later records are not seen")
            self._count_unserved += 1
        else:
            reason = _REFUSALS.get(status, "unsupported")
            self._refuse(reason, f"a record of type {type(record.tensor).__name__} was not taken")
        return status

    def _publish_encoded(self, record: ActivationRecord) -> int:
        """For tensors the ring cannot read itself: their bytes, made here."""
        try:
            kind, data = encode_opaque(record.tensor)
        except UnsupportedPayloadError as error:
            self._log_once("unsupported", str(error))
            return UNSUPPORTED
        return self.ring.publish_opaque(
            data, kind, record.layer, record.token_pos, 1 if record.is_generated else 0, record.timestamp
        )

    def _accept_in_turn(self, record: ActivationRecord) -> None:
        """`accept` under `block`: waits for room while a worker lives or is being restarted."""
        with self._turn:
            deadline = None if self.plan.block_timeout_s is None else time.monotonic() + self.plan.block_timeout_s
            while True:
                status = self._try_once(record)
                if status not in (OK, FULL):
                    status = self._accept_slowly(status, record)
                if status != FULL:
                    return
                remaining_s = _ROOM_SLICE_S if deadline is None else min(deadline - time.monotonic(), _ROOM_SLICE_S)
                if remaining_s <= 0:
                    self._refuse("block_timeout", f"no room within {self.plan.block_timeout_s} s")
                    return
                self.ring.wait_room(remaining_s)

    def _refuse(self, reason: str, why: str) -> None:
        self.ring.count_refused(reason)
        self._log_once(reason, why)

    def _note_closed(self) -> None:
        if not self.is_own_process:
            self._count_forked += 1
            self._log_once("fork", "this process is a fork of the router's; its async records are counted, not seen")
        else:
            self._count_unserved += 1

    def _log_once(self, reason: str, why: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            _logger.warning(
                "async point %r of request %r: %s (%s; said once)",
                self.plan.point.name,
                self.plan.request_id,
                why,
                reason,
            )

    # ---- the end -------------------------------------------------------------------------------------------------

    @property
    def is_own_process(self) -> bool:
        """False in a fork of the process that opened the binding."""
        return os.getpid() == self._pid

    def end(self, drain_until: float | None = None) -> None:
        """Closes the ring and asks the worker for the result; returns at once.

        `drain_until` (monotonic) is when the caller wants an answer: shortly before it, the worker stops looking at
        what waits and gives its verdict.
        """
        if self.is_own_process:
            self.lane.end_bindings([self], drain_until)

    def abandon(self) -> None:
        """Rolls the binding back: no result is asked for and none reaches a sink."""
        if self.is_own_process:
            self.lane.drop_binding(self)

    @property
    def is_settled(self) -> bool:
        """Whether the ring's counters can change no more."""
        return self._final_statistics is not None

    def wait_started(self, deadline: float) -> None:
        """Waits until the worker built the probe; raises what its constructor or `on_start` raised.

        Raises:
            WorkerError: no answer before `deadline` (monotonic), or the binding ended first.
        """
        answer = self._start_answer = self._start_answer or threading.Event()
        if not self.lane.confirm_binding(self):
            self._note_ended_early(answer)
        if not answer.wait(max(0.0, deadline - time.monotonic())):
            raise WorkerError(
                f"the probe of async point {self.plan.point.name!r} was expected to start before the deadline, its "
                "worker has not answered; give `wait_s` more time or call `Router.prewarm` first"
            )
        if self._start_error is not None:
            raise self._start_error

    def wait_result(self, deadline: float) -> ProbeResult:
        """Returns the result; after `deadline` (monotonic) one without a verdict and with reason `drain_timeout`."""
        if not self.is_own_process:
            return self._result_without_verdict("unseen")
        if self.last_word_interrupts is not None and self.lane.last_words is not None:
            self.lane.last_words.wait(self, deadline)
        if not self._done.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return self._result_without_verdict("drain_timeout")
        self._done.release()
        return self.result()

    def statistics(self) -> BindingStatistics:
        """The counters now, read from shared memory; after the end, the last ones."""
        statistics = self._final_statistics or self._read_statistics()
        late = self._count_unserved
        if not late:
            return statistics
        return msgspec.structs.replace(
            statistics, produced=statistics.produced + late, dropped=statistics.dropped + late, late=late
        )

    def _read_statistics(self) -> BindingStatistics:
        counts = self.ring.statistics()
        activations, errors, latency_ns, signals = self.add_to_earlier(counts.user)
        return BindingStatistics(
            produced=counts.produced,
            consumed=counts.consumed,
            dropped=counts.dropped,
            waiting=counts.waiting,
            in_hand=counts.in_hand,
            lost=counts.lost,
            activations=activations,
            errors=errors,
            latency_s_total=latency_ns / 1e9,
            restarts=self.worker_losses,
            signals=signals,
            dropped_oldest=counts.dropped_oldest,
            dropped_newest=counts.dropped_newest,
            no_memory=counts.no_memory,
            unsupported=counts.unsupported,
            too_large=counts.too_large,
            block_timeout=counts.block_timeout,
        )

    @property
    def call_limit_s(self) -> float:
        """How long the call of the probe that runs now may take before its worker is ended."""
        return self.plan.probe_timeout_s

    @property
    def awaits_start(self) -> bool:
        """Whether somebody waits for the worker's answer to `ConfirmStart`."""
        return self._start_answer is not None and not self._start_answer.is_set()

    # ---- called by the lane, on the supervisor's thread ------------------------------------------------------------

    def add_reason(self, reason: str) -> None:
        """Adds a coverage reason once."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def note_start(self, error: BaseException | None) -> None:
        """The worker's answer to `wait_started`."""
        self._start_error = error
        if self._start_answer is not None:
            self._start_answer.set()

    def _note_ended_early(self, answer: threading.Event) -> None:
        if not answer.is_set():
            self._start_error = WorkerError(f"async point {self.plan.point.name!r} ended before its probe had started")
            answer.set()

    def note_loss(self, reason: str) -> None:
        """The worker died: what it had counted is kept, the next one counts from zero."""
        self.worker_losses += 1
        self.add_reason(reason)
        user = self.ring.statistics().user
        self._earlier_counters = self.add_to_earlier(user)
        self._dead_user = user
        self.ring.waive_last_word()
        self._stop_last_word()

    def _stop_last_word(self) -> None:
        """Whoever waits for it goes on to wait for `complete`."""
        if self.last_word_interrupts is not None:
            self.last_word_interrupts = None
            self.ring.interrupt_answer()

    def add_to_earlier(self, user: tuple[int, ...]) -> tuple[int, ...]:
        """What all workers of this binding counted; the words of a dead one stand until its successor clears them."""
        if user == self._dead_user:
            return self._earlier_counters
        return tuple(map(int.__add__, self._earlier_counters, user))

    def keep_answer(self, result: bytes | ProbeResult | None) -> None:
        """Keeps the worker's last word, or None where no worker will give one; the ring stays until `let_go`."""
        self._answer = result
        self.is_finished = True
        self._stop_last_word()
        if self._start_answer is not None:
            self._note_ended_early(self._start_answer)
        if not self.is_ending:
            self.ring.close()

    def let_go(self, *, is_lane_closing: bool = False) -> None:
        """Keeps the last counters and returns the ring's memory.

        A lane that is closing takes its rings with it: a worker that did not leave in time may still hold them.
        """
        if self._final_statistics is not None:
            return
        self._final_statistics = self._read_statistics()
        self.lane.note_settled(self._final_statistics)
        if not is_lane_closing:
            try:
                self.ring.release()
            except RingError:
                # Our mistake, and the result is worth more than the ring's memory, which returns with the lane.
                _logger.exception("ring of request %r was not let go", self.plan.request_id)
        on_settled, self.on_settled = self.on_settled, None
        if on_settled is not None:
            on_settled()

    def complete(self) -> None:
        """Lets `wait_result` return."""
        if self._done.locked():
            self._done.release()

    def result(self) -> ProbeResult:
        """The result of a finished binding, decoded once."""
        if self._result is None:
            answer, self._answer = self._answer, None
            self._result = self._result_without_verdict() if answer is None else self._read_answer(answer)
        return self._result

    def _read_answer(self, answer: bytes | ProbeResult) -> ProbeResult:
        result: ProbeResult = decode_value(answer, pickle_allowed=True) if isinstance(answer, bytes) else answer
        if self._count_unserved:
            # Records came after the ring was closed for them, for instance from another thread: the worker cannot know.
            said = Coverage.from_dict(result.metadata["coverage"])
            coverage = Coverage.settle(
                routed=said.routed + self._count_unserved,
                seen=said.seen,
                dropped=said.dropped + self._count_unserved,
                errors=said.errors,
                lost=said.lost,
                restarts=said.restarts,
                reasons=[*said.reasons, "unseen"],
            )
            result.metadata["coverage"] = coverage.to_dict()
        return result

    def _result_without_verdict(self, *more_reasons: str) -> ProbeResult:
        counts = self.statistics()
        reasons = [*self.reasons, *(reason for reason in more_reasons if reason not in self.reasons)]
        coverage = Coverage.settle(
            routed=counts.produced + self._count_forked,
            seen=counts.consumed,
            dropped=counts.dropped + counts.waiting,
            errors=counts.errors,
            lost=counts.lost + counts.in_hand,
            restarts=self.worker_losses,
            reasons=reasons or ["unseen"],
        )
        metadata = {"coverage": coverage.to_dict()}
        return ProbeResult(self.plan.request_id, self.plan.point.name, None, [], metadata)
