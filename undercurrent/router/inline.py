"""An inline point of one request: its probe runs on the caller's thread, inside `route()`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence

from undercurrent.core import Coverage, CoverageReason, Probe, ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.router.inline_outlet import InlineOutlet
from undercurrent.router.tally import Tally
from undercurrent.sinks import SignalRecord
from undercurrent.spec import ActivationRecord, ExtractionPoint, OnError
from undercurrent.workers import BindingStatistics
from undercurrent.workers.meters import place_of

__all__ = ["Dispatch", "InlineBinding", "empty_result", "model_of", "signal_record", "with_coverage"]

_logger = logging.getLogger("undercurrent.router")

Dispatch = Callable[[ActivationRecord], ProbeSignal | None]
"""What `route()` calls with a record, once it has found the record's binding."""


class InlineBinding:
    """Owns one probe instance and counts what it saw.

    No lock is held while the probe runs: when the caller routes one request from several threads, `dispatch` runs on
    several threads at once.
    """

    __slots__ = (
        "_context",
        "_errors",
        "_is_error_logged",
        "_outlet",
        "_routed",
        "dispatch",
        "point",
        "probe",
        "request_id",
        "signal_tallies",
    )

    def __init__(
        self,
        *,
        request_id: str,
        point: ExtractionPoint,
        probe: Probe,
        context: RequestContext,
        outlet: InlineOutlet,
    ) -> None:
        self.request_id = request_id
        self.point = point
        self.probe = probe
        self._context = context
        self._outlet = outlet
        self._routed = Tally()
        self._errors = Tally()
        self._is_error_logged = False
        self.signal_tallies: Sequence[Tally] = ()
        """What signals are counted in, by action, for all bindings of the point; set before the first record comes."""
        self.dispatch = self._make_dispatch()

    def start(self) -> None:
        """Calls `on_start`; what it raises goes to the caller."""
        self.probe.on_start(self._context)

    def finish(self) -> ProbeResult:
        """Calls `on_end` and returns its result with coverage; a raising `on_end` gives an empty one."""
        errors = self._errors.close()
        reasons: list[CoverageReason] = []
        try:
            result = as_result(self.probe.on_end(self._context), self.request_id, self.point.name)
        except (Exception, SystemExit) as error:
            _logger.error("`on_end` of point %r raised, request %r", self.point.name, self.request_id, exc_info=error)
            result = empty_result(self.request_id, self.point.name, error)
            reasons.append(CoverageReason.PROBE_ERROR)
        routed = self._routed.close()
        coverage = Coverage.settle(routed=routed, seen=routed, errors=errors, reasons=reasons)
        return with_coverage(result, coverage)

    def statistics(self) -> BindingStatistics:
        """The counters now. What is routed to an inline point has reached its probe."""
        routed, errors = self.counts()
        return BindingStatistics(produced=routed, consumed=routed, activations=routed, errors=errors)

    def counts(self) -> tuple[int, int]:
        """Records that the probe was called with, and those at which it raised."""
        return self._routed.value, self._errors.value

    def _make_dispatch(self) -> Dispatch:
        """Builds the function that `route()` calls: everything it needs is a local of it, nothing is looked up."""
        on_activation = self.probe.on_activation
        count_routed = self._routed.bump
        count_error = self._errors.bump
        report = self._report
        answer_error = None if self.point.on_error == OnError.RAISE else self._answer_error

        def dispatch(record: ActivationRecord) -> ProbeSignal | None:
            sequence = count_routed()
            try:
                signal = on_activation(record)
            except BaseException as error:
                count_error()
                if answer_error is None or not isinstance(error, (Exception, SystemExit)):
                    raise
                signal = answer_error(error)
            if signal is not None:
                report(signal, record, sequence)
            return signal

        return dispatch

    def _report(self, signal: ProbeSignal, record: ActivationRecord, sequence: int) -> None:
        """Counts a signal and offers it to the sinks of inline points."""
        if self.signal_tallies:
            self.signal_tallies[place_of(signal)].bump()
        if self._outlet.wants(signal):
            self._outlet.take_signal(signal_record(signal, record, sequence, self._context))

    def _answer_error(self, error: BaseException) -> ProbeSignal:
        """Answers for a probe that raised under `on_error: abort | continue`; the first error is logged."""
        if not self._is_error_logged:
            self._is_error_logged = True
            _logger.error(
                "inline probe of point %r raised, request %r; further errors are counted in its coverage",
                self.point.name,
                self.request_id,
                exc_info=error,
            )
        return ProbeSignal(
            ProbeAction.ABORT if self.point.on_error == OnError.ABORT else ProbeAction.CONTINUE,
            metadata={
                "router_error": True,
                "error_type": type(error).__name__,
                "error": str(error),
                "extraction_point_name": self.point.name,
            },
        )


def model_of(context: RequestContext) -> str | None:
    """The model that a request's context names, as far as it names one."""
    metadata = context.prompt_metadata
    model = metadata.get("model") if isinstance(metadata, Mapping) else None
    return model if isinstance(model, str) else None


def signal_record(
    signal: ProbeSignal, record: ActivationRecord, sequence: int, context: RequestContext
) -> SignalRecord:
    """What a sink is told of a signal about `record`, the activation `sequence` of its binding."""
    return SignalRecord(
        record.request_id,
        record.extraction_point_name,
        signal,
        sequence=sequence,
        layer=record.layer,
        position=record.token_pos,
        model=model_of(context),
    )


def as_result(value: object, request_id: str, point_name: str) -> ProbeResult:
    """Returns what `on_end` returned; anything but a `ProbeResult` becomes the verdict of one."""
    if isinstance(value, ProbeResult):
        # A probe may return one object every time, and the coverage written into it belongs to this request alone.
        return copy.copy(value)
    return ProbeResult(request_id, point_name, value)


def empty_result(request_id: str, point_name: str, error: BaseException | None = None) -> ProbeResult:
    """The result of a probe that gave none."""
    metadata = {} if error is None else {"error_type": type(error).__name__, "error": str(error)}
    return ProbeResult(request_id, point_name, None, metadata=metadata)


def with_coverage(result: ProbeResult, coverage: Coverage) -> ProbeResult:
    """Writes `coverage` into the metadata of `result`, which the caller owns, and returns it."""
    metadata = dict(result.metadata) if isinstance(result.metadata, dict) else {"metadata": result.metadata}
    metadata["coverage"] = coverage.to_dict()
    result.metadata = metadata
    return result
