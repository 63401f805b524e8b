"""Points that read a part of the traffic: what is left out never reaches the probe, and coverage says `sampled`."""

from __future__ import annotations

from dataclasses import replace

from undercurrent.core import Coverage, CoverageReason, ProbeResult, ProbeSignal
from undercurrent.router.inline import Dispatch, empty_result, with_coverage
from undercurrent.spec import ActivationRecord, ExtractionPoint, SampleBy

__all__ = ["SkippedBinding", "mark_sampled", "reads_every_record", "skips_request", "thinned"]


def skips_request(point: ExtractionPoint, request_id: str) -> bool:
    """Whether sampling leaves the whole request out."""
    return point.sample is not None and not point.sample.keeps_request(request_id)


def reads_every_record(point: ExtractionPoint) -> bool:
    """Whether sampling lets every record of a kept request through."""
    return point.sample is None or point.sample.by != SampleBy.RECORD


def thinned(dispatch: Dispatch, point: ExtractionPoint) -> Dispatch:
    """Returns a dispatch that lets only sampled records through."""
    sample = point.sample
    if sample is None or reads_every_record(point):
        return dispatch

    def dispatch_sampled(record: ActivationRecord) -> ProbeSignal | None:
        return dispatch(record) if sample.keeps_record(record.request_id, record.token_pos) else None

    return dispatch_sampled


def mark_sampled(result: ProbeResult) -> ProbeResult:
    """Adds the reason `sampled` to the coverage of `result`, which the caller owns, and returns it."""
    coverage = Coverage.from_dict(result.metadata["coverage"])
    return with_coverage(result, replace(coverage, reasons=_with_sampled(coverage.reasons)))


def _with_sampled(reasons: tuple[CoverageReason, ...]) -> tuple[CoverageReason, ...]:
    return reasons if CoverageReason.SAMPLED in reasons else (*reasons, CoverageReason.SAMPLED)


class SkippedBinding:
    """Stands for a point whose sampling left this request out: there is no probe, and the result says so."""

    __slots__ = ("_point_name", "_request_id")

    def __init__(self, request_id: str, point_name: str) -> None:
        self._request_id = request_id
        self._point_name = point_name

    def dispatch(self, record: ActivationRecord) -> None:
        """Leaves `record` out."""

    def finish(self) -> ProbeResult:
        """Returns a result without a verdict."""
        coverage = Coverage.settle(routed=0, seen=0, reasons=[CoverageReason.SAMPLED])
        return with_coverage(empty_result(self._request_id, self._point_name), coverage)
