"""The control page: what a host process runs and counts, in named shared memory that any process of its user can read.

One page per process, `/undercurrent-<instance>`, mode 0600, one writer. It is a fixed table: a header, then rows for
lanes, workers and bindings. Readers take no lock: a row carries a version, odd while it is written, and a CRC-32, so a
reader in any language copies a row and knows whether it is whole. `README.md` gives the offsets.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import posix_ipc
import psutil

from undercurrent.errors import RingCorruptError, RingError, RingMemoryError, RingUnavailableError
from undercurrent.ipc.memory import start_ticks

__all__ = ["BINDING_COUNTERS", "LANE_COUNTERS", "WORKER_COUNTERS", "ControlPage", "Instance", "PageReader", "PageRow"]

Table = Literal["lanes", "workers", "bindings"]

_PREFIX: Final = "undercurrent-"
_SHM_DIR: Final = "/dev/shm"
_MAGIC: Final = b"UCPAGE1\0"
_BYTE_ORDER: Final = 0x01020304
_HEADER: Final = struct.Struct("<8sIHHIIIIIIIIQQd64sI")  # ends with the CRC-32 of what comes before it
_HEADER_BYTES: Final = 256
_ROW: Final = struct.Struct(
    "<IIQqd12Q48s72s"
)  # state, reserved, id, pid, since, counters, name, detail; from byte 8 on
_ROW_HEAD: Final = struct.Struct("<II")  # version, CRC-32 of the rest
_ROW_BYTES: Final = _ROW_HEAD.size + _ROW.size
_COUNTER_COUNT: Final = 12
_READ_ATTEMPTS: Final = 100
_INSTANCE: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_TABLES: Final[tuple[Table, ...]] = ("lanes", "workers", "bindings")

# Names of a row's counters, by table; unused ones are 0.
LANE_COUNTERS: Final = ("rings", "committed_bytes", "slots_issued", "slots_free", "consumer_deaths")
WORKER_COUNTERS: Final = ("bindings", "activations", "signals", "errors", "restarts")
BINDING_COUNTERS: Final = (
    "produced",
    "consumed",
    "dropped_oldest",
    "dropped_newest",
    "no_memory",
    "unsupported",
    "too_large",
    "block_timeout",
    "waiting",
    "in_hand",
    "lost",
    "errors",
)


@dataclass(frozen=True, slots=True)
class PageRow:
    """One row as a reader copied it: whole, at one moment."""

    index: int
    id: int
    pid: int  # 0: no process of its own
    since: float  # wall clock, seconds
    counters: tuple[int, ...]  # 12, named by LANE_COUNTERS, WORKER_COUNTERS or BINDING_COUNTERS
    name: str  # at most 48 bytes of UTF-8
    detail: str  # at most 72 bytes


@dataclass(frozen=True, slots=True)
class Instance:
    """A page that exists. `is_stale`: its writer is dead, or its pid belongs to another process now."""

    instance: str
    pid: int
    created: float  # wall clock, seconds
    is_stale: bool


@dataclass(frozen=True, slots=True)
class _PageHeader:
    pid: int
    start: int
    created: float
    capacities: tuple[int, int, int]
    offsets: tuple[int, int, int]


def _shm_name(instance: str) -> str:
    if _INSTANCE.fullmatch(instance) is None:
        raise ValueError(f"`instance` must be 1 to 63 letters, digits, '_', '.' or '-', got {instance!r}")
    return f"/{_PREFIX}{instance}"


def _layout(capacities: Sequence[int]) -> tuple[tuple[int, int, int], int]:
    lanes, workers, bindings = capacities
    first = _HEADER_BYTES
    second = first + lanes * _ROW_BYTES
    third = second + workers * _ROW_BYTES
    return (first, second, third), third + bindings * _ROW_BYTES


class ControlPage:
    """The page of this process. Owner: the supervisor, which writes it and closes it; one thread at a time."""

    def __init__(self, instance: str, *, lanes: int = 64, workers: int = 64, bindings: int = 4096) -> None:
        """Makes the page, replacing a stale one of the same name.

        Raises:
            RingError: a living process has a page of this name.
            RingMemoryError: there is no room for it in shared memory.
        """
        name = _shm_name(instance)
        capacities = (lanes, workers, bindings)
        self.instance = instance
        self._pid = os.getpid()
        self._capacities = dict(zip(_TABLES, capacities, strict=True))
        offsets, size = _layout(capacities)
        self._offsets = dict(zip(_TABLES, offsets, strict=True))
        fd = _create(name, instance)
        try:
            os.fchmod(fd, 0o600)
            self._map = _map_new(fd, size)
        except BaseException:
            posix_ipc.unlink_shared_memory(name)
            raise
        finally:
            os.close(fd)
        self._is_open = True
        header = _HEADER.pack(
            _MAGIC, _BYTE_ORDER, 1, 0, _HEADER_BYTES, _ROW_BYTES, *capacities, *offsets,
            self._pid, start_ticks(self._pid), time.time(), instance.encode(), 0,
        )  # fmt: skip
        crc = zlib.crc32(header[:-4])
        self._map[len(header) - 4 : len(header)] = struct.pack("<I", crc)
        self._map[8 : len(header) - 4] = header[8:-4]
        self._map[:8] = header[:8]  # last: a reader that finds the magic finds the rest

    def write_row(
        self,
        table: Table,
        index: int,
        *,
        id: int,
        name: str,
        detail: str = "",
        pid: int = 0,
        since: float = 0.0,
        counters: Sequence[int] = (),
    ) -> None:
        """Writes a row; names and details that are too long are cut at a character's end."""
        padded = (*counters, *(0,) * (_COUNTER_COUNT - len(counters)))
        row = _ROW.pack(1, 0, id, pid, since, *padded, _cut(name, 48), _cut(detail, 72))
        self._store(table, index, row)

    def clear_row(self, table: Table, index: int) -> None:
        """Frees a row."""
        self._store(table, index, bytes(_ROW.size))

    def _store(self, table: Table, index: int, row: bytes) -> None:
        if not 0 <= index < self._capacities[table]:
            raise IndexError(f"row {index} is outside of the page's {self._capacities[table]} {table}")
        if not self._is_open or os.getpid() != self._pid:
            return
        offset = self._offsets[table] + index * _ROW_BYTES
        version, _ = _ROW_HEAD.unpack_from(self._map, offset)
        # Odd, bytes, even. Where stores are seen in another order, the CRC tells a torn row.
        struct.pack_into("<I", self._map, offset, (version + 1) & 0xFFFFFFFF | 1)
        self._map[offset + 4 : offset + _ROW_BYTES] = struct.pack("<I", zlib.crc32(row)) + row
        struct.pack_into("<I", self._map, offset, ((version | 1) + 1) & 0xFFFFFFFF)

    def close(self) -> None:
        """Unmaps and removes the page; a forked child only unmaps it. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._map.close()
        if os.getpid() == self._pid:
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_shared_memory(_shm_name(self.instance))

    def __enter__(self) -> ControlPage:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @staticmethod
    def list_instances() -> list[Instance]:
        """Returns the pages of this machine that this user may read, by name. Foreign files are passed over."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(_SHM_DIR)):
                if not name.startswith(_PREFIX):
                    continue
                with contextlib.suppress(RingError, OSError, ValueError), PageReader(name[len(_PREFIX) :]) as reader:
                    found.append(reader.describe())
        return found

    @staticmethod
    def remove_stale() -> list[str]:
        """Removes the pages whose writer is dead; returns their instances."""
        stale = [page.instance for page in ControlPage.list_instances() if page.is_stale]
        for instance in stale:
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_shared_memory(_shm_name(instance))
        return stale


