"""Adds up what bindings count, so that nothing is forgotten when their requests end."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from undercurrent.core import ProbeResult
from undercurrent.router.inline import InlineBinding
from undercurrent.router.requests import LiveRequest
from undercurrent.router.sampling import SkippedBinding
from undercurrent.router.tally import Tally
from undercurrent.router.totals import DROP_REASONS
from undercurrent.spec import ExecutionMode, ExtractionPoint
from undercurrent.workers import BindingStatistics
from undercurrent.workers.measures import Measures, PointKey
from undercurrent.workers.meters import ACTIONS

if TYPE_CHECKING:
    from undercurrent.router.forked import ForkedBinding
    from undercurrent.workers import AsyncBinding

    CountingBinding = InlineBinding | AsyncBinding | ForkedBinding

__all__ = ["Ledger", "PointSums"]

SignalTallies = tuple[Tally, ...]
"""One per action, in the order of `ACTIONS`."""

_COUNTERS: Final = (
    *("routed", "consumed", "seen", "errors", "lost", "restarts"),
    *(reason for reason in DROP_REASONS if reason != "unasked"),  # the bindings of guards count those as late ones
)


class PointSums:
    """The sums of one point: counters of all its bindings, and what waits in those that live."""

    __slots__ = ("bindings", "complete_results", "counts", "in_hand", "partial_results", "queue_depth", "waiting")

    def __init__(self) -> None:
        self.counts = [0] * len(_COUNTERS)
        self.bindings = self.waiting = self.in_hand = self.queue_depth = 0
        self.complete_results = self.partial_results = 0

    def add(self, counts: tuple[int, ...], before: tuple[int, ...] | None) -> None:
        """Adds the counters of a binding, less what it had counted before."""
        self.counts = list(map(int.__add__, self.counts, counts))
        if before is not None:
            self.counts = list(map(int.__sub__, self.counts, before))

    def named(self) -> dict[str, int]:
        """The counters by name."""
        return dict(zip(_COUNTERS, self.counts, strict=True))

    def copy(self) -> PointSums:
        """A copy that can be added to."""
        copied = PointSums()
        for name in self.__slots__:
            setattr(copied, name, getattr(self, name))
        return copied


class _Live(NamedTuple):
    key: PointKey
    binding: CountingBinding
    queue_depth: int
    before: tuple[int, ...] | None
    """In a forked child, what the binding had counted in the parent."""


class Ledger:
    """Knows every binding from its request's registration until its counters rest. Thread-safe.

    An async binding rests a moment after its end, when its ring is let go, and says so on the supervisor's thread. An
    inline one rests when its request has ended.
    """

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._lock = threading.Lock()
        self._live: dict[int, _Live] = {}  # by id of the binding; guarded by _lock, as is all below
        self._sums: dict[PointKey, PointSums] = {}
        self._tallies: dict[PointKey, SignalTallies] = {}
        self._request_counts = {"begun": 0, "ended": 0, "abandoned": 0}

    def begin(self, request: LiveRequest, *, is_inherited: bool = False) -> None:
        """Counts a request, from before it can be routed to; what an inherited one has counted is left out."""
        entries = [
            self._entry(binding, request.points[name], is_inherited=is_inherited)
            for name, binding in request.bindings.items()
            if not isinstance(binding, SkippedBinding)
        ]
        with self._lock:
            self._request_counts["begun"] += 1
            for entry in entries:
                self._live[id(entry.binding)] = entry
                self._sums.setdefault(entry.key, PointSums())
        for entry in entries:
            if _is_in_worker(entry.binding):
                entry.binding.on_settled = partial(self._settle, [entry.binding])
                if entry.binding.is_settled:  # before anybody could be told
                    self._settle([entry.binding])

    def end(self, request: LiveRequest, results: Mapping[str, ProbeResult]) -> None:
        """Counts a request that was ended, with its results; there are none where its caller was interrupted."""
        self._close(request, "ended")
        with self._lock:
            for name, result in results.items():
                sums = self._sums.setdefault(self._measures.fit(PointKey.of(request.points[name])), PointSums())
                if result.metadata["coverage"]["complete"]:
                    sums.complete_results += 1
                else:
                    sums.partial_results += 1

    def abandon(self, request: LiveRequest) -> None:
        """Counts a request that nobody will end."""
        self._close(request, "abandoned")

    def read(self) -> tuple[dict[PointKey, PointSums], dict[PointKey, dict[str, int]], dict[str, int]]:
        """Returns the sums of points, their inline signals by action, and requests by what became of them."""
        with self._lock:
            sums = {key: each.copy() for key, each in self._sums.items()}
            for entry in self._live.values():
                statistics = entry.binding.statistics()
                found = sums[entry.key]
                found.add(_counts_of(statistics, is_over=False), entry.before)
                found.bindings += 1
                found.waiting += statistics.waiting
                found.in_hand += max(0, statistics.in_hand)
                found.queue_depth += entry.queue_depth
            tallies = dict(self._tallies)
            request_counts = dict(self._request_counts)
        signals = {
            key: {action: tally.value for action, tally in zip(ACTIONS, each, strict=True)}
            for key, each in tallies.items()
        }
        return sums, signals, request_counts

    def renew_after_fork(self, requests: Iterable[LiveRequest]) -> None:
        """In a forked child: counts from zero what is the child's own, and knows its `requests`."""
        self._lock = threading.Lock()
        self._live.clear()
        self._sums.clear()
        self._request_counts = dict.fromkeys(self._request_counts, 0)
        for tallies in self._tallies.values():
            for tally in tallies:
                tally.begin_at_zero()
        for request in requests:
            self.begin(request, is_inherited=True)

    def _entry(self, binding: CountingBinding, point: ExtractionPoint, *, is_inherited: bool) -> _Live:
        key = self._measures.fit(PointKey.of(point))
        if key.mode == ExecutionMode.INLINE and hasattr(binding, "signal_tallies"):
            binding.signal_tallies = self._tallies_of(key)
        depth = binding.plan.queue_depth if _is_in_worker(binding) else 0
        before = _counts_of(binding.statistics(), is_over=False) if is_inherited else None
        return _Live(key, binding, depth, before)

    def _tallies_of(self, key: PointKey) -> SignalTallies:
        with self._lock:
            tallies = self._tallies.get(key)
            if tallies is None:
                tallies = self._tallies[key] = tuple(Tally() for _ in ACTIONS)
            return tallies

    def _close(self, request: LiveRequest, how: str) -> None:
        self._settle([binding for binding in request.bindings.values() if not _is_in_worker(binding)])
        with self._lock:
            self._request_counts[how] += 1

    def _settle(self, bindings: Iterable[object]) -> None:
        """Takes over the last counters of bindings; one that is taken over already is passed over."""
        with self._lock:
            for binding in bindings:
                entry = self._live.pop(id(binding), None)
                if entry is not None:
                    counts = _counts_of(entry.binding.statistics(), is_over=True)
                    self._sums[entry.key].add(counts, entry.before)


def _is_in_worker(binding: object) -> TypeGuard[AsyncBinding]:
    """Whether the binding says when it rests; asked this way, as its class needs shared memory."""
    return hasattr(binding, "on_settled")


def _counts_of(statistics: BindingStatistics, *, is_over: bool) -> tuple[int, ...]:
    """The counters in the order of `_COUNTERS`. What still waits at the end is never read, what is in hand is lost."""
    s = statistics
    refused = (s.dropped_oldest, s.dropped_newest, s.block_timeout, s.no_memory, s.unsupported, s.too_large)
    unread, in_hand = (s.waiting, max(0, s.in_hand)) if is_over else (0, 0)
    return (
        *(s.produced, s.consumed, s.activations, s.errors, s.lost + in_hand, s.restarts),
        *(*refused, unread, s.late, s.dropped - s.late - sum(refused)),
    )
