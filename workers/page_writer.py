"""Keeps this process's control page true: what its lanes, workers and bindings are and count.

Runs on the supervisor's thread. Readers (`undercurrent status`, monitors) map the page and disturb nobody.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Sequence

from undercurrent.errors import RingError
from undercurrent.ipc import RingStatistics
from undercurrent.ipc.page import BINDING_COUNTERS, ControlPage
from undercurrent.workers.binding import AsyncBinding
from undercurrent.workers.lane import Lane
from undercurrent.workers.plans import USER_ACTIVATIONS, USER_ERRORS, USER_SIGNALS

_logger = logging.getLogger("undercurrent.workers")

BUSY_REFRESH_S = 1.0
IDLE_REFRESH_S = 5.0
BINDING_ROWS_MAX = 256
"""Bindings beyond this many are not shown: a page of thousands would cost the engine more than it tells."""

_pages = itertools.count()
_pages_lock = threading.Lock()


class PageWriter:
    """Owns the page `/undercurrent-<pid>` (further routers of a process: `<pid>-1`, …). `close()` is idempotent."""

    def __init__(self) -> None:
        self._page: ControlPage | None = None
        self._rows = 0
        self._last_sum = -1

    def open(self) -> None:
        """Makes the page and removes those that dead processes left; without room there is none, and it is logged."""
        with _pages_lock:
            number = next(_pages)
        instance = str(os.getpid()) if number == 0 else f"{os.getpid()}-{number}"
        try:
            ControlPage.remove_stale()
            self._page = ControlPage(instance, bindings=BINDING_ROWS_MAX)
        except (RingError, OSError) as error:
            _logger.warning("no control page for this router, `undercurrent status` will not show it: %s", error)

    def refresh(self, lanes: Sequence[Lane]) -> float:
        """Writes every row; returns after how many seconds to come again."""
        if self._page is None:
            return IDLE_REFRESH_S
        row = total = 0
        for index, lane in enumerate(lanes[:64]):
            sums = list(lane.settled_counts)
            for binding in lane.unsettled_bindings():
                counts = binding.ring.statistics()
                total += counts.produced + counts.consumed
                counted = binding.add_to_earlier(counts.user)
                for place, which in enumerate((USER_ACTIVATIONS, USER_SIGNALS, USER_ERRORS)):
                    sums[place] += counted[which]
                if row < BINDING_ROWS_MAX and not binding.is_finished:
                    self._write_binding(row, lane, binding, counts)
                    row += 1
            self._write_lane(index, lane, [lane.load, *sums, lane.death_count])
        for unused in range(row, self._rows):
            self._page.clear_row("bindings", unused)
        self._rows = row
        is_busy, self._last_sum = total != self._last_sum, total
        return BUSY_REFRESH_S if is_busy else IDLE_REFRESH_S

    def close(self) -> None:
        """Removes the page."""
        if self._page is not None:
            self._page.close()
            self._page = None

    def _write_binding(self, row: int, lane: Lane, binding: AsyncBinding, counts: RingStatistics) -> None:
        assert self._page is not None
        self._page.write_row(
            "bindings",
            row,
            id=binding.binding_id,
            name=binding.plan.point.name,
            detail=f"{binding.plan.request_id} on {lane.name}",
            pid=lane.pid,
            since=binding.since,
            counters=(
                *(getattr(counts, name) for name in BINDING_COUNTERS[:9]),
                max(0, counts.in_hand),
                counts.lost,
                counts.user[USER_ERRORS],
            ),
        )

    def _write_lane(self, index: int, lane: Lane, worker_counters: Sequence[int]) -> None:
        assert self._page is not None
        statistics = lane.memory.statistics()
        counters = (
            statistics.rings,
            statistics.committed_bytes,
            statistics.slots_issued,
            statistics.slots_free,
            statistics.consumer_deaths,
        )
        since = lane.since
        self._page.write_row("lanes", index, id=index, name=lane.name, pid=lane.pid, since=since, counters=counters)
        self._page.write_row(
            "workers",
            index,
            id=index,
            name=lane.name,
            detail=lane.state,
            pid=lane.pid,
            since=since,
            counters=worker_counters,
        )
