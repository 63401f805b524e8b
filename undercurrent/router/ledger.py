"""Adds up what bindings count, so that nothing is forgotten when their requests end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeGuard

from undercurrent.core import CoverageReason, ProbeResult
from undercurrent.router.inline import InlineBinding
from undercurrent.router.requests import LiveRequest
from undercurrent.router.sampling import SkippedBinding
from undercurrent.router.tally import Tally
from undercurrent.router.totals import DROP_REASONS
from undercurrent.spec import ExtractionPoint
from undercurrent.workers import BindingStatistics
from undercurrent.workers.measures import Measures, PointKey
from undercurrent.workers.meters import ACTIONS, SharedMeter

if TYPE_CHECKING:
    from undercurrent.router.bounded import BoundedBinding
    from undercurrent.router.forked import ForkedBinding
    from undercurrent.workers import AsyncBinding

    CountingBinding = InlineBinding | BoundedBinding | AsyncBinding | ForkedBinding

__all__ = ["Ledger", "PointAccount", "PointSums"]

_COUNTERS: Final = (
    *("routed", "consumed", "seen", "errors", "lost", "restarts"),
    *(reason for reason in DROP_REASONS if reason != "unasked"),  # the bindings of guards count those as late ones
)
_SEEN_PLACES: Final = tuple(_COUNTERS.index(name) for name in ("routed", "consumed", "seen"))
_ERRORS_PLACE: Final = _COUNTERS.index("errors")
_POINTS_REMEMBERED_MAX: Final = 1024
# Whoever reads holds the interpreter's lock; a pause after so many bindings lets the engine's thread in.
_READ_PER_PAUSE: Final = 64
_PAUSE_S: Final = 0.0001
_SAMPLED_ONLY: Final = [CoverageReason.SAMPLED.value]


class PointSums:
    """The counters of bindings, added up, and what waits in those that live."""

    __slots__ = ("bindings", "counts", "in_hand", "queue_depth", "results", "waiting")

    def __init__(self) -> None:
        self.counts = [0] * len(_COUNTERS)
        self.bindings = self.waiting = self.in_hand = self.queue_depth = 0
        self.results = {"complete": 0, "sampled": 0, "partial": 0}

    def add(self, counts: Iterable[int], before: Iterable[int] | None) -> None:
        """Adds the counters of a binding, less what it had counted before."""
        self.counts = list(map(int.__add__, self.counts, counts))
        if before is not None:
            self.counts = list(map(int.__sub__, self.counts, before))

    def add_inline(self, routed: int, errors: int) -> None:
        """`add` of a binding whose probe saw all that was routed."""
        counts = self.counts
        for place in _SEEN_PLACES:
            counts[place] += routed
        counts[_ERRORS_PLACE] += errors

    def add_result(self, result: ProbeResult) -> None:
        """Counts a result by what it rests on."""
        coverage = result.metadata["coverage"]
        if coverage["complete"]:
            self.results["complete"] += 1
        else:
            self.results["sampled" if coverage["reasons"] == _SAMPLED_ONLY else "partial"] += 1

    def named(self) -> dict[str, int]:
        """The counters by name."""
        return dict(zip(_COUNTERS, self.counts, strict=True))

    def copy(self) -> PointSums:
        """A copy that can be added to."""
        copied = PointSums()
        copied.counts = self.counts.copy()
        copied.results = self.results.copy()
        return copied


class PointAccount:
    """One point's counters, for as long as the router lives."""

    __slots__ = ("key", "meter", "signal_tallies", "sums")

    def __init__(self, key: PointKey, meter: SharedMeter) -> None:
        self.key = key
        self.meter = meter
        """What is measured of the point."""
        self.sums = PointSums()
        """Of bindings whose counters rest."""
        self.signal_tallies = tuple(Tally() for _ in ACTIONS)
        """Signals of inline points, by action."""

    def begin_at_zero(self) -> None:
        """In a forked child: forgets what the parent counted."""
        self.sums = PointSums()
        for tally in self.signal_tallies:
            tally.begin_at_zero()


class _Entry:
    """One binding in the books."""

    __slots__ = ("account", "before", "binding", "is_ended", "ledger", "name", "rests_at_end")

    def __init__(self, ledger: Ledger, account: PointAccount, name: str, binding: CountingBinding) -> None:
        self.ledger = ledger
        self.account = account
        self.name = name
        self.binding = binding
        self.rests_at_end = isinstance(binding, InlineBinding) or not _is_in_worker(binding)
        """Whether the counters rest with the end of the request; else the binding says when they do."""
        self.before: tuple[int, ...] | None = None
        """In a forked child, what the binding had counted in the parent."""
        self.is_ended = False
        """Whether its request has ended; its ring is about to be let go."""

    def settle(self) -> None:
        """The binding's counters can change no more."""
        self.ledger.settle(self)


