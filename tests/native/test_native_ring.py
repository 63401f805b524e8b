"""The C ring's native tests, in short doses; run.py says what each verb proves."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
SOURCES = RUN.parent.parent.parent / "ipc" / "csrc"
CONSUMER_KILLS, PRODUCER_KILLS, RANDOM_BITS = 2000, 500, 1_000_000

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]


def run(*arguments: object) -> str:
    command = [sys.executable, str(RUN), *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, f"{' '.join(command[1:])} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def labels_of(text: str) -> set[str]:
    return set(re.findall(r'"([a-z]+\.[a-z]+)"', text))


def listed_labels() -> set[str]:
    """The steps at which `crash_points` must have killed somebody."""
    return labels_of(RUN.with_name("crash_points.c").read_text().partition("every_label[]")[2].partition("};")[0])


def test_every_labelled_step_of_the_ring_is_one_to_be_killed_at() -> None:
    steps = re.findall(r"UC_STEP\((.*?)\);", "".join(path.read_text() for path in SOURCES.glob("*.c")), re.DOTALL)
    # The steps of answers have a test of their own, test_answers.c.
    assert {label for label in labels_of("".join(steps)) if not label.startswith("answer.")} == listed_labels()


def test_both_sides_do_what_a_plain_queue_does() -> None:
    output = run("plain")
    for program in ("test_ring", "test_interleavings", "test_doorbell", "test_answers", "test_threads"):
        assert f"{program}: ok" in output


def test_a_kill_at_every_labelled_step_leaves_exact_counters_and_whole_records() -> None:
    found = re.search(r"ok, (\d+) kills at (\d+) labels", run("crash"))
    assert found is not None
    assert int(found[1]) > 5000
    assert int(found[2]) == len(listed_labels())


def test_random_kills_tear_reorder_and_stall_nothing() -> None:
    assert "0 torn, 0 out of order, 0 stalls" in run("chaos", "--kills", 200)


def test_flipped_bits_and_a_hostile_peer_end_in_a_status() -> None:
    assert "fuzz: ok" in run("fuzz", "--bits", 50_000)


@pytest.mark.slow
def test_two_thousand_consumers_and_five_hundred_producers_are_killed() -> None:
    found = re.search(r"ok, (\d+) consumer kills, (\d+) producer kills", run("chaos", "--kills", CONSUMER_KILLS))
    assert found is not None
    assert int(found[1]) >= CONSUMER_KILLS
    assert int(found[2]) >= PRODUCER_KILLS


@pytest.mark.slow
def test_a_million_random_bits_crash_and_hang_nobody() -> None:
    assert f"fuzz: ok, {RANDOM_BITS} random bits" in run("fuzz", "--bits", RANDOM_BITS)


@pytest.mark.slow
def test_each_planted_error_is_found() -> None:
    lines = run("mutants").splitlines()
    assert not [line for line in lines if line.startswith("MISSED")]
    assert sum(line.startswith("caught") for line in lines) >= 13


@pytest.mark.slow
def test_sanitizers_have_nothing_to_say() -> None:
    assert "crash_points: ok" in run("asan")
    assert "test_threads: ok" in run("tsan")


_CROSS_TOOLS = ("aarch64-linux-gnu-gcc", "qemu-aarch64")
_MISSING = [tool for tool in _CROSS_TOOLS if shutil.which(tool) is None]


@pytest.mark.system
@pytest.mark.skipif(bool(_MISSING), reason=f"{' and '.join(_MISSING)} is not installed")
def test_an_aarch64_build_passes_under_qemu() -> None:
    assert "test_ring: ok" in run("aarch64")
