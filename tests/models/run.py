"""Runs the ring's models: an exhaustive search with spin, one under weak memory, and the errors both must find.

python tests/models/run.py spin           exchange_ring.pml, every short configuration
python tests/models/run.py mutants        each planted bug in it, which must be found
python tests/models/run.py weak           the weak-memory search, every short configuration
python tests/models/run.py weak-mutants   each order and fence taken away, which must be found
python tests/models/run.py all [--dose long]   everything, in larger bounds
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import spin_bounds
import weak_bounds
from weak_machine import ProtocolError
from weak_memory import Search

MODEL = Path(__file__).with_name("exchange_ring.pml")
MEMORY_LIMIT_MIB = 6000
TIME_LIMIT_S = 1200
SEARCH_DEPTH = 2_000_000
VERBS = ("spin", "mutants", "weak", "weak-mutants")


def search_with_spin(defines: list[str], folder: Path) -> str:
    """What the verifier prints. Raises RuntimeError when it could not search everything."""
    flags = [f"-D{define}" for define in defines]
    shutil.copy(MODEL, folder)
    _quiet(["spin", "-a", *flags, MODEL.name], folder)
    _quiet(["gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_LIMIT_MIB}", "-o", "pan", "pan.c"], folder)
    pan = ["nice", "./pan", f"-m{SEARCH_DEPTH}", "-n"]
    output = subprocess.run(
        pan, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
    ).stdout
    if "errors:" not in output or re.search(
        r"depth too small|MEMLIM|out of memory|Search not completed\n.*not", output
    ):
        raise RuntimeError(f"spin did not search {' '.join(defines)} to the end:\n{output[:2000]}")
    return output


def _quiet(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _verdict(output: str) -> tuple[int, str]:
    """The number of states and the first error, empty when there is none."""
    states = re.search(r"(\d+) states, stored", output)
    error = re.search(r"^pan:1: (.*?)(?: \(at depth|$)", output, re.MULTILINE)
    if states is None or (error is None) != ("errors: 0" in output):
        raise RuntimeError(f"spin said something unexpected:\n{output[:2000]}")
    return int(states[1]), error[1] if error else ""


def run_spin(*, is_long: bool) -> bool:
    is_sound = True
    for bounds in spin_bounds.SHORT + (spin_bounds.LONG if is_long else ()):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            states, error = _verdict(search_with_spin(bounds.split(), Path(folder)))
        is_sound &= not error
        verdict = f"FAILED  {error}:" if error else "ok     "
        print(f"{verdict} {bounds}: {states} states, {time.monotonic() - started:.1f} s", flush=True)
    return is_sound


def run_planted() -> bool:
    are_caught = True
    for bug in spin_bounds.PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            _, error = _verdict(search_with_spin([f"BUG_{bug.name}", *bug.defines.split()], Path(folder)))
        is_caught = bug.finds in error
        are_caught &= is_caught
        print(
            f"{'caught' if is_caught else 'MISSED'}  {bug.name} with {bug.defines}: {error or 'no error'}", flush=True
        )
    return are_caught


def _weak_configurations(dose: str) -> tuple[weak_bounds.Bounds, ...]:
    return {"quick": weak_bounds.QUICK, "short": weak_bounds.SHORT, "long": weak_bounds.LONG}[dose]


def run_weak(configurations: tuple[weak_bounds.Bounds, ...]) -> bool:
    is_sound = True
    for bounds in configurations:
        started = time.monotonic()
        try:
            verdict = f"ok      {bounds.name}: {Search(bounds).run()} states"
        except ProtocolError as error:
            is_sound, verdict = False, f"FAILED  {bounds.name}: {error}"
        print(f"{verdict}, {time.monotonic() - started:.1f} s", flush=True)
    return is_sound


def run_weak_mutations() -> bool:
    are_caught = True
    for mutation in weak_bounds.MUTATIONS:
        try:
            states = Search(mutation.bounds, mutation.name).run()
            are_caught, verdict = False, f"MISSED  without {mutation.name}: no error in {states} states"
        except ProtocolError as error:
            verdict = f"caught  without {mutation.name}: {error}"
        print(verdict, flush=True)
    return are_caught


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the models of the exchange ring.")
    parser.add_argument("verb", choices=(*VERBS, "all"))
    parser.add_argument("--dose", choices=("quick", "short", "long"), default="short", help="how far the bounds reach")
    arguments = parser.parse_args()
    verbs = VERBS if arguments.verb == "all" else (arguments.verb,)
    if {"spin", "mutants"} & set(verbs) and shutil.which("spin") is None:
        parser.exit(2, "spin is not installed: apt-get install spin\n")
    runs = {
        "spin": lambda: run_spin(is_long=arguments.dose == "long"),
        "mutants": run_planted,
        "weak": lambda: run_weak(_weak_configurations(arguments.dose)),
        "weak-mutants": run_weak_mutations,
    }
    verdicts = [runs[verb]() for verb in verbs]
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
