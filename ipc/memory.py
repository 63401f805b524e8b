"""Memory of lanes: the budget they share, the two memfds of each, and the slots cut from them.

Everything here belongs to the engine's process, except `map_lane`, which the worker uses. The lane that owns a
`LaneMemory` and a `SlotStore` calls them under its lock; `MemoryBudget` has its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from undercurrent.errors import RingCorruptError, RingMemoryError, RingUnavailableError
from undercurrent.ipc.layout import BLOCK_BYTES, CLASS_COUNT, UNIT_BYTES, class_bytes, class_run_blocks

__all__ = [
    "ExtentAllocator",
    "LaneMemory",
    "MemoryBudget",
    "SlotStore",
    "default_memory_limit",
    "map_lane",
    "require_memfd",
    "start_ticks",
]

_MFD_NOEXEC_SEAL = 0x8  # Linux 6.3; without it newer kernels log a warning per process
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x10
_CONTROL_SEALS = _SEAL_SHRINK | _SEAL_GROW
_PAYLOAD_SEALS = _SEAL_SHRINK | _SEAL_GROW | _SEAL_FUTURE_WRITE
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_CONTROL_STEP_BYTES = 65536


def default_memory_limit() -> int:
    """Returns a quarter of the machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def start_ticks(pid: int | str) -> int:
    """Returns a process's start time in clock ticks since boot; with the pid, it names the process."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])


class MemoryBudget:
    """Counts the bytes that all lanes of a process have committed, against one limit. Thread-safe."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = default_memory_limit() if limit_bytes is None else limit_bytes
        self._used_bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes committed now."""
        return self._used_bytes

    def reserve(self, n: int) -> bool:
        """Takes `n` bytes if the limit allows; says whether it did."""
        with self._lock:
            if self._used_bytes + n > self.limit_bytes:
                return False
            self._used_bytes += n
            return True

    def release(self, n: int) -> None:
        """Gives `n` bytes back."""
        with self._lock:
            self._used_bytes -= n
            assert self._used_bytes >= 0, "more was released than reserved"

    def refusal(self, wanted_bytes: int, purpose: str) -> RingMemoryError:
        """Builds the error that names the sum."""
        return RingMemoryError(
            f"{purpose} needs {_mib(wanted_bytes)} of shared memory, but {_mib(self._used_bytes)} of"
            f" {_mib(self.limit_bytes)} are in use by all lanes together; raise `memory_max_bytes`, or lower"
            " `queue_depth` or the number of live requests"
        )


def _mib(n: int) -> str:
    return f"{n / (1 << 20):.1f} MiB"


class ExtentAllocator:
    """Hands out runs of consecutive numbers from 0 to `size`, lowest first; neighbours that come back grow together."""

    def __init__(self, size: int) -> None:
        self._extents: list[tuple[int, int]] = [(0, size)]  # (first, count), ordered, apart from each other

    def allocate(self, count: int) -> int | None:
        """Returns the first number of a run, or None when no run is long enough. O(free extents)."""
        for i, (first, available) in enumerate(self._extents):
            if available >= count:
                if available == count:
                    del self._extents[i]
                else:
                    self._extents[i] = (first + count, available - count)
                return first
        return None

    def release(self, first: int, count: int) -> None:
        """Takes a run back."""
        at = next((i for i, (start, _) in enumerate(self._extents) if start > first), len(self._extents))
        if at < len(self._extents) and first + count == self._extents[at][0]:
            count += self._extents.pop(at)[1]
        if at > 0 and sum(self._extents[at - 1]) == first:
            first, before = self._extents[at - 1]
            self._extents[at - 1] = (first, before + count)
            return
        self._extents.insert(at, (first, count))


class _Memfd:
    """One memfd and this process's mapping of it. Owner: a LaneMemory, which closes it."""

    def __init__(self, name: str, size: int) -> None:
        self.fd = _create_memfd(name)
        try:
            os.fchmod(self.fd, 0o600)
            os.ftruncate(self.fd, size)
            self.map = _map(self.fd, size, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            os.close(self.fd)
            raise

    def commit(self, offset: int, length: int) -> None:
        """Allocates the pages of a range, so that no access to them can fail, and maps them.

        Raises:
            RingMemoryError: the kernel has no memory for it.
        """
        try:
            os.posix_fallocate(self.fd, offset, length)
        except OSError as error:
            raise RingMemoryError(
                f"the kernel refused {_mib(length)} of shared memory: {os.strerror(error.errno or 0)}"
            ) from error
        # Spares the first record in each page a fault of half a microsecond; older kernels know it not.
        with contextlib.suppress(OSError):
            self.map.madvise(_MADV_POPULATE_WRITE, offset, length)


def require_memfd() -> None:
    """Raises `RingUnavailableError` where there can be no ring, and so no worker."""
    if not hasattr(os, "memfd_create"):
        raise RingUnavailableError(f"shared memory for rings needs Linux's memfd_create; {sys.platform} has none")


def _create_memfd(name: str) -> int:
    require_memfd()
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)


