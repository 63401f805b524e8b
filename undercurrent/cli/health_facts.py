"""Reads what this machine is and has, for the checks of `health`; the trials start a lane and a worker for real."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from undercurrent.cli import health
from undercurrent.cli.health import Check, Health
from undercurrent.errors import UndercurrentError

__all__ = ["all_checks"]

_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
_REQUIREMENT = re.compile(r"([\w.-]+)>=([\w.]+)(?:.*extra == \"(\w+)\")?")
_EXTRAS = ("hf",)
_WORKER_MARK = "undercurrent.workers.nursery_main"
_TRIAL_S = 20.0


def all_checks(*, tries_worker: bool) -> Iterator[Check]:
    """Every check of this machine, in the order in which a cause comes before its effects."""
    yield health.judge_kernel(platform.system(), platform.release(), platform.machine())
    yield health.judge_python(sys.version_info[:3], 64 if sys.maxsize > 1 << 32 else 32, sys.byteorder)
    yield from _packages()
    if sys.platform == "linux":
        yield from _limits()
        yield health.judge_membarrier(_membarrier_commands())
        yield _try("ring", _try_ring)
        yield _pages()
        yield _workers()
        if tries_worker:
            yield _try("worker", _try_worker)


def _packages() -> Iterator[Check]:
    seen: set[str] = set()
    with suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("undercurrent") or ():
            match = _REQUIREMENT.match(line)
            # What always is needed comes before the extras, which may name it again.
            if match is not None and (match[3] is None or match[3] in _EXTRAS) and match[1] not in seen:
                seen.add(match[1])
                yield health.judge_package(match[1], _installed(match[1]), match[2], match[3])


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _limits() -> Iterator[Check]:
    yield health.judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    wanted = {
        "memlock": resource.RLIMIT_MEMLOCK,
        "address space": resource.RLIMIT_AS,
        "file size": resource.RLIMIT_FSIZE,
    }
    yield health.judge_limits({name: resource.getrlimit(which)[0] for name, which in wanted.items()})
    yield _shared_memory()
    memory = psutil.virtual_memory()
    yield health.judge_memory(memory.total, memory.available, cgroup_memory_bytes())
    yield health.judge_cpus(len(os.sched_getaffinity(0)), os.cpu_count() or 1, cgroup_cpu_quota())


def _shared_memory() -> Check:
    try:
        space = os.statvfs("/dev/shm")
    except OSError:
        return health.judge_shared_memory(None, None, is_writable=False)
    sizes = (space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize)
    return health.judge_shared_memory(*sizes, is_writable=os.access("/dev/shm", os.W_OK))


def cgroup_memory_bytes(root: Path = Path("/sys/fs/cgroup"), membership: str | None = None) -> int | None:
    """The lowest memory limit above this process, of cgroup version 2 or 1; None where there is none."""
    v2 = _cgroup_values(root, "memory.max", "", membership)
    v1 = _cgroup_values(root / "memory", "memory.limit_in_bytes", "memory", membership)
    # Version 1 writes "no limit" as the largest multiple of a page below 2^63.
    limits = [int(text) for text in (*v2, *v1) if text.isdigit() and int(text) < 1 << 60]
    return min(limits, default=None)


def cgroup_cpu_quota(root: Path = Path("/sys/fs/cgroup"), membership: str | None = None) -> float | None:
    """The lowest CPU quota above this process, in CPUs; None where there is none."""
    quotas = []
    for text in _cgroup_values(root, "cpu.max", "", membership):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _cgroup_values(root: Path, file_name: str, controller: str, membership: str | None) -> list[str]:
    """The contents of a control file, from this process's cgroup up to the root."""
    if membership is None:
        try:
            membership = Path("/proc/self/cgroup").read_text()
        except OSError:
            return []
    values = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        folder = root / path.strip("/")
        for place in (folder, *folder.parents):
            with suppress(OSError):
                values.append((place / file_name).read_text().strip())
            if place == root:
                break
    return values


