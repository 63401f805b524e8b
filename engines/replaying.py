"""Routes a recording through any spec: a new probe on yesterday's traffic."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.engines.base import RowRouter
from undercurrent.engines.capture import progression
from undercurrent.engines.recording_format import RecordedRequest
from undercurrent.engines.recording_reader import RecordedRows, Recording, RecordingError, RequestBegan, RequestEnded
from undercurrent.errors import ProbingValueError
from undercurrent.router import RowEntry, RowsError
from undercurrent.spec import ExecutionMode, ExtractionPoint, OverflowPolicy, ProbeSpec, TensorType

__all__ = ["ReplayedRequest", "replay"]

_PACE_STEP_S = 0.5
"""A replay that waits for its next step looks up this often, so that Ctrl-C is heard."""


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """What a spec's probes say about one request of a recording."""

    request: RecordedRequest
    results: Mapping[str, ProbeResult]
    signals: tuple[tuple[str, int, ProbeSignal], ...]
    """(point, position, signal) of inline points, in order."""
    abort_point: str | None = None
    """The inline point that would have stopped it; no later step of the request was replayed."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """By point: positions it reads that the request had and the recording does not hold."""
    is_cut_off: bool = False
    """Whether the recording broke off before the request ended."""


def replay(
    recording: Recording, spec: ProbeSpec, router: RowRouter, *, speed: float | None = None
) -> Iterator[ReplayedRequest]:
    """Routes a recording through `spec` on `router` and yields each request as it ends.

    `speed` is 1 for the pace of the recording, 10 for ten times that; None is as fast as the probes are, and async
    points then wait instead of dropping, so that equal recordings give equal verdicts.

    Raises:
        RecordingError: the spec reads what was not recorded, or the recording is damaged; said before anything runs.
        ProbingValueError: `speed` is not above 0.
        RowsError: an inline probe raised.
    """
    if speed is not None and not speed > 0:
        raise ProbingValueError(f"`speed` must be above 0, got {speed!r}; leave it out for full speed")
    problems = recording.find_problems(spec)
    if problems:
        raise RecordingError("; ".join(problems))
    return _run(recording, tuple(spec) if speed is not None else _lossless(spec), router, speed)


def _run(
    recording: Recording, points: tuple[ExtractionPoint, ...], router: RowRouter, speed: float | None
) -> Iterator[ReplayedRequest]:
    live: dict[str, _Reader] = {}
    pace = _Pace(speed)
    try:
        for event in recording.events():
            if isinstance(event, RequestBegan):
                reader = _Reader(event.request, points)
                router.register_request(event.request.request_id, points, reader.context(recording.manifest.model))
                live[event.request.request_id] = reader
            elif isinstance(event, RequestEnded):
                request_id = event.request.request_id
                if request_id in live:
                    yield live.pop(request_id).finish(router.end_request(request_id), is_cut_off=False)
            else:
                pace.wait_for(event.timestamp)
                _route(event, live, router)
        for request_id in list(live):
            yield live.pop(request_id).finish(router.end_request(request_id), is_cut_off=True)
    finally:
        for request_id in live:
            router.end_request(request_id)


def _route(event: RecordedRows, live: Mapping[str, _Reader], router: RowRouter) -> None:
    entries: list[RowEntry] = []
    ids = np.array([request.request_id for request in event.requests])
    for request_id in dict.fromkeys(ids.tolist()):
        if request_id not in live:
            raise RecordingError(
                f"the recording has rows of request {request_id!r}, which had not begun; it is damaged"
            )
        entries += live[request_id].select(event, np.flatnonzero(ids == request_id))
    if not entries:
        return
    with router.step():
        try:
            signals = router.route_rows(event.rows, event.layer, event.tensor_type, entries)
        except RowsError as error:
            first = min(error.errors)
            raise error.errors[first] from error
    for entry, signal in zip(entries, signals, strict=True):
        if signal is not None:
            live[entry.request_id].note(entry, signal, event.step)


class _Reader:
    """Which records of one request the points read, and what inline probes said."""

    def __init__(self, request: RecordedRequest, points: Iterable[ExtractionPoint]) -> None:
        self._request = request
        self._points = [(point, range(*progression(point, request.prompt_len))) for point in points]
        self._signals: list[tuple[str, int, ProbeSignal]] = []
        self._abort: tuple[str, int] | None = None
        self._length = 0
        """Positions that the request had, as far as any record shows."""
        self._counts = {point.name: 0 for point, _ in self._points}

    def context(self, model: str) -> RequestContext:
        """What probes are told."""
        metadata = {"model": model, "prompt": self._request.prompt, "prompt_len": self._request.prompt_len}
        return RequestContext(self._request.request_id, metadata, None)

    def select(self, event: RecordedRows, indices: np.ndarray[Any, np.dtype[np.intp]]) -> list[RowEntry]:
        """The entries of this request's rows, by point and position, as an engine orders them."""
        if self._abort is not None and event.step > self._abort[1]:
            return []
        entries: list[RowEntry] = []
        self._length = max(self._length, int(event.positions[indices].max()) + 1)
        for point, positions in self._points:
            if event.layer not in point.layers or TensorType(point.tensor_type) is not event.tensor_type:
                continue
            for index in indices.tolist():
                position = int(event.positions[index])
                if position not in positions:
                    continue
                self._counts[point.name] += 1
                if point.sample is None or self._is_sampled(point, position):
                    is_generated = bool(event.is_generated[index])
                    entries.append(RowEntry(self._request.request_id, point.name, position, is_generated, index))
        return entries

    def note(self, entry: RowEntry, signal: ProbeSignal, step: int) -> None:
        """An inline probe said something."""
        self._signals.append((entry.extraction_point_name, entry.token_pos, signal))
        if signal.action is ProbeAction.ABORT and self._abort is None:
            self._abort = (entry.extraction_point_name, step)

    def finish(self, results: Mapping[str, ProbeResult], *, is_cut_off: bool) -> ReplayedRequest:
        """The outcome of the request."""
        missing = {}
        for point, positions in self._points:
            expected = len(range(positions.start, min(positions.stop, self._length), positions.step))
            absent = expected * len(set(point.layers)) - self._counts[point.name]
            if absent > 0 and self._abort is None:
                missing[point.name] = absent
        return ReplayedRequest(
            self._request,
            results,
            tuple(self._signals),
            abort_point=None if self._abort is None else self._abort[0],
            missing=missing,
            is_cut_off=is_cut_off,
        )

    def _is_sampled(self, point: ExtractionPoint, position: int) -> bool:
        sample = point.sample
        assert sample is not None
        request_id = self._request.request_id
        return sample.keeps_request(request_id) and sample.keeps_record(request_id, position)


class _Pace:
    """Waits until a record's time has come; at full speed it never does."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._begin: tuple[float, float] | None = None
        """Recorded and monotonic time of the first record."""

    def wait_for(self, timestamp: float) -> None:
        if self._speed is None:
            return
        if self._begin is None:
            self._begin = (timestamp, time.monotonic())
        due = self._begin[1] + (timestamp - self._begin[0]) / self._speed
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, _PACE_STEP_S))


def _lossless(spec: ProbeSpec) -> tuple[ExtractionPoint, ...]:
    return tuple(
        replace(point, overflow_policy=OverflowPolicy.BLOCK, block_timeout_s=None)
        if point.execution_mode == ExecutionMode.ASYNC
        else point
        for point in spec
    )
