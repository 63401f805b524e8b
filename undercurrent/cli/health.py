"""The checks of `undercurrent doctor`: what this machine gives, judged against what Undercurrent needs of it.

Every check is a function of facts, so that a test can hand it any machine's; `gather` reads this machine's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Check", "Health", "worst"]

_MIB = 1 << 20
_ORPHAN_AGE_S = 10.0


class Health(StrEnum):
    """How a check ended, from good to bad."""

    OK = "ok"
    WARN = "warn"
    """It works, with less than was meant."""
    FAIL = "fail"
    """Something of Undercurrent cannot work."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    health: Health
    found: str
    reason: str = ""
    """Why it matters; empty where all is well."""
    fix: str = ""
    """What to do, a command where there is one."""


def worst(checks: Iterable[Check]) -> Health:
    """The worst of all; ok where there is none."""
    order = list(Health)
    return max((check.health for check in checks), key=order.index, default=Health.OK)


def judge_kernel(system: str, release: str, machine: str) -> Check:
    """Sealed shared memory needs 5.1, process descriptors 5.3."""
    found = f"{system} {release} {machine}"
    if system != "Linux":
        return Check(
            "kernel",
            Health.FAIL,
            found,
            "async points need memfd and futex, which only Linux has; inline points work everywhere",
            "run on Linux, or use inline points",
        )
    if version_numbers(release)[:2] < (5, 3):
        return Check("kernel", Health.FAIL, found, "rings need seals (5.1) and pidfds (5.3)", "upgrade to 5.4 or later")
    return Check("kernel", Health.OK, found)


def judge_python(version: tuple[int, ...], bits: int, byte_order: str) -> Check:
    """Shared memory is laid out for 64-bit little-endian machines."""
    found = f"{'.'.join(map(str, version))}, {bits} bit, {byte_order} endian"
    if version[:2] < (3, 11):
        return Check("python", Health.FAIL, found, "Undercurrent needs Python 3.11", "install Python 3.11 or later")
    if (bits, byte_order) != (64, "little"):
        return Check("python", Health.FAIL, found, "rings are laid out for 64-bit little-endian machines", "")
    return Check("python", Health.OK, found)


def judge_open_files(soft: int, hard: int) -> Check:
    """A worker costs its engine about six descriptors; a low limit ends in EMFILE under load."""
    unlimited = 1 << 40
    soft, hard = (unlimited if value < 0 else value for value in (soft, hard))
    found = f"{_count(soft, unlimited)} of at most {_count(hard, unlimited)}"
    fix = f"ulimit -n {min(hard, 65536)}, or LimitNOFILE=65536 in the unit"
    if soft < 64:
        return Check("open files", Health.FAIL, found, "workers cannot be started with so few descriptors", fix)
    if soft < 1024:
        return Check("open files", Health.WARN, found, "an engine with its sockets may run out of descriptors", fix)
    return Check("open files", Health.OK, found)


def judge_limits(limits: Mapping[str, int]) -> Check:
    """Limits that shared memory runs into, in bytes, negative for none: a lane maps its whole address range at once."""
    found = ", ".join(f"{name} {'unlimited' if value < 0 else mib(value)}" for name, value in limits.items())
    set_ones = [name for name in ("address space", "file size") if limits.get(name, -1) >= 0]
    if set_ones:
        return Check(
            "limits",
            Health.WARN,
            found,
            f"a limit on {' and '.join(set_ones)} can refuse the memory of a lane",
            "ulimit -v unlimited; ulimit -f unlimited",
        )
    # Nothing is locked into memory, so any memlock limit will do; it is shown for those who look for it.
    return Check("limits", Health.OK, found)


def judge_shared_memory(free_bytes: int | None, total_bytes: int | None, is_writable: bool) -> Check:
    """The control page lies in /dev/shm; rings do not."""
    if free_bytes is None or total_bytes is None:
        fix = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
        return Check("/dev/shm", Health.FAIL, "missing", "control pages lie there; workers need one", fix)
    found = f"{mib(free_bytes)} free of {mib(total_bytes)}"
    if not is_writable:
        return Check("/dev/shm", Health.FAIL, found, "control pages cannot be made there", "chmod 1777 /dev/shm")
    if free_bytes < 4 * _MIB:
        fix = "remove what fills it, or docker run --shm-size=64m"
        return Check("/dev/shm", Health.FAIL, found, "a control page takes about 1 MiB", fix)
    return Check("/dev/shm", Health.OK, found)


