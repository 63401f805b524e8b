"""Guards: one worker per bounded inline point, and the watch over those that do not answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from undercurrent.errors import RouterError
from undercurrent.ipc import MemoryBudget
from undercurrent.workers import messages as m
from undercurrent.workers.guard_binding import GuardBinding
from undercurrent.workers.lane import Lane
from undercurrent.workers.plans import LOADING, BindingPlan

if TYPE_CHECKING:
    from undercurrent.workers.loop import Loop

__all__ = ["GUARD_COUNT_MAX", "GuardLane", "Guards"]

GUARD_COUNT_MAX = 64
_LOOK_S = 0.05
_STILL_LOOKS = 4
"""A guard in which no probe runs and that answers nobody between so many looks is stopped or stuck."""
_LOADING_S_MAX = 120.0


class GuardLane(Lane):
    """The lane of a guard."""

    binding_type = GuardBinding
    is_guard = True

    guards: Guards
    _is_torch_told = False

    def note_overdue(self, binding: GuardBinding, sequence: int, since: float) -> None:
        """See `Guards.note_overdue`."""
        self.guards.note_overdue(self, binding, sequence, since)

    def _preparations(self) -> list[m.Frame]:
        """torch takes seconds to import: it must be there before a record with a deadline is."""
        self._is_torch_told = "torch" in sys.modules
        return [m.LoadTorch()] if self._is_torch_told else []

    def _open(self, opening: Any, frames: list[m.Frame]) -> Any:
        if not self._is_torch_told:
            frames += self._preparations()
        return super()._open(opening, frames)


class Guards:
    """Owns the guards' lanes of one supervisor. A point keeps its guard; no other point ever uses it."""

    def __init__(self, budget: MemoryBudget, loop: Loop) -> None:
        self.lanes: list[GuardLane] = []
        """Replaced, never changed; guarded by the supervisor's lock."""
        self._by_point: dict[str, GuardLane] = {}
        self._budget = budget
        self._loop = loop

    def lane_for(self, plan: BindingPlan, start: Callable[[Lane], None]) -> GuardLane:
        """The lane of the plan's point; called with the supervisor's lock held.

        Raises:
            RouterError: there are `GUARD_COUNT_MAX` guards already.
        """
        point = plan.point
        lane = self._by_point.get(point.name)
        if lane is not None:
            return lane
        if len(self.lanes) >= GUARD_COUNT_MAX:
            raise RouterError(
                f"extraction point {point.name!r} needs a guard process, and at most {GUARD_COUNT_MAX} points of a "
                "router have one; points of the same name share theirs, so keep names fixed over requests"
            )
        name = f"uc-g{len(self.lanes)}-{point.name}"[:40]
        lane = GuardLane(name, self._budget, self._loop.note_unsent, self._loop.note_retired)
        lane.guards = self
        lane.threads = point.threads or 1
        lane.needs_gpu = bool(point.gpu)
        self.lanes = [*self.lanes, lane]
        self._by_point[point.name] = lane
        start(lane)
        return lane

    # ---- the watch ---------------------------------------------------------------------------------------------------

    def note_overdue(self, lane: GuardLane, binding: GuardBinding, sequence: int, since: float) -> None:
        """A caller gave up on `sequence` (0: on the start); called on its thread.

        Unless it is answered late, or the guard works on others' records, the guard is ended when a call of a probe
        has run for the `probe_timeout_s` of its point.
        """
        watch = _Watch(self._loop, lane, binding, sequence)
        due_in_s = max(0.0, since + binding.call_limit_s - time.monotonic())
        self._loop.post(lambda: self._loop.after(due_in_s, watch.look))


class _Watch:
    """Over one record that was not answered in time. Lives on the supervisor's thread."""

    def __init__(self, loop: Loop, lane: GuardLane, binding: GuardBinding, sequence: int) -> None:
        self._loop = loop
        self._lane = lane
        self._binding = binding
        self._sequence = sequence
        self._process = lane.process
        self._seen = -1
        self._still_count = 0

    def look(self) -> None:
        """Ends the guard, looks again later, or forgets about it."""
        lane = self._lane
        if lane.process is not self._process or lane.state != "running" or self._is_answered():
            return
        generation, since_ns = lane.memory.activity()
        if generation:
            running = lane.bindings.get(generation, self._binding)
            longest_s = _LOADING_S_MAX if generation == LOADING else running.call_limit_s
            left_s = since_ns / 1e9 + longest_s - time.monotonic()
            if left_s > 0:
                self._look_again(left_s)
            else:
                self._loop.end_hung(lane, generation, running)
            return
        answered = sum(each.ring.last_answered() for each in lane.bindings.values())
        self._still_count = self._still_count + 1 if answered == self._seen else 0
        self._seen = answered
        if self._still_count < _STILL_LOOKS:
            self._look_again(_LOOK_S)
        else:
            self._loop.end_hung(lane, self._binding.binding_id, self._binding)

    def _is_answered(self) -> bool:
        if self._binding.is_finished:
            return True
        if self._sequence == 0:
            return self._binding.is_start_answered
        return self._binding.ring.last_answered() >= self._sequence

    def _look_again(self, delay_s: float) -> None:
        self._loop.after(delay_s, self.look)
