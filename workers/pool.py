"""Which worker an async binding gets: a bounded number of lanes, shared when there are more points than workers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from undercurrent.ipc import MemoryBudget
from undercurrent.workers import messages as m
from undercurrent.workers.lane import Lane
from undercurrent.workers.plans import BindingPlan
from undercurrent.workers.transfer import PackedPoint

if TYPE_CHECKING:
    from undercurrent.workers.loop import Loop

__all__ = ["Pool"]

_logger = logging.getLogger("undercurrent.workers")

WORKER_KEYS_MAX = 4096


class Pool:
    """Owns the workers' lanes of one supervisor, whose lock guards it."""

    def __init__(self, budget: MemoryBudget, loop: Loop, lane_count_max: int) -> None:
        self.lanes: list[Lane] = []
        """Replaced, never changed."""
        self.sinks = m.SetSinks(b"", False)
        """What a new worker is told."""
        self.loads_torch = False
        """Whether new workers import torch ahead of their records."""
        self._by_key: dict[tuple[bytes, int], Lane] = {}
        self._budget = budget
        self._loop = loop
        self._lane_count_max = lane_count_max

    def lane_for(self, plan: BindingPlan, packed: PackedPoint, start: Callable[[Lane], None]) -> Lane:
        """The lane of the plan's point; of several, the one with the fewest bindings. `start` is given new ones."""
        if plan.workers == 1:
            key = (packed.worker_key, 0)
            return self._by_key.get(key) or self._new_key(key, plan, start)
        keys = [(packed.worker_key, index) for index in range(plan.workers)]
        for key in keys:
            if key not in self._by_key:
                return self._new_key(key, plan, start)
        return min((self._by_key[key] for key in keys), key=lambda lane: lane.load)

    def _new_key(self, key: tuple[bytes, int], plan: BindingPlan, start: Callable[[Lane], None]) -> Lane:
        if len(self._by_key) >= WORKER_KEYS_MAX:
            busy = {binding.worker_key for lane in self.lanes for binding in list(lane.bindings.values())}
            self._by_key = {k: lane for k, lane in self._by_key.items() if k[0] in busy}
        if len(self.lanes) < self._lane_count_max:
            name = f"uc-{len(self.lanes)}-{plan.point.name}"[:40]
            lane = Lane(name, self._budget, self._loop.note_unsent, self._loop.note_retired)
            lane.threads = plan.point.threads or 1
            lane.needs_gpu = bool(plan.point.gpu)
            lane.loads_torch = self.loads_torch
            lane.last_words = self._loop.last_words
            lane.set_sinks(self.sinks)
            self.lanes = [*self.lanes, lane]
            start(lane)
        else:
            lane = min(self.lanes, key=lambda lane: (lane.load, lane.key_count))
            if plan.point.name not in lane.point_names:
                _logger.info(
                    "point %r shares worker %s with %s: `worker_pool_size` is %d",
                    plan.point.name,
                    lane.name,
                    ", ".join(sorted(lane.point_names)),
                    self._lane_count_max,
                )
        lane.key_count += 1
        self._by_key[key] = lane
        return lane