def judge_memory(total_bytes: int, available_bytes: int, cgroup_bytes: int | None) -> Check:
    """The rings of a router may take a quarter of the machine, whatever a cgroup allows."""
    budget = total_bytes // 4
    found = f"{mib(available_bytes)} available of {mib(total_bytes)}"
    if cgroup_bytes is not None and cgroup_bytes < total_bytes:
        found += f", cgroup limit {mib(cgroup_bytes)}"
        if budget > cgroup_bytes // 2:
            return Check(
                "memory",
                Health.WARN,
                found,
                f"rings may grow to a quarter of the machine, {mib(budget)}; the cgroup would kill the engine first",
                f"Router(memory_max_bytes={cgroup_bytes // 4})",
            )
    if available_bytes < 256 * _MIB:
        return Check("memory", Health.WARN, found, "a worker takes 40 MiB, one with torch 250 MiB", "free some memory")
    return Check("memory", Health.OK, found)


def judge_cpus(allowed: int, present: int, quota: float | None) -> Check:
    """Workers leave the engine's CPU to it, where there is another."""
    found = f"{allowed} of {present}" + ("" if quota is None else f", cgroup quota {quota:g}")
    if min(allowed, quota or allowed) < 2:
        return Check(
            "cpus",
            Health.WARN,
            found,
            "workers share the engine's only CPU; at nice 19 they yield, and fall behind",
            "taskset -c 0,1 …, or a CPUQuota of at least 200%",
        )
    return Check("cpus", Health.OK, found)


def judge_membarrier(commands: int | None) -> Check:
    """Without it a publication carries a fence of its own."""
    if commands is not None and commands & 0b110 == 0b110:
        return Check("membarrier", Health.OK, "available")
    return Check(
        "membarrier",
        Health.WARN,
        "not available",
        "each publication pays for a fence instead, some tens of nanoseconds",
        "allow membarrier(2) in the seccomp profile",
    )


def judge_package(name: str, installed: str | None, minimum: str, extra: str | None) -> Check:
    """A required package must be there; one of an extra only has to be new enough if it is."""
    install = f"pip install 'undercurrent[{extra}]'" if extra else f"pip install '{name}>={minimum}'"
    if installed is None:
        if extra is None:
            return Check(name, Health.FAIL, "not installed", "Undercurrent cannot work without it", install)
        return Check(name, Health.OK, "not installed", f"only the extra {extra!r} needs it", install)
    if version_numbers(installed) < version_numbers(minimum):
        health = Health.WARN if extra else Health.FAIL
        return Check(name, health, installed, f"{minimum} or later is expected", install)
    return Check(name, Health.OK, installed)


def judge_pages(stale: Sequence[str], live: Sequence[str]) -> Check:
    """A page whose writer was killed stays until somebody removes it."""
    found = f"{len(live)} of running routers, {len(stale)} stale"
    if not stale:
        return Check("control pages", Health.OK, found)
    names = ", ".join(stale[:5])
    return Check(
        "control pages",
        Health.WARN,
        found,
        f"the processes that wrote them are gone and left memory behind: {names}",
        "undercurrent doctor --remove-stale",
    )


def find_orphans(parents: Mapping[int, int], ages_s: Mapping[int, float], engines: Collection[int]) -> list[int]:
    """The worker processes whose engine is gone, of `parents` by process: workers and the nurseries that forked them.

    A worker's parent is its nursery, and the nursery's parent is its engine, which has a control page. The youngest are
    passed over: an engine makes its page after its nursery, and workers take seconds to notice that theirs is gone.
    """
    return [
        pid
        for pid, parent in parents.items()
        if parents.get(parent, parent) not in engines and ages_s.get(pid, 0.0) > _ORPHAN_AGE_S
    ]


def judge_orphans(orphans: Sequence[int], running: int) -> Check:
    """Workers end within seconds of their engine; one that did not is stopped or stuck in the kernel."""
    found = f"{running} running" + (f", {len(orphans)} without an engine" if orphans else "")
    if not orphans:
        return Check("workers", Health.OK, found)
    pids = " ".join(map(str, orphans))
    return Check("workers", Health.WARN, found, "their engine is gone and they should have ended", f"kill -9 {pids}")


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `6.18.44-fc` is (6, 18, 44), `2.13.0+cpu` is (2, 13, 0)."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def mib(count: int) -> str:
    """Bytes for people."""
    return f"{count / _MIB:,.0f} MiB" if count >= _MIB else f"{count / 1024:.0f} KiB"


def _count(value: int, unlimited: int) -> str:
    return "unlimited" if value >= unlimited else str(value)
