"""Starts, watches and ends workers; gives every async binding its lane.

Lives in the engine's process. Its methods may be called on any thread; a thread of its own (`loop.py`) reads what the
workers say. A supervisor that was forked does nothing: its threads are the parent's.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from undercurrent.errors import ProbingValueError, RouterError, WorkerError
from undercurrent.ipc import MemoryBudget
from undercurrent.workers import messages as m
from undercurrent.workers.binding import AsyncBinding
from undercurrent.workers.contexts import encode_context
from undercurrent.workers.guards import Guards
from undercurrent.workers.health import PointHealths, restart_delay_s
from undercurrent.workers.lane import Lane, Opening
from undercurrent.workers.loop import Loop, PendingFlush
from undercurrent.workers.measures import Measures, PointKey
from undercurrent.workers.packed_points import PackedPoints
from undercurrent.workers.page_writer import PageWriter
from undercurrent.workers.plans import BindingPlan, WorkerStatus
from undercurrent.workers.pool import Pool
from undercurrent.workers.relay import Relay
from undercurrent.workers.sink_transfer import join_handles, pack_handle
from undercurrent.workers.spawners import ProcessSpawner, ThreadSpawner, await_exits, current_cpu
from undercurrent.workers.transfer import PackedPoint

_logger = logging.getLogger("undercurrent.workers")

PREWARM_S = 60.0
_NEXT_WORKER_S = 0.05
_LEAVE_S = 0.5
_PAGE_OPEN_S = 0.2
"""The control page can wait until the first worker runs."""


class Supervisor:
    """Owns lanes, workers and the relay of one router. `close()` is idempotent."""

    def __init__(
        self,
        *,
        worker_pool_size: int,
        worker_mode: str = "process",
        memory_max_bytes: int | None = None,
        engine_cpus: Collection[int] | None = None,
        name: str = "router",
        measures: Measures | None = None,
    ) -> None:
        """Starts nothing; the first `open_binding` or `prewarm` does.

        `memory_max_bytes` bounds the rings of all lanes together, default a quarter of the machine's memory. `measures`
        gets what is counted here and outlives the supervisor.
        """
        self.measures = measures or Measures()
        if worker_mode not in ("process", "thread"):
            raise ProbingValueError(f"`worker_mode` must be 'process' or 'thread', got {worker_mode!r}")
        self.worker_mode = worker_mode
        self._name = name
        self._budget = MemoryBudget(memory_max_bytes)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._points = PackedPoints(is_thread=worker_mode == "thread")
        self._healths = PointHealths()
        self._numbers = itertools.count(1)
        self._engine_cpus = None if engine_cpus is None else frozenset(engine_cpus)
        self._page = PageWriter()
        self._relay = Relay(lambda: self._loop.post(self._loop.resume_sockets), self.measures)
        self._loop = Loop(self._relay, self.measures, self._note_finished, self._note_death)
        self._pool = Pool(self._budget, self._loop, worker_pool_size)
        self._guards = Guards(self._budget, self._loop)
        self._spawner: ProcessSpawner | ThreadSpawner | None = None
        self._is_closing = False

    # ---- before serving --------------------------------------------------------------------------------------------

    def prewarm(self, plans: Sequence[BindingPlan] = (), *, loads_torch: bool = False) -> None:
        """Starts the nursery, and a worker for each plan's probe; waits until they run.

        With `loads_torch`, workers started from now on import torch, for which nobody waits here.

        Raises:
            WorkerError: they did not run within 60 s.
        """
        self._ensure_started()
        self._pool.loads_torch = loads_torch or self._pool.loads_torch
        lanes = [self._lane_for(plan, self._points.pack(plan)[0]) for plan in plans]
        deadline = time.monotonic() + PREWARM_S
        if isinstance(self._spawner, ProcessSpawner):
            self._loop.post(self._spawner.prepare)
            if not self._spawner.is_ready.wait(PREWARM_S):
                raise WorkerError(f"the nursery was expected to run within {PREWARM_S:g} s; see the log for why not")
        for lane in lanes:
            if not lane.ready.wait(max(0.0, deadline - time.monotonic())):
                raise WorkerError(
                    f"worker {lane.name} was expected to run within {PREWARM_S:g} s; see the log for why not"
                )

    def check(self, plan: BindingPlan) -> None:
        """Raises `ProbeTransferError` when the probe of `plan` cannot reach a worker."""
        self._points.pack(plan)

    # ---- bindings --------------------------------------------------------------------------------------------------

    def open_binding(self, plan: BindingPlan) -> AsyncBinding:
        """`open_bindings` of one plan."""
        return self.open_bindings([plan])[0]

    def open_bindings(self, plans: Sequence[BindingPlan]) -> list[AsyncBinding]:
        """Gives each plan a ring on a worker's lane, all or none, with one message per worker; waits for none.

        Raises:
            ProbeTransferError: a probe cannot reach a worker.
            RingMemoryError: the memory limit refuses.
            ValuePathError: the context holds a value that cannot cross.
            RouterError: the supervisor is closed.
        """
        packed = [self._points.pack(plan) for plan in plans]
        self._ensure_started()
        contexts: dict[tuple[str, int], bytes] = {}
        by_lane: dict[Lane, list[Opening]] = {}
        for plan, (point, point_id) in zip(plans, packed, strict=True):
            key = plan.request_id, id(plan.context)
            context = contexts.get(key)
            if context is None:
                context = contexts[key] = encode_context(plan.request_id, plan.context)
            is_served = not self._healths.is_suspended(point.worker_key)
            self._loop.expect_calls_of(plan)
            opening = Opening(next(self._numbers), plan, point, point_id, context, is_served)
            by_lane.setdefault(self._lane_for(plan, point), []).append(opening)
        opened: dict[int, AsyncBinding] = {}
        try:
            for lane, openings in by_lane.items():
                opened.update((id(binding.plan), binding) for binding in lane.open_bindings(openings))
        except BaseException:
            for binding in opened.values():
                binding.abandon()
            raise
        unserved = [o.plan for openings in by_lane.values() for o in openings if not o.is_served]
        self._close_unserved([opened[id(plan)] for plan in unserved], "worker_died")
        return [opened[id(plan)] for plan in plans]

    def begin_step(self) -> None:
        """From here to `end_step` records wake no worker."""
        for lane in self._pool.lanes:
            lane.memory.begin_step()

    def end_step(self) -> None:
        """Wakes each worker that has got something, once."""
        for lane in self._pool.lanes:
            lane.memory.end_step()

    # ---- sinks -----------------------------------------------------------------------------------------------------

    def set_sinks(self, sinks: Sequence[object]) -> None:
        """Replaces the sinks: handles go to the workers, objects are called by the relay thread; see `sink_transfer`.

        In thread mode every sink is an object.
        """
        is_thread = self.worker_mode == "thread"
        packed = [None if is_thread else pack_handle(sink) for sink in sinks]
        handles = [data for data in packed if data is not None]
        objects = [sink for sink, data in zip(sinks, packed, strict=True) if data is None]
        frame = m.SetSinks(join_handles(handles), bool(objects))
        self._relay.set_sinks(objects)
        with self._lock:
            self._pool.sinks = frame
            lanes = list(self._pool.lanes)
        for lane in lanes:
            lane.set_sinks(frame)

    def flush(self, deadline: float) -> bool:
        """Waits until what was routed has been seen and written; False when `deadline` (monotonic) passed first."""
        if self._is_forked() or self._spawner is None:
            return True
        asked = [(lane, self._loop.ask_flush(lane)) for lane in self._pool.lanes]
        is_flushed = [self._await_flush(*pair, deadline) for pair in asked]
        return self._relay.flush(deadline) and all(is_flushed)

    def _await_flush(self, lane: Lane, asked: PendingFlush, deadline: float) -> bool:
        """Waits for the answer; asks the next worker when this one dies first."""
        while asked.event.wait(max(0.0, deadline - time.monotonic())):
            if asked.is_answered or not lane.bindings:
                return True
            if self._is_closing:
                return False
            lane.ready.wait(min(_NEXT_WORKER_S, max(0.0, deadline - time.monotonic())))
            asked = self._loop.ask_flush(lane)
        return False

    # ---- state and end ---------------------------------------------------------------------------------------------

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes of shared memory that the rings take now, and how many they may take."""
        return self._budget.used_bytes, self._budget.limit_bytes

    def workers(self) -> list[WorkerStatus]:
        """The workers as they are now."""
        return [lane.status() for lane in self._all_lanes()]

    def close(self, *, wait: bool, deadline: float) -> None:
        """Ends workers, nursery and threads. With `wait`, what was routed is seen and written first.

        Bindings that live get a result without a verdict. Returns at `deadline` (monotonic) at the latest, plus the
        moment it takes to kill what did not leave.
        """
        with self._lock:
            if self._is_closing or self._is_forked():
                return
            self._is_closing = True
        if self._spawner is not None:
            if wait:
                self.flush(deadline)
            for lane in self._all_lanes():
                lane.send(m.StopWorker())
            leave_by = time.monotonic() + _LEAVE_S
            await_exits([lane.process for lane in self._guards.lanes], leave_by)
            await_exits([lane.process for lane in self._pool.lanes], deadline if wait else leave_by)
            self._loop.stop(time.monotonic() + 5.0)
            self._page.close()
            self._spawner.close(time.monotonic() + 5.0)
        for lane in self._all_lanes():
            lane.look_for_last_words()
            for binding in list(lane.bindings.values()):
                lane.forget(binding.binding_id)
                self._close_unserved([binding], "unseen")
        self._relay.close(deadline if wait else time.monotonic())
        for lane in self._all_lanes():
            lane.close()

    # ---- lanes -----------------------------------------------------------------------------------------------------

    def _all_lanes(self) -> list[Lane]:
        return [*self._pool.lanes, *self._guards.lanes]

    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _ensure_started(self) -> None:
        with self._lock:
            if self._is_closing:
                raise RouterError("the router was shut down; make a new one")
            if self._is_forked():
                raise RouterError(
                    "this router was made before a fork and serves async points only in the process that made it; "
                    "make the router after the fork"
                )
            if self._spawner is not None:
                return
            if self.worker_mode == "thread":
                self._spawner = ThreadSpawner(self._note_thread, self._note_thread_exit, self._points.definitions)
            else:
                cpus = self._engine_cpus if self._engine_cpus is not None else current_cpu()
                self._spawner = ProcessSpawner(self._note_spawned, self._note_not_spawned, cpus)
            self._loop.start(self._spawner)
            self._loop.post(lambda: self._loop.after(_PAGE_OPEN_S, self._open_page))

    def _lane_for(self, plan: BindingPlan, packed: PackedPoint) -> Lane:
        with self._lock:
            if plan.is_bounded:
                return self._guards.lane_for(plan, self._start)
            return self._pool.lane_for(plan, packed, self._start)

    def _start(self, lane: Lane) -> None:
        spawner = self._spawner
        assert spawner is not None
        self._loop.post(lambda: spawner.start(lane))

    # ---- called on the loop's thread ---------------------------------------------------------------------------------

    def _open_page(self) -> None:
        self._page.open()
        self._refresh_page()

    def _refresh_page(self) -> None:
        for lane in self._all_lanes():
            lane.let_retired_go()
        self._loop.after(self._page.refresh(self._all_lanes()), self._refresh_page)

    def _note_spawned(self, lane: Lane, process: Any) -> None:
        lane.process = process
        lane.worker_socket.close()
        self._loop.watch(lane, process.pidfd)

    def _note_thread(self, lane: Lane, process: Any) -> None:
        lane.process = process
        self._loop.watch(lane, -1)

    def _note_thread_exit(self, lane: Lane) -> None:
        if not self._is_closing:
            self._loop.post(lambda: self._loop.bury(lane))

    def _note_not_spawned(self, lane: Lane, reason: str) -> None:
        # No binding has lost anything by it: the next attempt finds rings and frames as they are.
        _logger.error("worker %s could not be started: %s", lane.name, reason)
        self.measures.count_restart(lane.name, "not_started")
        lane.note_failed_start()
        self._restart_later(lane)

    def _note_finished(self, binding: AsyncBinding) -> None:
        self._healths.note_result(binding.worker_key)
        if self._relay.wants(binding):
            self._relay.put_result(binding)
        else:
            binding.complete()

    def _note_death(self, lane: Lane, generation: int) -> None:
        if self._is_closing:
            return
        hung, lane.hung_binding_id = lane.hung_binding_id, 0
        culprit = hung or generation
        self.measures.count_restart(lane.name, "hang" if hung else "died")
        self._log_death(lane)
        over = lane.recover(
            culprit=culprit,
            reason="probe_timeout" if hung else "worker_died",
            neighbour_reason="neighbour" if hung else "worker_died",
        )
        blamed = lane.bindings.get(culprit) or next((b for b in over if b.binding_id == culprit), None)
        if hung and blamed is not None:
            self.measures.count_probe_timeout(PointKey.of(blamed.plan.point))
        keys = {blamed.worker_key} if blamed is not None else {b.worker_key for b in lane.bindings.values()}
        self._suspend_often_dying(lane, keys, over)
        self._close_unserved(over)
        self._restart_later(lane)

    def _log_death(self, lane: Lane) -> None:
        process = lane.process
        words = process.read_last_words() if hasattr(process, "read_last_words") else ""
        _logger.error(
            "worker %s is gone; its rings are kept for the next one%s", lane.name, f"\n{words}" if words else ""
        )
        if hasattr(process, "close"):
            process.close()

    def _suspend_often_dying(self, lane: Lane, keys: set[bytes], over: list[AsyncBinding]) -> None:
        now = time.monotonic()
        for key in keys:
            if not self._healths.note_death(key, now):
                continue
            victims = [b for b in list(lane.bindings.values()) if b.worker_key == key]
            points = {PointKey.of(b.plan.point) for b in [*victims, *over] if b.worker_key == key}
            for point in points:
                self.measures.count_suspension(point)
            names = sorted(point.point for point in points)
            _logger.error("point %s is suspended: its workers die too often", ", ".join(names) or "?")
            for victim in victims:
                lane.forget(victim.binding_id)
            over.extend(victims)

    def _close_unserved(self, bindings: Sequence[AsyncBinding], reason: str = "") -> None:
        for binding in bindings:
            if reason:
                binding.add_reason(reason)
            binding.keep_answer(None)
            binding.let_go(is_lane_closing=self._is_closing)
            if self._relay.wants(binding) and not binding.is_abandoned and not self._is_closing:
                self._relay.put_result(binding)
            else:
                binding.complete()

    def _restart_later(self, lane: Lane) -> None:
        self._loop.after(restart_delay_s(lane.deaths, time.monotonic()), lambda: self._restart(lane))

    def _restart(self, lane: Lane) -> None:
        if self._is_closing or self._spawner is None:
            return
        lane.renew()
        self._spawner.start(lane)
