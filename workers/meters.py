"""Latency histograms and counters that workers fill and engines add up. Pure bookkeeping: no clock, no thread.

A histogram has the same fixed buckets everywhere, so that those of a thousand workers can be added: 1, 2 and 5 of every
decade from a microsecond to 100 seconds, and one for what is longer.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from undercurrent.core import ProbeAction, ProbeSignal

__all__ = [
    "ACTIONS",
    "BUCKET_BOUNDS_NS",
    "CALL_AT",
    "ERRORS_AT",
    "HISTOGRAM_WORDS",
    "POINT_WORDS",
    "RECORDS_AT",
    "SINK_WORDS",
    "WAIT_AT",
    "WRITE_AT",
    "PointMeter",
    "SharedMeter",
    "SinkMeter",
    "place_of",
]

BUCKET_BOUNDS_NS: Final = (*(step * 10**decade for decade in range(3, 11) for step in (1, 2, 5)), 10**11)
"""Upper ends of the buckets in nanoseconds, each belonging to its bucket; one bucket more has no end."""
HISTOGRAM_WORDS: Final = len(BUCKET_BOUNDS_NS) + 2
"""Counts by bucket, then the sum of all durations in nanoseconds."""
_SUM: Final = HISTOGRAM_WORDS - 1
_DURATION_NS_MAX: Final = 3_600 * 10**9
_PENDING_MAX: Final = 64

ACTIONS: Final = (*(action.value for action in ProbeAction), "other")
"""What signals are counted by, in the order of their words; "other" is what is no `ProbeSignal`."""
_ACTION_PLACES: Final = {action: place for place, action in enumerate(ProbeAction)}
_OTHER: Final = len(ACTIONS) - 1

WAIT_AT: Final = len(ACTIONS)
_WAIT_SUM_AT: Final = WAIT_AT + _SUM
CALL_AT: Final = WAIT_AT + HISTOGRAM_WORDS
_CALL_SUM_AT: Final = CALL_AT + _SUM
POINT_WORDS: Final = CALL_AT + HISTOGRAM_WORDS
"""Signals by action, the histogram of waits in the queue, the histogram of probe calls."""

RECORDS_AT: Final = 0
ERRORS_AT: Final = 1
WRITE_AT: Final = 2
SINK_WORDS: Final = WRITE_AT + HISTOGRAM_WORDS
"""Records written, records at which the sink raised, the histogram of writes."""


def _bounded(duration_ns: int) -> int:
    """A duration that can be added up for long: a clock read from shared memory may say anything."""
    return min(max(duration_ns, 0), _DURATION_NS_MAX)


class _Meter:
    """Words that grow; one thread's own. `take` hands them over and begins again, so that each is reported once."""

    __slots__ = ("_words", "is_dirty")

    WORDS = 0

    def __init__(self) -> None:
        self._words = array("Q", bytes(8 * self.WORDS))
        self.is_dirty = False
        """Whether there is something to report."""

    def take(self) -> bytes:
        """Returns what was counted since the last call, as little-endian u64 words; empty where that is nothing."""
        if not self.is_dirty:
            return b""
        taken = self._words.tobytes()
        self._words = array("Q", bytes(8 * self.WORDS))
        self.is_dirty = False
        return taken


class PointMeter(_Meter):
    """What one worker measures of one point."""

    __slots__ = ()

    WORDS = POINT_WORDS

    def note_signal(self, signal: ProbeSignal) -> None:
        """Counts a signal by its action."""
        self._words[place_of(signal)] += 1
        self.is_dirty = True

    # The next two are called once per record or batch, and written out for that.

    def note_wait(self, duration_ns: int, count: int) -> None:
        """Counts how long a record waited in its queue, for itself and those that were taken with it."""
        words = self._words
        if not 0 <= duration_ns <= _DURATION_NS_MAX:
            duration_ns = _bounded(duration_ns)
        words[WAIT_AT + bisect_left(BUCKET_BOUNDS_NS, duration_ns)] += count
        words[_WAIT_SUM_AT] += duration_ns * count
        self.is_dirty = True

    def note_call(self, duration_ns: int, count: int = 1) -> None:
        """Counts the time of a probe's call over `count` records, shared out evenly."""
        words = self._words
        words[CALL_AT + bisect_left(BUCKET_BOUNDS_NS, duration_ns // count)] += count
        words[_CALL_SUM_AT] += duration_ns
        self.is_dirty = True


class SinkMeter(_Meter):
    """What one thread measures of one sink."""

    __slots__ = ("has_unwritten",)

    WORDS = SINK_WORDS

    def __init__(self) -> None:
        super().__init__()
        self.has_unwritten = False
        """Whether the sink was given records since the last write."""

    def note_record(self, *, is_written: bool) -> None:
        """Counts a record that the sink took, or at which it raised."""
        self._words[RECORDS_AT if is_written else ERRORS_AT] += 1
        self.is_dirty = self.has_unwritten = True

    def note_write(self, duration_ns: int) -> None:
        """Counts the time in which the sink wrote what it had held back."""
        self._words[WRITE_AT + bisect_left(BUCKET_BOUNDS_NS, duration_ns)] += 1
        self._words[WRITE_AT + _SUM] += duration_ns
        self.is_dirty = True
        self.has_unwritten = False


class SharedMeter:
    """Words that several threads add to. One lock, held for a few additions."""

    __slots__ = ("_lock", "_pending", "_words")

    def __init__(self, word_count: int) -> None:
        self._lock = threading.Lock()
        self._words = [0] * word_count  # guarded by _lock
        self._pending: list[Sequence[int]] = []  # what `add` was given and nobody has asked for; guarded by _lock

    def add(self, taken: bytes | Sequence[int]) -> None:
        """Adds what a meter's `take` returned, or the same as numbers, to as many words at the beginning.

        That happens when somebody reads or much has come together: who adds is about to hand a result to its caller.
        """
        with self._lock:
            self._pending.append(array("Q", taken) if isinstance(taken, bytes) else taken)
            if len(self._pending) >= _PENDING_MAX:
                self._add_pending()

    def note(self, place: int, duration_ns: int) -> None:
        """Counts one duration in the histogram that begins at `place`."""
        with self._lock:
            self._words[place + bisect_left(BUCKET_BOUNDS_NS, duration_ns)] += 1
            self._words[place + _SUM] += duration_ns

    def bump(self, place: int) -> None:
        """Counts one event in the word at `place`."""
        with self._lock:
            self._words[place] += 1

    def read(self) -> list[int]:
        """All words, of one moment."""
        with self._lock:
            self._add_pending()
            return self._words[:]

    def renew_after_fork(self) -> None:
        """In a forked child: begins at zero, with a lock that no thread of the parent holds."""
        self._lock = threading.Lock()
        self._words = [0] * len(self._words)
        self._pending = []

    def _add_pending(self) -> None:
        # Python's integers have no end: what a worker says can make no sum wrap or raise.
        columns = zip(self._words, *self._pending, strict=False)
        added = list(map(sum, columns))
        self._words[: len(added)] = added
        self._pending = []


def place_of(signal: object) -> int:
    """The word that counts `signal`: its action's place in `ACTIONS`. Never raises."""
    if not isinstance(signal, ProbeSignal):
        return _OTHER
    try:
        return _ACTION_PLACES.get(signal.action, _OTHER)
    except TypeError:  # overwritten with something that has no hash
        return _OTHER