class PageReader:
    """Another process's page, mapped read-only. Owner: whoever reads; closes it."""

    def __init__(self, instance: str) -> None:
        """Opens the page.

        Raises:
            RingUnavailableError: there is none of this name, or it is another user's.
            RingCorruptError: it is no page of this format.
        """
        self.instance = instance
        try:
            memory = posix_ipc.SharedMemory(_shm_name(instance), read_only=True)
        except posix_ipc.ExistentialError as error:
            raise RingUnavailableError(f"no control page of instance {instance!r}") from error
        except posix_ipc.PermissionsError as error:
            raise RingUnavailableError(f"the control page of instance {instance!r} is another user's") from error
        try:
            size = os.fstat(memory.fd).st_size
            if size < _HEADER_BYTES:
                raise RingCorruptError(f"the control page {instance!r} has {size} bytes, less than its header")
            self._map = mmap.mmap(memory.fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            memory.close_fd()
        try:
            self._header = self._check(size)
        except BaseException:
            self._map.close()
            raise

    def _check(self, size: int) -> _PageHeader:
        fields = _HEADER.unpack_from(self._map)
        magic, order, major, _minor, header_bytes, row_bytes = fields[:6]
        capacities, offsets = fields[6:9], fields[9:12]
        pid, start, created, _name, crc = fields[12:]
        if (
            (magic, order, major) != (_MAGIC, _BYTE_ORDER, 1)
            or (header_bytes, row_bytes) != (_HEADER_BYTES, _ROW_BYTES)
            or crc != zlib.crc32(self._map[: _HEADER.size - 4])
            or (offsets, size) != _layout(capacities)
        ):
            raise RingCorruptError(f"the control page {self.instance!r} has no header of this format")
        return _PageHeader(pid, start, created, capacities, offsets)

    def describe(self) -> Instance:
        """Returns whose page it is, and whether its writer lives."""
        header = self._header
        return Instance(self.instance, header.pid, header.created, not _lives(header.pid, header.start))

    def rows(self, table: Table) -> list[PageRow]:
        """Returns the rows in use. One left half-written, or rewritten at each of 100 looks, is omitted."""
        which = _TABLES.index(table)
        offset, count = self._header.offsets[which], self._header.capacities[which]
        rows = (self._row(index, offset + index * _ROW_BYTES) for index in range(count))
        return [row for row in rows if row is not None]

    def _row(self, index: int, offset: int) -> PageRow | None:
        for _ in range(_READ_ATTEMPTS):
            copy = self._map[offset : offset + _ROW_BYTES]
            version, crc = _ROW_HEAD.unpack_from(copy)
            if version == 0:
                return None  # never written
            if version % 2 == 0 and zlib.crc32(copy[_ROW_HEAD.size :]) == crc:
                return _parse(index, copy)
        return None

    def close(self) -> None:
        """Unmaps the page. Idempotent."""
        self._map.close()

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _parse(index: int, copy: bytes) -> PageRow | None:
    state, _, row_id, pid, since, *rest = _ROW.unpack_from(copy, _ROW_HEAD.size)
    if state == 0:
        return None
    name, detail = (text.rstrip(b"\0").decode("utf-8", "replace") for text in rest[_COUNTER_COUNT:])
    return PageRow(index, row_id, pid, since, tuple(rest[:_COUNTER_COUNT]), name, detail)


def _cut(text: str, length: int) -> bytes:
    return text.encode()[:length].decode("utf-8", "ignore").encode()


def _create(name: str, instance: str) -> int:
    for _ in range(2):
        with contextlib.suppress(posix_ipc.ExistentialError):
            return int(posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd)
        with contextlib.suppress(RingCorruptError, RingUnavailableError), PageReader(instance) as reader:
            page = reader.describe()
            if not page.is_stale:
                raise RingError(f"instance {instance!r} is taken by process {page.pid}; choose another name")
        try:
            posix_ipc.unlink_shared_memory(name)
        except posix_ipc.ExistentialError:
            pass
        except posix_ipc.PermissionsError as error:
            raise RingError(f"instance {instance!r} is taken by another user; choose another name") from error
    raise RingError(f"the control page {instance!r} comes back each time it is removed")


def _map_new(fd: int, size: int) -> mmap.mmap:
    try:
        # Before ftruncate could: a page without memory behind it would end its writer by SIGBUS.
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise RingMemoryError(f"no room for a control page of {size} bytes: {error.strerror}") from error
    mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    mapping.madvise(mmap.MADV_DONTDUMP)
    return mapping


def _lives(pid: int, start: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and start_ticks(pid) == start
    except (psutil.Error, OSError, ValueError):
        return False