def _membarrier_commands() -> int | None:
    """What membarrier(MEMBARRIER_CMD_QUERY) answers; None where it may not be asked."""
    number = _MEMBARRIER.get(platform.machine())
    if number is None:
        return None
    answer = int(ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_int(0), ctypes.c_uint(0), ctypes.c_int(0)))
    return None if answer < 0 else answer


def _pages() -> Check:
    from undercurrent.ipc import ControlPage

    pages = ControlPage.list_instances()
    stale = [page.instance for page in pages if page.is_stale]
    return health.judge_pages(stale, [page.instance for page in pages if not page.is_stale])


def _workers() -> Check:
    from undercurrent.ipc import ControlPage

    engines = {page.pid for page in ControlPage.list_instances() if not page.is_stale}
    parents: dict[int, int] = {}
    ages: dict[int, float] = {}
    for process in _worker_processes():
        with suppress(psutil.Error):
            parents[process.pid] = process.ppid()
            ages[process.pid] = time.time() - process.create_time()
    return health.judge_orphans(health.find_orphans(parents, ages, engines), len(parents))


def _worker_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command, *arguments = process.cmdline() or [""]
            if "python" in os.path.basename(command) and any(_WORKER_MARK in part for part in arguments):
                found.append(process)
    return found


def _try(name: str, trial: Callable[[], str]) -> Check:
    try:
        return Check(name, Health.OK, trial())
    except (UndercurrentError, ImportError, OSError) as error:
        return Check(name, Health.FAIL, type(error).__name__, str(error), "read the checks above it; then report it")


def _try_ring() -> str:
    """Sends one record through shared memory, with everything a lane asks of the kernel, and a pidfd beside it."""
    from undercurrent.ipc import ConsumerLane, MemoryBudget, ProducerLane, layout

    os.close(os.pidfd_open(os.getpid()))
    with ProducerLane(MemoryBudget(64 << 20)) as engine:
        ring = engine.open_ring(queue_depth=4, policy=layout.DROP_OLDEST, generation=1)
        with ConsumerLane(engine.control_fd, engine.payload_fd) as worker:
            reader = worker.attach_ring(
                ring.ring_index, queue_depth=4, policy=layout.DROP_OLDEST, generation=ring.generation
            )
            worker.wait(0.001)  # parks once, so that the futex is asked
            ring.publish(b"activation", 0, 1, 0, 0, 0.0)
            batch = reader.take(1)
            arrived = None if batch is None else bytes(batch.copy(0))
            if batch is not None:
                reader.finish(batch)
    if arrived != b"activation":
        raise UndercurrentError(f"a record of b'activation' was sent through a ring, and {arrived!r} came")
    return "memfd, seals, futex and pidfd work; a record came through"


def _try_worker() -> str:
    """Starts a worker process, has it see one record, and ends it."""
    from undercurrent.core import ProbeFactory
    from undercurrent.core.examples import TrajectoryScoreProbe
    from undercurrent.router import Router
    from undercurrent.spec import ActivationRecord, parse_dict

    point = {
        "name": "doctor",
        "layers": 0,
        "tensor_type": "residual_stream",
        "position": "generated[*]",
        "probe_type": "mean",
        "probe_kind": "trajectory",
        "execution_mode": "async",
    }
    began = time.monotonic()
    with Router({"mean": ProbeFactory(TrajectoryScoreProbe)}, worker_pool_size=1, drain_timeout=_TRIAL_S) as router:
        with router.request(parse_dict({"extraction_points": [point]})) as request:
            request.route(ActivationRecord(request.request_id, "doctor", 0, 0, "residual_stream", [0.25], True))
        coverage = request.results["doctor"].metadata["coverage"]
    if not coverage["complete"]:
        raise UndercurrentError(f"a worker was started and did not see the record sent to it: {coverage}")
    return f"started, saw a record and ended in {time.monotonic() - began:.2f} s"
