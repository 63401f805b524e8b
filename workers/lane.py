"""The engine's end of a lane: memory, socket, and the worker that serves it now.

A lane outlives its worker: when one dies, the rings and what waits in them stay, and the next worker goes on behind the
last record taken. Methods may be called on any thread unless they say otherwise.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from undercurrent.errors import RingMemoryError, WorkerError
from undercurrent.ipc import MemoryBudget, ProducerLane, ProducerRing
from undercurrent.ipc.layout import BLOCK, DROP_NEWEST, DROP_OLDEST
from undercurrent.spec import OverflowPolicy
from undercurrent.workers import messages as m
from undercurrent.workers.binding import AsyncBinding
from undercurrent.workers.channel import Channel, ChannelClosedError
from undercurrent.workers.last_words import LastWords
from undercurrent.workers.plans import BindingPlan, BindingStatistics, WorkerStatus
from undercurrent.workers.transfer import PackedPoint

_logger = logging.getLogger("undercurrent.workers")

RETIRED_MAX = 8
"""So many finished bindings wait for the supervisor's thread to let their rings go."""
POINTS_LOADED_MAX = 1024
"""A worker forgets the definition used longest ago beyond this many."""
_VERDICT_S = 0.25
"""What a worker gets, at most, between the last record of a drain and the moment its verdict is due."""
_POLICIES = {
    OverflowPolicy.DROP_OLDEST: DROP_OLDEST,
    OverflowPolicy.DROP_NEWEST: DROP_NEWEST,
    OverflowPolicy.BLOCK: BLOCK,
}


class Opening(msgspec.Struct, frozen=True):
    """What a lane needs to open one binding."""

    binding_id: int
    plan: BindingPlan
    packed: PackedPoint
    point_id: int
    context_data: bytes
    is_served: bool = True


