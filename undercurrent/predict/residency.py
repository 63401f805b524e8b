"""Which checkpoints are in memory: built once, counted while in use, let go least recently used first.

Nothing here runs hooks or holds the table's lock while a checkpoint is built: callers get what was evicted and tell it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from undercurrent.predict.errors import PredictRuntimeError

__all__ = ["Residency", "Resident"]


class Resident:
    """A checkpoint in memory. `use_count` belongs to the residency's lock."""

    __slots__ = ("agent", "is_attached", "name", "size_bytes", "use_count")

    def __init__(self, name: str, agent: Any, *, is_attached: bool) -> None:
        self.name = name
        self.agent = agent
        self.size_bytes = int(getattr(agent, "size_bytes", 0) or 0)
        self.is_attached = is_attached
        self.use_count = 0


@dataclass
class _Build:
    """A build that is under way, for all who wait for it."""

    builder: int
    done: threading.Event
    resident: Resident | None = None
    error: BaseException | None = None


class Residency:
    """The table of resident checkpoints.

    Limits hold for what was built here. A checkpoint is not evicted while a request uses it, while it is pinned, if it
    was attached, or if it is the one used last; so the limits can be passed for a while, and what is over goes as soon
    as its last user is done.
    """

    def __init__(self, build: Callable[[str], Any], *, max_loaded: int | None, max_loaded_bytes: int | None) -> None:
        self._build = build
        self.max_loaded = max_loaded
        self.max_loaded_bytes = max_loaded_bytes
        self._lock = threading.Lock()
        self._build_lock = threading.RLock()
        self._residents: OrderedDict[str, Resident] = OrderedDict()
        self._builds: dict[str, _Build] = {}
        self._pins: set[str] = set()
        self._is_over = False

    def lease(self, name: str) -> tuple[Resident, list[Resident] | None]:
        """Returns a checkpoint, in use until `release`; builds it where it is not resident.

        The second value is None, or, where this call built it, what was evicted for it. Callers that ask for one that
        is being built wait for that build and share its error.
        """
        while True:
            with self._lock:
                resident = self._residents.get(name)
                if resident is not None:
                    resident.use_count += 1
                    self._residents.move_to_end(name)
                    return resident, None
                build = self._builds.get(name)
                if build is None:
                    build = self._builds[name] = _Build(threading.get_ident(), threading.Event())
                    break
            if build.builder == threading.get_ident():
                raise PredictRuntimeError(f"the factory of checkpoint {name!r} asks for {name!r} while it makes it")
            build.done.wait()
            if build.error is not None:
                raise build.error
        return self._lease_built(name, build)

    def _lease_built(self, name: str, build: _Build) -> tuple[Resident, list[Resident] | None]:
        try:
            # One build at a time bounds memory: two half-loaded checkpoints may not fit where one does.
            with self._build_lock:
                agent = self._build(name)
        except BaseException as error:
            with self._lock:
                del self._builds[name]
            build.error = error
            build.done.set()
            raise
        with self._lock:
            del self._builds[name]
            resident = self._residents.get(name)
            evicted: list[Resident] | None = None
            if resident is None:
                resident = self._residents[name] = Resident(name, agent, is_attached=False)
                evicted = self._evict()
            # Else one was attached meanwhile, and wins.
            resident.use_count += 1
        build.done.set()
        return resident, evicted

    def release(self, resident: Resident) -> list[Resident]:
        """Ends a use; returns what could go now that could not before."""
        with self._lock:
            resident.use_count -= 1
            return self._evict() if self._is_over and not resident.use_count else []

    def attach(self, name: str, agent: Any) -> Resident | None:
        """Makes an agent resident under a name, for as long as nobody unloads it; returns what it displaced."""
        with self._lock:
            displaced = self._residents.pop(name, None)
            self._residents[name] = Resident(name, agent, is_attached=True)
            return displaced if displaced is not None and displaced.agent is not agent else None

    def remove(self, name: str) -> Resident | None:
        """Lets one go, after a build of it that is under way; requests that use it keep it until they end."""
        while True:
            with self._lock:
                build = self._builds.get(name)
                if build is None or build.builder == threading.get_ident():
                    return self._residents.pop(name, None)
            build.done.wait()

    def pin(self, name: str) -> None:
        """Keeps a name from being evicted, also if it is loaded later."""
        with self._lock:
            self._pins.add(name)

    def unpin(self, name: str) -> list[Resident]:
        """Takes a pin back; returns what could go now."""
        with self._lock:
            self._pins.discard(name)
            return self._evict()

    def make_room_for(self, count: int) -> None:
        """Raises `max_loaded` so that `count` more fit beside those that are resident."""
        with self._lock:
            if self.max_loaded is not None:
                built = sum(not resident.is_attached for resident in self._residents.values())
                self.max_loaded = max(self.max_loaded, built + count)

    @property
    def names(self) -> list[str]:
        """The resident checkpoints, the one used longest ago first."""
        with self._lock:
            return list(self._residents)

    @property
    def pins(self) -> frozenset[str]:
        """The pinned names."""
        with self._lock:
            return frozenset(self._pins)

    @property
    def size_bytes(self) -> int:
        """Bytes of all resident checkpoints, attached ones too."""
        with self._lock:
            return sum(resident.size_bytes for resident in self._residents.values())

    def _evict(self) -> list[Resident]:
        """Takes out what is over the limits and may go, oldest first; the lock is held."""
        built = [resident for resident in self._residents.values() if not resident.is_attached]
        count, size_bytes = len(built), sum(resident.size_bytes for resident in built)
        evicted: list[Resident] = []
        for resident in built[:-1]:
            if not self._exceeds(count, size_bytes):
                break
            if resident.use_count or resident.name in self._pins:
                continue
            del self._residents[resident.name]
            evicted.append(resident)
            count -= 1
            size_bytes -= resident.size_bytes
        self._is_over = self._exceeds(count, size_bytes)
        assert all(not resident.use_count for resident in evicted)
        return evicted

    def _exceeds(self, count: int, size_bytes: int) -> bool:
        return (self.max_loaded is not None and count > self.max_loaded) or (
            self.max_loaded_bytes is not None and size_bytes > self.max_loaded_bytes
        )
