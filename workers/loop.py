"""The supervisor's thread, `undercurrent-supervisor`: reads what workers say, sees them die, starts the next.

Everything here runs on that thread, except `post`, `wake`, `start` and `join`.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from undercurrent.core import ProbeResult
from undercurrent.errors import WorkerError
from undercurrent.workers import messages as m
from undercurrent.workers.binding import AsyncBinding
from undercurrent.workers.channel import ChannelClosedError, ChannelCorruptError
from undercurrent.workers.guard_binding import GuardBinding
from undercurrent.workers.lane import Lane
from undercurrent.workers.last_words import LastWords
from undercurrent.workers.measures import Measures, PointKey
from undercurrent.workers.plans import BindingPlan
from undercurrent.workers.relay import Relay

_logger = logging.getLogger("undercurrent.workers")

HANG_LOOK_S_MAX = 3.75
"""Between two looks for hung probes; an eighth of the default `probe_timeout_s`."""
HANG_LOOK_S_MIN = 0.02
_UNSENT_S = 0.01
_RETIRE_S = 0.02
STACK_S = 2.0


class PendingFlush:
    """A flush that was asked for."""

    _tokens = itertools.count(1)

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.token = next(self._tokens)
        self.event = threading.Event()
        self.is_answered = False


class Loop:
    """Owns the thread and its selector. The supervisor owns the lanes and says what a death means."""

    def __init__(
        self,
        relay: Relay,
        measures: Measures,
        on_finished: Callable[[Any], None],
        on_death: Callable[[Lane, int], None],
    ) -> None:
        self._relay = relay
        self._measures = measures
        self._on_finished = on_finished
        self._on_death = on_death
        self._selector = selectors.DefaultSelector()
        self._wake_lock = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # -1 when closed; guarded by _wake_lock
        self._selector.register(self._wake_fd, selectors.EVENT_READ, self._take_posts)
        self._posts: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._watched: dict[int, tuple[int, int]] = {}  # id(lane) -> (socket fd, pidfd or -1)
        self._lanes: dict[int, Lane] = {}
        self._flushes: dict[int, PendingFlush] = {}
        self._spawner: Any = None
        self._spawner_fd = -1
        self._next_timer = float("inf")
        self._has_unsent = False
        self._look_s = HANG_LOOK_S_MAX
        self._next_look = 0.0
        self._is_stopping = False
        self._are_sockets_paused = False
        self.last_words = LastWords(self._finish, lambda: relay.is_active, self.post, self.after)
        # Daemonic: an interpreter that ends without `shutdown()` must end at once. What the thread owns (lanes,
        # descriptors) is the kernel's to free, and workers end on the engine's pidfd.
        self._thread = threading.Thread(target=self._run, name="undercurrent-supervisor", daemon=True)

    def start(self, spawner: Any) -> None:
        """Starts the thread."""
        self._spawner = spawner
        self.post(self._look_for_hung)
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Runs `call` on the thread soon; any thread may ask."""
        self._posts.append(call)
        self.wake()

    def wake(self) -> None:
        """Makes the thread look at its posts; one that has ended looks no more."""
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def stop(self, deadline: float) -> None:
        """Ends the thread; any other thread may ask, once."""
        if not self._thread.is_alive():
            return

        def stop() -> None:
            self._is_stopping = True

        self.post(stop)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._thread.is_alive():
            self._selector.close()
            with self._wake_lock:  # the number may be another file's a moment later
                os.close(self._wake_fd)
                self._wake_fd = -1

    def ask_flush(self, lane: Lane) -> PendingFlush:
        """Asks the lane's worker to write what it has; any thread may. No worker, or its death, ends the wait too."""
        pending = PendingFlush(lane)
        self._flushes[pending.token] = pending
        if not lane.send(m.FlushSinks(pending.token)):
            self._end_flush(pending.token, is_answered=False)
        return pending

    def _end_flush(self, token: int, *, is_answered: bool) -> None:
        pending = self._flushes.pop(token, None)
        if pending is not None:
            pending.is_answered = is_answered
            pending.event.set()

    def watch(self, lane: Lane, pidfd: int) -> None:
        """Reads the lane's socket from now on, and sees its worker's end by `pidfd` (-1 in thread mode)."""
        socket_fd = lane.channel.fileno()
        self._lanes[id(lane)] = lane
        self._watched[id(lane)] = (socket_fd, pidfd)
        self._has_unsent = True  # a full socket of a lane that nobody watched could not be noticed
        self._selector.register(socket_fd, selectors.EVENT_READ, lambda: self._read(lane))
        if pidfd >= 0:
            self._selector.register(pidfd, selectors.EVENT_READ, lambda: self.bury(lane))

    def unwatch(self, lane: Lane) -> None:
        """Forgets the lane's descriptors."""
        self._lanes.pop(id(lane), None)
        for fd in self._watched.pop(id(lane), ()):
            if fd >= 0:
                try:
                    self._selector.unregister(fd)
                except (KeyError, ValueError):
                    continue

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Runs `call` in `delay_s` seconds."""
        when = time.monotonic() + delay_s
        self._timers.append((when, call))
        self._next_timer = min(self._next_timer, when)

    def note_unsent(self) -> None:
        """A lane's socket is full: the rest is sent from here. Any thread may say so."""
        self._has_unsent = True
        self.wake()

    def note_retired(self, lane: Lane) -> None:
        """Lets rings of `lane` go a moment later: whoever got a result wants the interpreter first. Any thread."""
        self.post(lambda: self.after(_RETIRE_S, lane.let_retired_go))

    def expect_calls_of(self, plan: BindingPlan) -> None:
        """Looks for hung probes often enough to notice that one of `plan` is. Any thread may ask."""
        look_s = max(plan.probe_timeout_s / 8, HANG_LOOK_S_MIN)
        # Whoever waits for a guard says when it is late.
        if look_s < self._look_s and not plan.is_bounded:
            self._look_s = look_s
            self._next_look = 0.0
            self.post(self._look_for_hung)

    def bury(self, lane: Lane) -> None:
        """The worker is dead: reads its last words, then says so to the supervisor."""
        if id(lane) not in self._watched:
            return
        self._read_frames(lane)
        self.unwatch(lane)
        for pending in list(self._flushes.values()):
            if pending.lane is lane:
                self._end_flush(pending.token, is_answered=False)
        generation, _ = lane.memory.activity()
        self._on_death(lane, generation)

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._turn()
            except Exception:
                # Our mistake, never the user's: the thread must survive it, or every end_request would time out.
                _logger.exception("the supervisor's loop met an error and goes on")

    def _turn(self) -> None:
        # Whoever waits for a result gets the interpreter's lock when this thread blocks again: what is not needed for
        # the frames at hand is done by timers.
        self._watch_spawner()
        for key, _ in self._selector.select(self._timeout_s()):
            key.data()
        if self._has_unsent:
            self._send_unsent()
        if self._relay.is_congested and not self._are_sockets_paused:
            self._pause_sockets()
        now = time.monotonic()
        if now < self._next_timer:
            return
        due = [call for when, call in self._timers if when <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        self._next_timer = min((when for when, _ in self._timers), default=float("inf"))
        for call in due:
            call()

    def _timeout_s(self) -> float | None:
        """None, no deadline, when nothing is timed: every other event the thread waits for has a descriptor."""
        if self._has_unsent:
            return _UNSENT_S
        return None if self._next_timer == float("inf") else max(0.0, self._next_timer - time.monotonic())

    def _watch_spawner(self) -> None:
        fd = self._spawner.fileno()
        fd = -1 if fd is None else fd
        if fd == self._spawner_fd:
            return
        if self._spawner_fd >= 0:
            with suppress(KeyError, ValueError):
                self._selector.unregister(self._spawner_fd)
        self._spawner_fd = fd
        if fd >= 0:
            self._selector.register(fd, selectors.EVENT_READ, self._spawner.read)

    def _take_posts(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        while self._posts:
            self._posts.popleft()()

    def _send_unsent(self) -> None:
        self._has_unsent = False
        for lane in list(self._lanes.values()):
            if lane.channel.has_unsent:
                try:
                    self._has_unsent |= not lane.channel.send_outbox()
                    lane.memory.ring_mail()
                    lane.memory.rouse()
                except ChannelClosedError:
                    continue

    # ---- congestion ------------------------------------------------------------------------------------------------

    def _pause_sockets(self) -> None:
        self._are_sockets_paused = True
        for socket_fd, _ in self._watched.values():
            self._selector.unregister(socket_fd)

    def resume_sockets(self) -> None:
        """The relay has caught up."""
        if self._are_sockets_paused:
            self._are_sockets_paused = False
            for key, (socket_fd, _) in self._watched.items():
                lane = self._lanes[key]
                self._selector.register(socket_fd, selectors.EVENT_READ, lambda lane=lane: self._read(lane))

    # ---- frames ----------------------------------------------------------------------------------------------------

    def _read(self, lane: Lane) -> None:
        if not self._read_frames(lane) and self._watched.get(id(lane), (0, -1))[1] < 0:
            self.unwatch(lane)  # in thread mode the thread's exit is reported by itself

    def _read_frames(self, lane: Lane) -> bool:
        """Handles what has arrived; False when the worker's end is closed."""
        try:
            for frame in lane.channel.receive():
                self._take_frame(lane, frame)
        except ChannelClosedError:
            socket_fd, pidfd = self._watched.get(id(lane), (-1, -1))
            if pidfd >= 0 and socket_fd >= 0 and not self._are_sockets_paused:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(socket_fd)  # else a closed socket would be readable for ever
            return False
        except ChannelCorruptError:
            _logger.exception("worker %s speaks nonsense and is ended", lane.name)
            if lane.process is not None:
                lane.process.kill()
        return True

    def _take_frame(self, lane: Lane, frame: m.ToEngine) -> None:
        match frame:
            case m.Finished():
                self._finish(lane, frame.binding_id, frame.result, frame.measured)
            case m.Signalled():
                signalled = lane.bindings.get(frame.binding_id)
                if signalled is not None and self._relay.is_active:
                    self._relay.put_signal(signalled, frame)
            case m.Answered():
                asking = lane.bindings.get(frame.binding_id)
                if isinstance(asking, GuardBinding):
                    asking.keep_large_answer(frame.sequence, frame.kind, frame.data)
            case m.Dropped():
                dropped = lane.forget(frame.binding_id)
                if dropped is not None:
                    dropped.keep_answer(None)
                    dropped.complete()
                    lane.retire(dropped)
            case m.Started() | m.StartFailed():
                started = lane.bindings.get(frame.binding_id)
                if started is not None:
                    started.note_start(_start_error(frame))
            case m.Flushed():
                self._end_flush(frame.token, is_answered=True)
            case m.MeasuredPoint():
                key = self._measures.fit(PointKey(frame.point, frame.probe, frame.mode))
                self._measures.add_point(self._measures.point(key), frame.words)
            case m.MeasuredSink():
                self._measures.add_sink(frame.sink, frame.words, frame.events)
            case m.Logged():
                logging.getLogger(frame.logger).log(frame.level, "[%s] %s", lane.name, frame.message)
            case m.WorkerReady():
                lane.state = "running"
                lane.ready.set()

    def _finish(
        self, lane: Lane, binding_id: int, result: bytes | ProbeResult, measured: bytes | Sequence[int]
    ) -> None:
        """A binding is over. Called on this thread for a frame, and on the waiter's for a last word."""
        binding = lane.forget(binding_id)
        if binding is None:
            return
        if measured:
            self._measures.add_point(self._measures.meter_of(binding.plan.point), measured)
        binding.keep_answer(result)
        self._on_finished(binding)
        binding.lane.retire(binding)

    # ---- hung probes -----------------------------------------------------------------------------------------------

    def _look_for_hung(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self._look_s
            self.after(self._look_s, self._look_for_hung)
        for lane in list(self._lanes.values()):
            if not lane.bindings or lane.state != "running":
                continue
            generation, since_ns = lane.memory.activity()
            binding = lane.bindings.get(generation)
            if binding is None or now - since_ns / 1e9 < binding.call_limit_s:
                continue
            if lane.memory.activity() == (generation, since_ns):
                self.end_hung(lane, generation, binding)

    def end_hung(self, lane: Lane, generation: int, binding: AsyncBinding) -> None:
        """Ends a worker whose probe, of binding `generation`, has run too long; its stack is logged first."""
        if lane.hung_binding_id == generation:
            return
        lane.hung_binding_id = generation
        point_name, timeout_s = binding.plan.point.name, binding.call_limit_s
        if not hasattr(lane.process, "kill"):
            _logger.error(
                "probe of point %r runs longer than %s s; a worker thread cannot be ended", point_name, timeout_s
            )
            return
        stack = lane.process.take_stack(time.monotonic() + STACK_S)
        _logger.error(
            "probe of point %r ran longer than `probe_timeout_s` %s s; worker %s (pid %d) is ended, its stack was:\n%s",
            point_name,
            timeout_s,
            lane.name,
            lane.process.pid,
            stack,
        )
        lane.process.kill()


def _start_error(frame: m.Started | m.StartFailed) -> BaseException | None:
    if isinstance(frame, m.Started):
        return None
    if frame.packed:
        try:
            error = pickle.loads(frame.packed)
        except Exception:  # the class exists in the worker only
            error = None
        if isinstance(error, BaseException):
            return error
    return WorkerError(f"the probe did not start: {frame.error_type}: {frame.message}")
