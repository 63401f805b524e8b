"""A bounded inline point of one request: `route()` asks a guard, and answers by policy when no answer comes in time."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from undercurrent.core import Coverage, CoverageReason, ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import WorkerError
from undercurrent.router.breakers import Breaker
from undercurrent.router.defaults import GUARD_START_S
from undercurrent.router.forked import ForkedBinding
from undercurrent.router.inline import signal_record, with_coverage
from undercurrent.router.inline_outlet import InlineOutlet
from undercurrent.router.tally import Tally
from undercurrent.sinks import SignalRecord
from undercurrent.spec import ActivationRecord, ExtractionPoint, InterventionPolicy
from undercurrent.workers.meters import place_of

if TYPE_CHECKING:
    from undercurrent.workers import BindingPlan, BindingStatistics
    from undercurrent.workers.guard_binding import Ask, GuardAnswer, GuardBinding

__all__ = ["BoundedBinding", "ForkedGuard"]

_logger = logging.getLogger("undercurrent.router")


class BoundedBinding:
    """Holds the binding of a guard, the point's breaker, and the policy that answers in the probe's place."""

    row_target = None

    def __init__(
        self,
        *,
        guard: GuardBinding,
        policy: InterventionPolicy,
        breaker: Breaker,
        context: RequestContext,
        outlet: InlineOutlet,
    ) -> None:
        assert policy.timeout_ms is not None, "a bounded policy has a timeout"
        self.guard = guard
        self.point = guard.plan.point
        self.request_id = guard.plan.request_id
        self._policy = policy
        self._timeout_s = policy.timeout_ms / 1000
        self._breaker = breaker
        self._context = context
        self._outlet = outlet
        self._routed = Tally()
        self.signal_tallies: Sequence[Tally] = ()
        """What answers are counted in, by action; see `InlineBinding`."""
        self._fallbacks: Counter[str] = Counter()  # by reason; approximate while several threads route one request

    # ---- before the first record -------------------------------------------------------------------------------------

    def start(self, wait_s: float | None) -> None:
        """Waits until the guard has built the probe.

        Without a guard the request goes on, and the policy answers, unless the caller gave a `wait_s`.

        Raises:
            WorkerError: no guard within `wait_s`.
            BaseException: what the probe's constructor or `on_start` raised.
        """
        if wait_s is None and not self._breaker.is_closed:
            return
        try:
            self.guard.wait_running(time.monotonic() + (GUARD_START_S if wait_s is None else wait_s))
        except WorkerError as error:
            if wait_s is not None or self.guard.is_start_answered:
                raise
            _logger.error("point %r of request %r has no guard: %s", self.point.name, self.request_id, error)
            self._note_failure("not_started")

    # ---- records -----------------------------------------------------------------------------------------------------

    def accept(self, record: ActivationRecord) -> ProbeSignal | None:
        """Returns what the probe says about `record`, or at its deadline what the policy says."""
        return self.take(self.begin(record), record, is_alone=True)

    def begin(self, record: ActivationRecord) -> Ask | GuardAnswer | None:
        """Sends `record`; `take` must follow. None where the breaker is open."""
        asked_at = time.monotonic()
        if not self._breaker.admit():
            return None
        try:
            return self.guard.begin(record, asked_at, asked_at + self._timeout_s)
        except BaseException:
            self._breaker.note_unsent()
            raise

    def take(self, begun: Ask | GuardAnswer | None, record: ActivationRecord, *, is_alone: bool) -> ProbeSignal | None:
        """Waits for the answer to what `begin` sent; `is_alone` says that this thread waits for no other point's."""
        sequence = self._routed.bump()
        if begun is None:
            self.guard.note_unasked()
            signal: ProbeSignal | None = self._fall_back("breaker_open")
        else:
            try:
                answer = self.guard.take(begun, is_alone=is_alone)
            except BaseException:  # Ctrl-C
                self._breaker.note_unsent()
                raise
            if answer.reason is None:
                self._breaker.note_answer()
                signal = answer.signal
            else:
                signal = self._read_failure(answer)
        if signal is not None:
            if self.signal_tallies:
                self.signal_tallies[place_of(signal)].bump()
            if self._outlet.wants(signal):
                self._outlet.take_signal(signal_record(signal, record, sequence, self._context))
        return signal

    def _read_failure(self, answer: GuardAnswer) -> ProbeSignal:
        assert answer.reason is not None
        if answer.reason == "closed":  # this request has lost its guard for good, which says nothing about the next one
            self._breaker.note_unsent()
        else:
            self._note_failure(answer.reason)
        return self._fall_back(answer.reason, answer.error_type, answer.error)

    def _fall_back(self, reason: str, error_type: str = "", error: str = "") -> ProbeSignal:
        self._fallbacks[reason] += 1
        return _fallback(self.point, self._policy, reason, error_type, error)

    def _note_failure(self, reason: str) -> None:
        failures = self._breaker.note_failure(is_timeout=reason == "timeout")
        if not failures:
            return
        _logger.warning(
            "the breaker of point %r opens after %d consecutive failures, the last: %s; until a try succeeds its "
            "records are answered with %r. `Router.breakers()` shows it, `Router.reset_breaker` closes it",
            self.point.name,
            failures,
            reason,
            self._policy.on_timeout.value,
        )
        signal = ProbeSignal(
            ProbeAction.FLAG,
            metadata={
                "circuit_breaker_tripped": True,
                "extraction_point_name": self.point.name,
                "consecutive_failures": failures,
                "reason": reason,
            },
        )
        self._outlet.take_notice(SignalRecord(self.request_id, self.point.name, signal))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def wait_result(self, deadline: float) -> ProbeResult:
        """Returns the guard's result; what the policy answered stands beside it, in `metadata["fallbacks"]`."""
        result = self.guard.wait_result(deadline)
        if self._fallbacks:
            result.metadata["fallbacks"] = dict(self._fallbacks)
        if self._fallbacks["timeout"]:
            coverage = Coverage.from_dict(result.metadata["coverage"])
            counts = {name: getattr(coverage, name) for name in _COUNTS}
            coverage = Coverage.settle(**counts, reasons=[*coverage.reasons, CoverageReason.PROBE_TIMEOUT])
            result = with_coverage(result, coverage)
        return result

    # ---- the guard's binding, for those who count ------------------------------------------------------------------

    @property
    def plan(self) -> BindingPlan:
        """The plan of the guard's binding."""
        return self.guard.plan

    @property
    def is_settled(self) -> bool:
        """Whether the counters can change no more."""
        return self.guard.is_settled

    @property
    def on_settled(self) -> Callable[[], None] | None:
        """Called once, on any thread, when the counters can change no more."""
        return self.guard.on_settled

    @on_settled.setter
    def on_settled(self, call: Callable[[], None] | None) -> None:
        self.guard.on_settled = call

    def statistics(self) -> BindingStatistics:
        """The counters of the guard's binding; what was answered without asking counts as dropped."""
        return self.guard.statistics()

    def abandon(self) -> None:
        """Rolls the binding back: there is no result."""
        self.guard.abandon()

    def in_child(self) -> ForkedGuard:
        """What stands in its place in a forked child."""
        return ForkedGuard(self.request_id, self.point, self._policy)


_COUNTS = ("routed", "seen", "dropped", "errors", "lost", "restarts")


class ForkedGuard(ForkedBinding):
    """A bounded point of the parent's, seen from a forked child: the policy answers, as the guard is the parent's."""

    def __init__(self, request_id: str, point: ExtractionPoint, policy: InterventionPolicy) -> None:
        super().__init__(request_id, point)
        self._policy = policy

    def accept(self, record: ActivationRecord) -> ProbeSignal:
        """Counts `record` and returns what the policy says; the first is logged."""
        super().accept(record)
        return _fallback(self._point, self._policy, "forked")


def _fallback(
    point: ExtractionPoint, policy: InterventionPolicy, reason: str, error_type: str = "", error: str = ""
) -> ProbeSignal:
    metadata = {
        "intervention_fallback": True,
        "reason": reason,
        "extraction_point_name": point.name,
        "timeout_ms": policy.timeout_ms,
    }
    if error_type:
        metadata |= {"error_type": error_type, "error": error}
    return ProbeSignal(ProbeAction(policy.on_timeout.value), metadata)
