"""The router's supervisor, made when the first async point needs it, and the sinks it serves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from undercurrent.core import ProbeResult, ProbeSignal
from undercurrent.errors import ProbingTypeError, ProbingValueError, RouterError, did_you_mean, one_of
from undercurrent.router.inline_outlet import InlineOutlet
from undercurrent.router.requests import SHUT_DOWN
from undercurrent.sinks.counting import SinkCounts
from undercurrent.workers.measures import Measures

if TYPE_CHECKING:
    from undercurrent.workers import Supervisor

__all__ = ["LogSinkLike", "Supervision", "WorkerSettings"]

_WORKER_MODES = ("process", "thread")


@runtime_checkable
class LogSinkLike(Protocol):
    """Anything with these two methods is a log sink; it need not derive from `undercurrent.sinks.LogSink`."""

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal, /) -> object:
        """Takes one signal of an async probe."""

    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult, /) -> object:
        """Takes the result of an async probe."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a supervisor is made with.

    Raises:
        ProbingValueError: a value is out of range.
    """

    worker_pool_size: int
    worker_mode: str
    engine_cpus: Collection[int] | None
    memory_max_bytes: int | None

    def __post_init__(self) -> None:
        if not isinstance(self.worker_pool_size, int) or self.worker_pool_size < 1:
            raise ProbingValueError(
                f"`worker_pool_size` must be >= 1, got {self.worker_pool_size!r}; leave it out for one worker per CPU, "
                "at most 8"
            )
        if self.worker_mode not in _WORKER_MODES:
            raise ProbingValueError(
                f"`worker_mode` must be {one_of(_WORKER_MODES)}, got {self.worker_mode!r}"
                f"{did_you_mean(str(self.worker_mode), _WORKER_MODES)}"
            )
        if self.memory_max_bytes is not None and self.memory_max_bytes < 1:
            raise ProbingValueError(
                f"`memory_max_bytes` must be >= 1, got {self.memory_max_bytes!r}; leave it out for a quarter of the "
                "memory"
            )


@dataclass(frozen=True, slots=True)
class _AttachedSink:
    sink: LogSinkLike
    is_inline: bool
    """Whether it also gets what inline points say."""
    counts: SinkCounts
    """What it counted itself since it was attached."""


class Supervision:
    """Owns the supervisor and the list of sinks. `close` is idempotent and final."""

    def __init__(self, settings: WorkerSettings, measures: Measures, on_created: Callable[[], None]) -> None:
        """`on_created` is called once, outside the lock, after a supervisor was made."""
        self._settings = settings
        self._measures = measures
        self._on_created = on_created
        self._lock = threading.Lock()
        self._sinks: list[_AttachedSink] = []  # guarded by _lock
        self.outlet = InlineOutlet(measures)
        """Where what inline points say goes."""
        self._is_closed = False  # guarded by _lock
        self._collecting = threading.Lock()  # nothing else is done under it, as it calls sinks
        self._inherited: list[Supervisor] = []
        self.supervisor: Supervisor | None = None
        """None until the first async registration or `prewarm`; written under the lock."""

    def get(self) -> Supervisor:
        """Returns the supervisor, which is made by the first call.

        Raises:
            RouterError: closed.
            RingUnavailableError: this is not Linux.
        """
        with self._lock:
            if self._is_closed:
                raise RouterError(SHUT_DOWN)
            if self.supervisor is not None:
                return self.supervisor
            # Imported here: a router with inline points only needs no shared memory and no processes.
            from undercurrent.ipc.memory import require_memfd
            from undercurrent.workers import Supervisor

            require_memfd()
            supervisor = Supervisor(
                worker_pool_size=self._settings.worker_pool_size,
                worker_mode=self._settings.worker_mode,
                memory_max_bytes=self._settings.memory_max_bytes,
                engine_cpus=self._settings.engine_cpus,
                measures=self._measures,
            )
            supervisor.set_sinks([attached.sink for attached in self._sinks])
            self.supervisor = supervisor
        self._on_created()
        return supervisor

    def replace_sinks(self, sink: LogSinkLike | None, *, is_inline: bool) -> None:
        """Puts `sink` in place of all sinks; None leaves none."""
        attached = [] if sink is None else [_attached(sink, is_inline)]
        self.collect_sink_events()
        with self._lock:
            self._set_sinks(attached)

    def add_sink(self, sink: LogSinkLike, *, is_inline: bool) -> None:
        """Adds a sink behind the others; one that is there already keeps its place and gets `is_inline`."""
        attached = _attached(sink, is_inline)
        self.collect_sink_events()
        with self._lock:
            if any(known.sink is sink for known in self._sinks):
                self._set_sinks([attached if known.sink is sink else known for known in self._sinks])
            else:
                self._set_sinks([*self._sinks, attached])

    def remove_sink(self, sink: LogSinkLike) -> None:
        """Removes a sink.

        Raises:
            RouterError: it is not attached.
        """
        self.collect_sink_events()
        with self._lock:
            left = [known for known in self._sinks if known.sink is not sink]
            if len(left) == len(self._sinks):
                raise RouterError(f"the sink {sink!r} is not attached; attach it with `add_log_sink`")
            self._set_sinks(left)

    def collect_sink_events(self) -> dict[str, int]:
        """Adds what the sinks counted themselves to the measures; returns how many records wait in them, by class."""
        waiting: dict[str, int] = {}
        if self._collecting.acquire(blocking=False):  # two at a time would count an event twice
            try:
                for attached in self._sinks:
                    name = type(attached.sink).__name__
                    self._measures.add_sink_events(name, attached.counts.take())
                    if attached.counts.waiting is not None:
                        waiting[name] = waiting.get(name, 0) + attached.counts.waiting
            finally:
                self._collecting.release()
        return waiting

    def close(self, *, wait: bool, deadline: float) -> None:
        """Closes the supervisor; no other is made."""
        with self._lock:
            self._is_closed = True
            supervisor, self.supervisor = self.supervisor, None
        if wait:
            self.outlet.flush(deadline)
        self.outlet.close()
        if supervisor is not None:
            supervisor.close(wait=wait, deadline=deadline)

    def renew_after_fork(self) -> None:
        """In a forked child: the next async registration makes a supervisor of the child's own."""
        self._lock = threading.Lock()
        self._collecting = threading.Lock()
        # A sink may have begun to count anew, as its thread is the parent's.
        self._sinks = [_attached(attached.sink, attached.is_inline) for attached in self._sinks]
        if self.supervisor is not None:
            # Kept and never called: finalizing it would close what the parent shares with its workers.
            self._inherited.append(self.supervisor)
            self.supervisor = None
        self.outlet.renew_after_fork()

    def _set_sinks(self, sinks: list[_AttachedSink]) -> None:
        self._sinks = sinks
        every = [attached.sink for attached in sinks]
        self.outlet.set_sinks([attached.sink for attached in sinks if attached.is_inline], every=every)
        if self.supervisor is not None:
            self.supervisor.set_sinks([attached.sink for attached in sinks])


def _attached(sink: LogSinkLike, is_inline: bool) -> _AttachedSink:
    return _AttachedSink(_checked(sink), is_inline, SinkCounts(sink))


def _checked(sink: LogSinkLike) -> LogSinkLike:
    if isinstance(sink, type) or not isinstance(sink, LogSinkLike):
        raise ProbingTypeError(
            f"a log sink needs the methods `write_signal` and `write_result`, got {sink!r}; pass an instance that has "
            "both"
        )
    return sink
