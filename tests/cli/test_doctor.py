"""`undercurrent doctor`: each check judges facts; together they find this machine fit."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import COMMAND, call

from undercurrent.cli import health
from undercurrent.cli.health import Check, Health, worst
from undercurrent.cli.health_facts import cgroup_cpu_quota, cgroup_memory_bytes
from undercurrent.ipc import ControlPage

MIB = 1 << 20
GIB = 1 << 30

JUDGEMENTS = {
    "linux 6": (health.judge_kernel("Linux", "6.1.0-13-amd64", "x86_64"), Health.OK),
    "linux 5.3": (health.judge_kernel("Linux", "5.3", "aarch64"), Health.OK),
    "linux 4": (health.judge_kernel("Linux", "4.19.0", "x86_64"), Health.FAIL),
    "no linux": (health.judge_kernel("Darwin", "23.1.0", "arm64"), Health.FAIL),
    "python": (health.judge_python((3, 13, 1), 64, "little"), Health.OK),
    "old python": (health.judge_python((3, 10, 9), 64, "little"), Health.FAIL),
    "32 bit": (health.judge_python((3, 11, 0), 32, "little"), Health.FAIL),
    "big endian": (health.judge_python((3, 11, 0), 64, "big"), Health.FAIL),
    "many files": (health.judge_open_files(1024, 4096), Health.OK),
    "unlimited files": (health.judge_open_files(-1, -1), Health.OK),
    "few files": (health.judge_open_files(256, 4096), Health.WARN),
    "hardly any files": (health.judge_open_files(32, 4096), Health.FAIL),
    "no limits": (health.judge_limits({"memlock": 65536, "address space": -1, "file size": -1}), Health.OK),
    "address space": (health.judge_limits({"memlock": -1, "address space": GIB, "file size": -1}), Health.WARN),
    "shm": (health.judge_shared_memory(64 * MIB, 64 * MIB, is_writable=True), Health.OK),
    "full shm": (health.judge_shared_memory(MIB, 64 * MIB, is_writable=True), Health.FAIL),
    "closed shm": (health.judge_shared_memory(64 * MIB, 64 * MIB, is_writable=False), Health.FAIL),
    "no shm": (health.judge_shared_memory(None, None, is_writable=False), Health.FAIL),
    "memory": (health.judge_memory(8 * GIB, 4 * GIB, None), Health.OK),
    "wide cgroup": (health.judge_memory(8 * GIB, 4 * GIB, 6 * GIB), Health.OK),
    "narrow cgroup": (health.judge_memory(64 * GIB, 4 * GIB, 2 * GIB), Health.WARN),
    "no memory left": (health.judge_memory(8 * GIB, 100 * MIB, None), Health.WARN),
    "cpus": (health.judge_cpus(2, 8, None), Health.OK),
    "one cpu": (health.judge_cpus(1, 8, None), Health.WARN),
    "half a cpu": (health.judge_cpus(8, 8, 0.5), Health.WARN),
    "membarrier": (health.judge_membarrier(0b1111111), Health.OK),
    "old membarrier": (health.judge_membarrier(0b1), Health.WARN),
    "no membarrier": (health.judge_membarrier(None), Health.WARN),
    "package": (health.judge_package("numpy", "2.4.6", "1.26", None), Health.OK),
    "old package": (health.judge_package("numpy", "1.9", "1.26", None), Health.FAIL),
    "missing package": (health.judge_package("numpy", None, "1.26", None), Health.FAIL),
    "missing extra": (health.judge_package("torch", None, "2.13", "hf"), Health.OK),
    "old extra": (health.judge_package("torch", "2.1.0+cpu", "2.13", "hf"), Health.WARN),
    "pages": (health.judge_pages([], ["a"]), Health.OK),
    "stale pages": (health.judge_pages(["b"], ["a"]), Health.WARN),
    "workers": (health.judge_orphans([], 3), Health.OK),
    "orphans": (health.judge_orphans([4711], 3), Health.WARN),
}


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_facts_are_judged(name: str) -> None:
    check, expected = JUDGEMENTS[name]
    assert check.health is expected, check
    assert check.found
    if expected is not Health.OK:
        assert check.reason


def test_worst_of_checks_counts() -> None:
    checks = [Check("a", Health.OK, ""), Check("b", Health.WARN, ""), Check("c", Health.OK, "")]
    assert worst(checks) is Health.WARN
    assert worst([*checks, Check("d", Health.FAIL, "")]) is Health.FAIL
    assert worst([]) is Health.OK


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("6.18.44-fc", (6, 18, 44)), ("2.13.0+cpu", (2, 13, 0)), ("1.26", (1, 26)), ("5.x", (5,)), ("", ())],
)
def test_version_is_read_up_to_its_first_word(version: str, numbers: tuple[int, ...]) -> None:
    assert health.version_numbers(version) == numbers


def test_worker_and_nursery_of_a_dead_engine_are_orphans() -> None:
    # Engine 10 lives with nursery 11 and worker 12; the engine of nursery 21 and worker 22 was killed.
    parents = {11: 10, 12: 11, 21: 1, 22: 21}
    old = dict.fromkeys(parents, 60.0)
    assert health.find_orphans(parents, old, {10}) == [21, 22]
    assert health.find_orphans(parents, {**old, 21: 3.0}, {10}) == [22]
    assert health.find_orphans(parents, old, {10, 1}) == []


def test_lowest_limit_of_the_cgroups_above_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a.slice" / "b.service"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner / "cpu.max").write_text("150000 100000\n")
    (inner.parent / "memory.max").write_text(f"{GIB}\n")
    (inner.parent / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    membership = "0::/a.slice/b.service\n"
    assert cgroup_memory_bytes(tmp_path, membership) == GIB
    assert cgroup_cpu_quota(tmp_path, membership) == 1.5


def test_limit_of_a_version_1_cgroup_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "docker"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert cgroup_memory_bytes(tmp_path, "5:cpuset:/docker\n4:memory:/docker\n") == GIB


def test_no_cgroup_means_no_limit(tmp_path: Path) -> None:
    assert cgroup_memory_bytes(tmp_path, "") is None
    assert cgroup_cpu_quota(tmp_path, "") is None


def test_this_machine_is_examined_and_a_worker_is_started() -> None:
    answer = call("doctor", "--json")
    report = json.loads(answer.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert {"kernel", "python", "numpy", "open files", "limits", "/dev/shm", "memory", "cpus"} <= set(checks)
    assert checks["ring"]["health"] == "ok", checks["ring"]
    assert checks["worker"]["health"] == "ok", checks["worker"]
    assert checks["worker"]["found"].startswith("started, saw a record and ended")
    assert answer.exit_code == (report["health"] == "fail")


def test_text_has_a_line_per_check_and_a_sum() -> None:
    answer = call("doctor", "--no-worker")
    lines = answer.stdout.splitlines()
    assert lines[0].startswith(("OK    kernel", "FAIL  kernel"))
    assert not any("saw a record" in line for line in lines)
    assert lines[-1].endswith(" fail")


def test_failing_check_has_reason_fix_and_status_1(tmp_path: Path) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    answer = subprocess.run(
        [str(COMMAND), "doctor", "--no-worker"],
        preexec_fn=few_files,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert answer.returncode == 1, answer.stderr
    lines = answer.stdout.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("FAIL  open files"))
    assert "workers cannot be started" in lines[at + 1]
    assert lines[at + 2].strip().startswith("fix: ulimit -n ")


def test_page_of_a_dead_process_warns_until_it_is_removed(tmp_path: Path) -> None:
    instance = f"test-{os.getpid()}-doctor"
    program = f"import os; from undercurrent.ipc import ControlPage; ControlPage({instance!r}); os._exit(0)"
    subprocess.run([sys.executable, "-P", "-c", program], check=True, cwd=tmp_path)
    try:
        warned = call("doctor", "--no-worker", "--strict")
        assert warned.exit_code == 1
        assert "undercurrent doctor --remove-stale" in warned.stdout
        removed = call("doctor", "--no-worker", "--remove-stale")
        assert instance in removed.stderr
        assert instance not in [page.instance for page in ControlPage.list_instances()]
    finally:
        ControlPage.remove_stale()