def _map(fd: int, size: int, protection: int) -> mmap.mmap:
    mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, protection)
    # A forked child must not publish into its parent's rings, and activations do not belong in a core dump.
    mapping.madvise(mmap.MADV_DONTFORK)
    mapping.madvise(mmap.MADV_DONTDUMP)
    return mapping


def map_lane(control_fd: int, payload_fd: int) -> tuple[mmap.mmap, mmap.mmap]:
    """Maps a lane for its consumer: control read-write, payload read-only. The fds are not kept.

    Raises:
        RingCorruptError: a memfd lacks its seals, so that its maker could take the memory away under a reader.
    """
    for what, fd, wanted in (("control", control_fd, _CONTROL_SEALS), ("payload", payload_fd, _PAYLOAD_SEALS)):
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
        except OSError as error:
            raise RingCorruptError(f"the {what} fd of a lane is no memfd: {os.strerror(error.errno or 0)}") from error
        if seals & wanted != wanted:
            raise RingCorruptError(f"expected seals {wanted:#x} on the lane's {what} memfd, got {seals:#x}")
    if os.fstat(control_fd).st_size == 0 or os.fstat(payload_fd).st_size == 0:
        raise RingCorruptError("a memfd of the lane is empty")
    control = _map(control_fd, os.fstat(control_fd).st_size, mmap.PROT_READ | mmap.PROT_WRITE)
    payload = _map(payload_fd, os.fstat(payload_fd).st_size, mmap.PROT_READ)
    return control, payload