class Ledger:
    """Knows every binding from its request's registration until its counters rest. Thread-safe.

    An async binding rests a moment after its end, when its ring is let go, and says so on the supervisor's thread. An
    inline one rests when its request has ended.
    """

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._lock = threading.Lock()
        self._accounts: dict[PointKey, PointAccount] = {}  # guarded by _lock, as is all below
        # Requests share their points. A point is kept beside its id, so that the id names no other while it is here.
        self._by_point: dict[int, tuple[ExtractionPoint, PointAccount]] = {}
        self._requests: dict[int, tuple[LiveRequest, list[_Entry]]] = {}  # by id of the request, in the same way
        self._unsettled: set[_Entry] = set()
        self._request_counts = {"begun": 0, "ended": 0, "abandoned": 0}

    def account(self, point: ExtractionPoint) -> PointAccount:
        """The account of a point."""
        known = self._by_point.get(id(point))
        return known[1] if known is not None else self._find_account(point)

    def _find_account(self, point: ExtractionPoint) -> PointAccount:
        key = self._measures.fit(PointKey.of(point))
        meter = self._measures.point(key)
        with self._lock:
            account = self._accounts.get(key)
            if account is None:
                account = self._accounts[key] = PointAccount(key, meter)
            if len(self._by_point) >= _POINTS_REMEMBERED_MAX:
                self._by_point = {}
            self._by_point[id(point)] = (point, account)
            return account

    # ---- the life of a request -------------------------------------------------------------------------------------

    def begin(self, request: LiveRequest, *, is_inherited: bool = False) -> None:
        """Counts a request, from before it can be routed to; what an inherited one has counted is left out."""
        entries: list[_Entry] = []
        for name, binding in request.bindings.items():
            if isinstance(binding, SkippedBinding):
                continue
            account = self.account(request.points[name])
            entry = _Entry(self, account, name, binding)
            if isinstance(binding, InlineBinding) or hasattr(binding, "signal_tallies"):
                binding.signal_tallies = account.signal_tallies
            if is_inherited:
                entry.before = _counts_of(binding.statistics(), is_over=False)
            entries.append(entry)
        with self._lock:
            self._request_counts["begun"] += 1
            self._requests[id(request)] = request, entries
            self._unsettled.update(entries)
        for entry in entries:
            if not entry.rests_at_end and _is_in_worker(entry.binding):
                entry.binding.on_settled = entry.settle
                if entry.binding.is_settled:  # before anybody could be told
                    self.settle(entry)

    def end(self, request: LiveRequest, results: Mapping[str, ProbeResult]) -> None:
        """Counts a request that was ended, with its results; there are none where its caller was interrupted."""
        with self._lock:
            for entry in self._close(request, "ended"):
                if entry.name in results:
                    entry.account.sums.add_result(results[entry.name])

    def abandon(self, request: LiveRequest) -> None:
        """Counts a request that nobody will end; one that has ended is passed over."""
        with self._lock:
            self._close(request, "abandoned")

    def settle(self, entry: _Entry) -> None:
        """Takes over the last counters of a binding; only the first call counts."""
        with self._lock:
            self._settle(entry)

    def renew_after_fork(self, requests: Iterable[LiveRequest]) -> None:
        """In a forked child: counts from zero what is the child's own, and knows its `requests`."""
        self._lock = threading.Lock()
        self._requests.clear()
        self._unsettled.clear()
        self._request_counts = dict.fromkeys(self._request_counts, 0)
        for account in self._accounts.values():
            account.begin_at_zero()
        for request in requests:
            self.begin(request, is_inherited=True)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> tuple[dict[PointKey, PointSums], dict[PointKey, dict[str, int]], dict[str, int]]:
        """Returns the sums of points, their inline signals by action, and requests by what became of them."""
        with self._lock:
            sums = {key: account.sums.copy() for key, account in self._accounts.items()}
            unsettled = list(self._unsettled)
            request_counts = self._request_counts.copy()
            accounts = list(self._accounts.values())
        # Without the lock, as thousands of bindings take milliseconds to read. One that settles meanwhile is not in the
        # sums of above, and its counters stay readable.
        for number, entry in enumerate(unsettled, start=1):
            if number % _READ_PER_PAUSE == 0:
                time.sleep(_PAUSE_S)
            statistics = entry.binding.statistics()
            found = sums[entry.account.key]
            found.add(_counts_of(statistics, is_over=False), entry.before)
            found.waiting += statistics.waiting
            found.in_hand += max(0, statistics.in_hand)
            if not entry.is_ended:
                found.bindings += 1
                found.queue_depth += entry.binding.plan.queue_depth if _is_in_worker(entry.binding) else 0
        signals = {
            account.key: {action: tally.value for action, tally in zip(ACTIONS, account.signal_tallies, strict=True)}
            for account in accounts
        }
        return sums, signals, request_counts

    # ---- with _lock held -------------------------------------------------------------------------------------------

    def _close(self, request: LiveRequest, how: str) -> list[_Entry]:
        found = self._requests.pop(id(request), None)
        if found is None:
            return []
        self._request_counts[how] += 1
        for entry in found[1]:
            entry.is_ended = True
            if entry.rests_at_end:
                self._settle(entry)
        return found[1]

    def _settle(self, entry: _Entry) -> None:
        if entry in self._unsettled:
            self._unsettled.discard(entry)
            if isinstance(entry.binding, InlineBinding) and entry.before is None:
                entry.account.sums.add_inline(*entry.binding.counts())
                return
            entry.account.sums.add(_counts_of(entry.binding.statistics(), is_over=True), entry.before)


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