class Lane:
    """Owns the lane's memory and the engine's end of its socket. `close()` is idempotent."""

    binding_type: type[AsyncBinding] = AsyncBinding
    is_guard = False
    """Whether its worker answers each record, at the engine's priority."""

    def __init__(
        self,
        name: str,
        budget: MemoryBudget,
        on_unsent: Callable[[], None],
        on_retired: Callable[[Lane], None],
    ) -> None:
        """Both are called on any thread: when the socket is full and frames wait, when rings can be let go."""
        self.name = name
        self._on_unsent = on_unsent
        self._on_retired = on_retired
        self.memory = ProducerLane(budget)
        self.bindings: dict[int, AsyncBinding] = {}  # guarded by _lock
        self.point_names: set[str] = set()
        self.key_count = 0
        """How many (probe class, arguments, point name) were given to this lane; guarded by the supervisor's lock."""
        self._retired: deque[AsyncBinding] = deque()
        self.deaths: deque[float] = deque(maxlen=16)
        """When the last ones were, for the back-off; `death_count` counts all."""
        self.death_count = 0
        self.settled_counts: tuple[int, ...] = (0, 0, 0)
        """Activations, signals and errors of bindings whose rings were let go; guarded by _settled_lock."""
        self._settled_lock = threading.Lock()
        self.process: Any = None
        """The `SpawnedWorker` that serves the lane, None before it is known and after its death."""
        self.state = "starting"
        self.since = time.time()
        self.ready = threading.Event()
        self.threads = 1
        self.needs_gpu = False
        self.loads_torch = False
        """Whether its first worker imports torch before it yields to the engine; a later one does so when it must."""
        self.last_words: LastWords | None = None
        """How results come without a frame; a guard's never do."""
        self.hung_binding_id = 0
        """The binding whose probe was ended for its timeout, until the worker's death is handled."""
        self._lock = threading.Lock()
        self._loaded: OrderedDict[bytes, int] = OrderedDict()  # digest -> point id, oldest use first; guarded by _lock
        self._points: dict[int, PackedPoint] = {}
        self._sinks = m.SetSinks(b"", False)
        self.channel, self.worker_socket = _socket_pair()

    # ---- bindings ------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Process id of the worker, 0 while there is none."""
        return self.process.pid if self.process is not None else 0

    def status(self) -> WorkerStatus:
        """The worker as it is now."""
        return WorkerStatus(
            name=self.name,
            state=self.state,
            pid=self.pid or None,
            bindings=self.load,
            deaths=self.death_count,
            points=tuple(sorted(self.point_names)),
        )

    @property
    def load(self) -> int:
        """How many bindings live here."""
        return len(self.bindings)

    def open_bindings(self, openings: Sequence[Opening]) -> list[AsyncBinding]:
        """Opens a ring each and tells the worker, which need not run yet, in one message; never waits. All or none.

        A binding that is not served (its point is suspended) is not told to the worker and not kept here.

        Raises:
            RingMemoryError: the memory limit refuses; the message holds the sum.
        """
        opened: list[AsyncBinding] = []
        frames: list[m.Frame] = []
        with self._lock:
            if self.state == "stopped":
                raise WorkerError(f"worker {self.name} is stopped; the router was shut down")
            try:
                for opening in openings:
                    opened.append(self._open(opening, frames))  # noqa: PERF401 - what was opened must be known
            except BaseException:
                for binding in opened:
                    self.bindings.pop(binding.binding_id, None)
                    binding.keep_answer(None)  # nobody was told of it
                    binding.let_go()
                raise
            if frames:
                self._send(*frames)
        return opened

    def _open(self, opening: Opening, frames: list[m.Frame]) -> AsyncBinding:
        plan, packed = opening.plan, opening.packed
        policy = _POLICIES[plan.overflow_policy]
        try:
            ring = self._open_ring(opening, policy)
        except RingMemoryError:
            if not self._retired:
                raise
            self.let_retired_go()
            ring = self._open_ring(opening, policy)
        binding = self.binding_type(opening.binding_id, plan, ring, self, packed.worker_key)
        if opening.is_served:
            binding.context_data = opening.context_data
            self.bindings[opening.binding_id] = binding
            self.point_names.add(plan.point.name)
            frames += self._load_point(packed, opening.point_id)
            binding.point_id = self._loaded[packed.digest]
            frames.append(self._open_frame(binding))
        return binding

    def _open_ring(self, opening: Opening, policy: int) -> ProducerRing:
        return self.memory.open_ring(
            queue_depth=opening.plan.queue_depth,
            policy=policy,
            generation=opening.binding_id,
        )

    def end_bindings(self, bindings: Sequence[AsyncBinding], answer_by: float | None) -> None:
        """Closes the rings and asks for the results, which somebody wants by `answer_by` (monotonic)."""
        frames: list[m.Frame] = []
        drain_until = answer_by
        if drain_until is not None:
            drain_until -= min(_VERDICT_S, max(0.0, drain_until - time.monotonic()) / 5)
        with self._lock:
            last_words = self.last_words if self.state == "running" else None
            for binding in bindings:
                if binding.is_ending:
                    continue
                binding.is_ending = True
                binding.drain_until = drain_until
                if binding.is_finished or (last_words is not None and last_words.ask(binding, drain_until)):
                    continue
                binding.ring.close()
                frames.append(m.EndBinding(binding.binding_id, drain_until))
            if frames:
                self._send(*frames)
            self.memory.rouse()

    def drop_binding(self, binding: AsyncBinding) -> None:
        """Forgets the binding; its ring is let go when the worker has detached from it."""
        with self._lock:
            if binding.is_finished or binding.is_abandoned:
                return
            binding.is_abandoned = True
            binding.ring.close()
            self._send(m.DropBinding(binding.binding_id))

    def confirm_binding(self, binding: AsyncBinding) -> bool:
        """Asks whether the probe started; False where the binding is over."""
        with self._lock:
            if not binding.is_finished:
                self._send(m.ConfirmStart(binding.binding_id))
                self.memory.rouse()
            return not binding.is_finished

    def forget(self, binding_id: int) -> AsyncBinding | None:
        """Takes a binding out of the lane; called on the supervisor's thread."""
        with self._lock:
            return self.bindings.pop(binding_id, None)

    def retire(self, binding: AsyncBinding) -> None:
        """Puts a finished binding's ring aside, to be let go when nobody waits for a result. Any thread."""
        self._retired.append(binding)
        if len(self._retired) == RETIRED_MAX:
            self._on_retired(self)
        elif len(self._retired) > 8 * RETIRED_MAX:  # nobody came for them
            self.let_retired_go()

    def unsettled_bindings(self) -> list[AsyncBinding]:
        """The bindings whose rings are not let go: those that live, and those that have just ended."""
        return [*self.bindings.values(), *self._retired]

    def note_settled(self, statistics: BindingStatistics) -> None:
        """Keeps what was counted in a binding whose ring is let go. Any thread, with or without the lane's lock."""
        counted = (statistics.activations, statistics.signals, statistics.errors)
        with self._settled_lock:
            self.settled_counts = tuple(map(int.__add__, self.settled_counts, counted))

    def let_retired_go(self) -> None:
        """Returns the memory of what was retired. Any thread."""
        while self._retired:
            try:
                binding = self._retired.popleft()
            except IndexError:  # another thread was faster
                return
            binding.let_go()

    def look_for_last_words(self) -> None:
        """Takes the results that a worker which is gone has left, before its bindings are given up or begun again."""
        if self.last_words is not None:
            for binding in list(self.bindings.values()):
                self.last_words.look(binding)

    def set_sinks(self, sinks: m.SetSinks) -> None:
        """Tells the worker its sinks; the next worker is told them too."""
        with self._lock:
            self._sinks = sinks
            self._send(sinks)

    def send(self, *frames: m.Frame) -> bool:
        """Sends frames and rings the doorbell; False where no worker is there to read them."""
        with self._lock:
            is_sent = self._send(*frames)
            self.memory.rouse()
            return is_sent

    # ---- the worker's death and its successor ----------------------------------------------------------------------

    def recover(self, *, culprit: int, reason: str, neighbour_reason: str) -> list[AsyncBinding]:
        """After the worker's death is certain: accounts what it held; returns the bindings that end with it.

        A binding ends when it has lost its worker twice, or was only waiting to be dropped. Called on the
        supervisor's thread.
        """
        self.look_for_last_words()
        with self._lock:
            self._note_death()
            self.process = None
            self.ready.clear()
            self.memory.recover_consumer()
            over: list[AsyncBinding] = []
            for binding in list(self.bindings.values()):
                is_culprit = culprit in (0, binding.binding_id)
                binding.note_loss(reason if is_culprit else neighbour_reason)
                if binding.worker_losses >= 2 or binding.is_abandoned:
                    over.append(self.bindings.pop(binding.binding_id))
            self._part()
            return over

    def note_failed_start(self) -> None:
        """No worker came of the last attempt; called on the supervisor's thread."""
        with self._lock:
            self._note_death()
            self._part()

    def renew(self) -> None:
        """Makes a fresh socket pair and says everything again that the next worker must know.

        Called on the supervisor's thread, before the next worker is asked for.
        """
        with self._lock:
            self.channel, self.worker_socket = _socket_pair()
            self.state = "starting"
            frames: list[m.Frame] = [self._sinks, *self._preparations()]
            used = {binding.point_id for binding in self.bindings.values()}
            self._loaded = OrderedDict((d, i) for d, i in self._loaded.items() if i in used)
            self._points = {i: self._points[i] for i in self._loaded.values()}
            frames += [m.LoadPoint(i, self._points[i].data) for i in self._loaded.values()]
            for binding in self.bindings.values():
                if binding.is_abandoned:  # dropped while no worker was there to hear it
                    frames.append(m.DropBinding(binding.binding_id))
                    continue
                frames.append(self._open_frame(binding))
                if binding.awaits_start:
                    frames.append(m.ConfirmStart(binding.binding_id))
                if binding.is_ending:
                    frames.append(m.EndBinding(binding.binding_id, binding.drain_until))
            self._send(*frames)

    def close(self) -> None:
        """Lets memory and socket go; the worker is gone or does not matter any more."""
        self.let_retired_go()
        with self._lock:
            self.state = "stopped"
            self.channel.close()
            self.worker_socket.close()
            self.memory.close()

    # ---- with _lock held -------------------------------------------------------------------------------------------

    def _preparations(self) -> list[m.Frame]:
        """What a new worker must do before its first binding."""
        return []

    def _note_death(self) -> None:
        self.deaths.append(time.monotonic())
        self.death_count += 1

    def _part(self) -> None:
        self.channel.close()
        self.worker_socket.close()
        self.state = "backing_off"

    def _load_point(self, packed: PackedPoint, point_id: int) -> list[m.Frame]:
        if packed.digest in self._loaded:
            self._loaded.move_to_end(packed.digest)
            return []
        frames: list[m.Frame] = [m.LoadPoint(point_id, packed.data)]
        self._loaded[packed.digest] = point_id
        self._points[point_id] = packed
        if len(self._loaded) > POINTS_LOADED_MAX:
            used = {binding.point_id for binding in self.bindings.values()}
            oldest = next((d for d, i in self._loaded.items() if i not in used and i != point_id), None)
            if oldest is not None:
                forgotten = self._loaded.pop(oldest)
                del self._points[forgotten]
                frames.append(m.UnloadPoint(forgotten))
        return frames

    def _open_frame(self, binding: AsyncBinding) -> m.OpenBinding:
        return m.OpenBinding(
            binding.binding_id,
            binding.point_id,
            binding.ring.ring_index,
            binding.ring.queue_depth,
            binding.ring.policy,
            binding.plan.request_id,
            binding.context_data,
            binding.worker_losses,
            tuple(binding.reasons),
        )

    def _send(self, *frames: m.Frame) -> bool:
        if self.state in ("backing_off", "stopped"):
            return False  # `renew` says everything again
        try:
            is_sent = self.channel.send(*frames)
        except ChannelClosedError:
            return False  # the worker just died; its pidfd tells the supervisor, and `renew` says it again
        if not is_sent:
            self._on_unsent()
        self.memory.ring_mail()
        return True


def _socket_pair() -> tuple[Channel[m.ToEngine], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours, m.engine_decoder), theirs