class LaneMemory:
    """The two memfds of a lane, committed in steps within the budget. Owner: a ProducerLane, under its lock."""

    def __init__(self, budget: MemoryBudget, *, control_bytes: int, payload_bytes: int) -> None:
        self.budget = budget
        self.committed_bytes = 0
        self._control_steps: set[int] = set()
        self._blocks: set[int] = set()
        self.control = _Memfd("undercurrent-control", control_bytes)
        try:
            self.payload = _Memfd("undercurrent-payload", payload_bytes)
        except BaseException:
            os.close(self.control.fd)
            raise
        fcntl.fcntl(self.control.fd, _F_ADD_SEALS, _CONTROL_SEALS | _SEAL_SEAL)
        fcntl.fcntl(self.payload.fd, _F_ADD_SEALS, _PAYLOAD_SEALS | _SEAL_SEAL)

    def commit_control(self, offset: int, length: int, purpose: str) -> None:
        """Commits the steps of control memory that a range touches.

        Raises:
            RingMemoryError: the budget or the kernel refuses.
        """
        end = min(offset + length, len(self.control.map))
        for step in range(offset // _CONTROL_STEP_BYTES, -(-end // _CONTROL_STEP_BYTES)):
            if step in self._control_steps:
                continue
            first = step * _CONTROL_STEP_BYTES
            self._commit(self.control, first, min(_CONTROL_STEP_BYTES, len(self.control.map) - first), purpose)
            self._control_steps.add(step)

    def commit_blocks(self, first_block: int, block_count: int, purpose: str) -> None:
        """Commits blocks of payload that were not committed before; a block stays committed until the lane closes.

        Raises:
            RingMemoryError: the budget or the kernel refuses.
        """
        for block in range(first_block, first_block + block_count):
            if block not in self._blocks:
                self._commit(self.payload, block * BLOCK_BYTES, BLOCK_BYTES, purpose)
                self._blocks.add(block)

    def _commit(self, memfd: _Memfd, offset: int, length: int, purpose: str) -> None:
        if not self.budget.reserve(length):
            raise self.budget.refusal(length, purpose)
        try:
            memfd.commit(offset, length)
        except BaseException:
            self.budget.release(length)
            raise
        self.committed_bytes += length

    def abandon(self) -> None:
        """In a forked child: closes the child's fds and gives the budget a lock that nobody holds."""
        for memfd in (self.control, self.payload):
            if memfd.fd >= 0:
                os.close(memfd.fd)
                memfd.fd = -1
        self.budget._lock = threading.Lock()

    def close(self) -> None:
        """Closes the fds and returns the budget. The mappings end with their last user. Idempotent."""
        for memfd in (self.control, self.payload):
            if memfd.fd >= 0:
                os.close(memfd.fd)
                memfd.fd = -1
            with contextlib.suppress(BufferError):  # a waiter uses it still: it ends with the lane object
                memfd.map.close()
        self.budget.release(self.committed_bytes)
        self.committed_bytes = 0


class _BlockTable(Protocol):
    """What a SlotStore needs of the lane: entering runs into the table that both sides read."""

    def _commit_run(self, first_block: int, run_blocks: int, class_index: int) -> None: ...


@dataclass(slots=True, eq=False)
class _Run:
    first_block: int
    block_count: int
    class_index: int
    slot_count: int
    free: list[int] = field(default_factory=list)
    issued: set[int] = field(default_factory=set)


class SlotStore:
    """The slots of a lane by size class: which are free, which are out. Owner: a ProducerLane, under its lock."""

    def __init__(self, memory: LaneMemory, table: _BlockTable, block_count: int) -> None:
        self._memory = memory
        self._table = table
        self._blocks = ExtentAllocator(block_count)
        self._runs: dict[int, list[_Run]] = {}  # by class
        self._run_of_block: dict[int, _Run] = {}

    def take(self, class_index: int, count: int, purpose: str) -> list[int]:
        """Takes `count` slots of a class, committing blocks as needed; all or none.

        Raises:
            RingMemoryError: the budget, the kernel or the lane's capacity refuses.
        """
        runs = self._runs.setdefault(class_index, [])
        while sum(len(run.free) for run in runs) < count:
            runs.append(self._add_run(class_index, purpose))
        taken: list[int] = []
        for run in runs:
            # What came back last is taken first: it is in the caches still.
            part = run.free[len(run.free) - min(len(run.free), count - len(taken)) :]
            del run.free[len(run.free) - len(part) :]
            run.issued.update(part)
            taken += part
        return taken

    def give(self, slots: Iterable[int]) -> None:
        """Takes slots back. One that is not out, or comes twice, is ignored: its reference came from the peer."""
        for slot in slots:
            run = self._run_of_block.get(slot * UNIT_BYTES // BLOCK_BYTES)
            if run is None or slot not in run.issued:
                continue
            run.issued.remove(slot)
            run.free.append(slot)
            if not run.issued and len(self._runs[run.class_index]) > 1:
                self._drop_run(run)

    def issued(self) -> dict[int, set[int]]:
        """Returns the slots that are out, by class."""
        return {index: set().union(*(run.issued for run in runs)) for index, runs in self._runs.items() if runs}

    @property
    def free_count(self) -> int:
        """Slots that are committed and not out."""
        return sum(len(run.free) for runs in self._runs.values() for run in runs)

    def _add_run(self, class_index: int, purpose: str) -> _Run:
        block_count = class_run_blocks(class_index)
        first_block = self._blocks.allocate(block_count)
        if first_block is None:
            raise RingMemoryError(f"{purpose} does not fit: the lane's payload memory has no {block_count} free blocks")
        try:
            self._memory.commit_blocks(first_block, block_count, purpose)
            self._table._commit_run(first_block, block_count, class_index)
        except BaseException:
            self._blocks.release(first_block, block_count)
            raise
        slot_units = class_bytes(class_index) // UNIT_BYTES
        slot_count = block_count * BLOCK_BYTES // class_bytes(class_index)
        first = first_block * BLOCK_BYTES // UNIT_BYTES
        run = _Run(first_block, block_count, class_index, slot_count)
        run.free.extend(range(first, first + slot_count * slot_units, slot_units))
        for block in range(first_block, first_block + block_count):
            self._run_of_block[block] = run
        return run

    def _drop_run(self, run: _Run) -> None:
        """Returns a run without slots out to the free blocks, where another class may take it."""
        self._runs[run.class_index].remove(run)
        for block in range(run.first_block, run.first_block + run.block_count):
            del self._run_of_block[block]
        self._table._commit_run(run.first_block, run.block_count, CLASS_COUNT)  # CLASS_COUNT: no class, not committed
        self._blocks.release(run.first_block, run.block_count)
