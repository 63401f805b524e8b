"""Builds and runs the ring's native tests; everything lands in build/native.

    python tests/native/run.py plain      unit tests, both sides in threads (gcc, and clang where it is)
    python tests/native/run.py asan       the same, every crash point and a short fuzz under ASan and UBSan
    python tests/native/run.py tsan       both sides in threads under the thread sanitizer
    python tests/native/run.py crash      a kill at every labelled step of either side
    python tests/native/run.py chaos      kills at random instants: --kills N of the consumer, N / 4 of the producer
    python tests/native/run.py fuzz       every bit, --bits N random bits, a peer that scribbles, under ASan and UBSan
    python tests/native/run.py mutants    planted errors, each of which must be found
    python tests/native/run.py aarch64    cross build, unit tests under qemu-user
    python tests/native/run.py all

--seed replays a run; the seed is printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planted import EDITS, PlantedEdit

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent.parent / "ipc" / "csrc"
BUILD = HERE.parent.parent / "build" / "native"
CORE = ("ring.c", "consumer.c", "layout.c", "copy.c", "gather.c", "doorbell.c", "answer.c")
FLAGS = ["-std=gnu11", "-g", "-pthread", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZED = ["-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
ASAN = [*SANITIZED, "-fsanitize=address,undefined"]
# The thread sanitizer sees neither streaming stores nor other processes.
TSAN = [*SANITIZED, "-fsanitize=thread", "-DUC_NO_STREAMING"]
RUN_LIMIT_S = 900


class NativeFailure(Exception):
    """A build or a test program failed; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Dose:
    """What the command line chooses."""

    kills: int
    bits: int
    seed: int


def compile_program(
    program: str, variant: str, flags: Sequence[str], *, compiler: str = "gcc", core: Path = SOURCES
) -> Path:
    """Builds one program and moves it into place whole, so that builds in parallel do no harm."""
    folder = BUILD / f"{variant}-{compiler}"
    folder.mkdir(parents=True, exist_ok=True)
    target, fresh = folder / program, folder / f"{program}.{os.getpid()}"
    crash_points = ["-DUC_CRASH_POINTS"] if program in ("crash_points", "test_interleavings", "test_answers") else []
    sources = [HERE / f"{program}.c", HERE / "harness.c", *(core / name for name in CORE)]
    command = ["nice", compiler, *FLAGS, *flags, *crash_points, "-o", str(fresh), *map(str, sources)]
    run(command)
    fresh.replace(target)
    return target


def run(command: Sequence[object], *, limit_s: float = RUN_LIMIT_S) -> str:
    """What the command printed. Raises NativeFailure with it when the command fails or runs too long."""
    words = [str(word) for word in command]
    environment = os.environ | {"ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=0"}
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NativeFailure(f"{' '.join(words)} ran past {limit_s} s") from error
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise NativeFailure(f"{' '.join(words)} failed with status {done.returncode}:\n{output[-6000:]}")
    return output


def play(program: Path, *arguments: object, wrapper: Sequence[str] = ("nice",)) -> None:
    print(run([*wrapper, program, *arguments]), end="", flush=True)


def compilers(*flags: str) -> list[str]:
    """gcc, and clang where it is installed with what the flags need."""
    if shutil.which("clang") is None:
        return ["gcc"]
    BUILD.mkdir(parents=True, exist_ok=True)
    probe = BUILD / f"probe.{os.getpid()}"
    try:
        program = "int main(void){return 0;}\n"
        built = subprocess.run(
            ["clang", *flags, "-x", "c", "-", "-o", str(probe)],
            input=program.encode(),
            capture_output=True,
            check=False,
        )
    finally:
        probe.unlink(missing_ok=True)
    return ["gcc", "clang"] if built.returncode == 0 else ["gcc"]


def run_plain(dose: Dose) -> None:
    for compiler in compilers():
        play(compile_program("test_ring", "plain", ["-O2"], compiler=compiler), dose.seed)
        play(compile_program("test_interleavings", "plain", ["-O2"], compiler=compiler), dose.seed)
        play(compile_program("test_doorbell", "plain", ["-O2"], compiler=compiler))
        play(compile_program("test_answers", "plain", ["-O2"], compiler=compiler), dose.seed, 5000)
        play(compile_program("test_threads", "plain", ["-O2"], compiler=compiler), dose.seed, 5000)


def run_asan(dose: Dose) -> None:
    for compiler in compilers(*ASAN):
        play(compile_program("test_ring", "asan", ASAN, compiler=compiler), dose.seed)
        play(compile_program("test_interleavings", "asan", ASAN, compiler=compiler), dose.seed)
        play(compile_program("test_doorbell", "asan", ASAN, compiler=compiler))
        play(compile_program("test_answers", "asan", ASAN, compiler=compiler), dose.seed, 5000)
        play(compile_program("test_threads", "asan", ASAN, compiler=compiler), dose.seed, 5000)
    play(compile_program("crash_points", "asan", ASAN))
    play(compile_program("fuzz", "asan", ASAN), min(dose.bits, 100_000), 1, dose.seed)


def run_tsan(dose: Dose) -> None:
    for compiler in compilers(*TSAN):
        play(compile_program("test_answers", "tsan", TSAN, compiler=compiler), dose.seed, 3000)
        play(compile_program("test_threads", "tsan", TSAN, compiler=compiler), dose.seed, 3000)


def run_crash(dose: Dose) -> None:
    play(compile_program("crash_points", "plain", ["-O2"]))


def run_chaos(dose: Dose) -> None:
    play(compile_program("chaos", "plain", ["-O2"]), dose.kills, dose.kills // 4, dose.seed)


def run_fuzz(dose: Dose) -> None:
    play(compile_program("fuzz", "asan", ASAN), dose.bits, 3, dose.seed)


def run_aarch64(dose: Dose) -> None:
    for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        if shutil.which(tool) is None:
            raise NativeFailure(f"{tool} is not installed (Debian packages gcc-aarch64-linux-gnu and qemu-user)")
    arguments: dict[str, tuple[object, ...]] = {
        "test_ring": (dose.seed,),
        "test_interleavings": (dose.seed,),
        "test_doorbell": (),
        "test_answers": (dose.seed, 500),
        "test_threads": (dose.seed, 500),
    }
    for program, given in arguments.items():
        built = compile_program(program, "aarch64", ["-O2", "-static"], compiler="aarch64-linux-gnu-gcc")
        play(built, *given, wrapper=("nice", "qemu-aarch64"))


# ---- planted errors ------------------------------------------------------------------------------------------------
def run_mutants(dose: Dose) -> None:
    missed = [
        name
        for name, is_caught in (
            ("publication relaxed", _is_race_reported("UC_PLANT_PUBLISH_RELAXED")),
            ("take relaxed", _is_race_reported("UC_PLANT_TAKE_RELAXED")),
            *((edit.name, _is_edit_caught(edit)) for edit in EDITS),
        )
        if not _say(name, is_caught)
    ]
    if missed:
        raise NativeFailure(f"planted errors that no test found: {', '.join(missed)}")
    _look_for_lost_wake_up()


def _say(name: str, is_caught: bool) -> bool:
    print(f"{'caught' if is_caught else 'MISSED'}  {name}", flush=True)
    return is_caught


def _is_race_reported(plant: str) -> bool:
    program = compile_program("test_threads", plant.lower(), [*TSAN, f"-D{plant}"])
    try:
        run(["nice", program, 1, 3000])
    except NativeFailure as failure:
        return "ThreadSanitizer: data race" in str(failure) or "is_whole" in str(failure)
    return False


def _is_edit_caught(edit: PlantedEdit) -> bool:
    folder = BUILD / "planted" / edit.name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOURCES, folder)
    text = (folder / edit.file).read_text()
    if text.count(edit.old) != 1:
        raise NativeFailure(
            f"{edit.file} has {text.count(edit.old)} places like {edit.old!r}, expected 1: see planted.py"
        )
    (folder / edit.file).write_text(text.replace(edit.old, edit.new))
    flags = [*(ASAN if edit.program == "fuzz" else ["-O2"]), "-Wno-error"]
    program = compile_program(edit.program, f"planted/{edit.name.replace(' ', '-')}", flags, core=folder)
    arguments = {"fuzz": (20_000, 1, 1), "test_threads": (1, 5000), "test_answers": (1, 2000), "test_ring": (1,)}.get(
        edit.program, ()
    )
    try:
        run(["nice", program, *arguments])
    except NativeFailure:
        return True
    return False


def _look_for_lost_wake_up() -> None:
    """Whether a missing fence is seen depends on the processor and the load; that it is needed is shown by
    tests/models/weak_memory.py. With the fence a lost wake-up is an error on any machine."""
    play(compile_program("test_threads", "plain", ["-O2"]), "storm", 5)
    program = compile_program("test_threads", "no-park-fence", ["-O2", "-DUC_PLANT_NO_PARK_FENCE"])
    try:
        run(["nice", program, "storm", 30])
        print("unseen  park fence missing: no lost wake-up in 30 s on this machine", flush=True)
    except NativeFailure:
        _say("park fence missing", True)


RUNS: dict[str, Callable[[Dose], None]] = {
    "plain": run_plain,
    "asan": run_asan,
    "tsan": run_tsan,
    "crash": run_crash,
    "chaos": run_chaos,
    "fuzz": run_fuzz,
    "mutants": run_mutants,
    "aarch64": run_aarch64,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds and runs the ring's native tests.")
    parser.add_argument("verb", choices=(*RUNS, "all"))
    parser.add_argument(
        "--kills", type=int, default=2000, help="kills of the consumer in chaos; the producer's: a quarter"
    )
    parser.add_argument("--bits", type=int, default=1_000_000, help="random bits in fuzz")
    parser.add_argument("--seed", type=int, default=0, help="replays a run; 0 chooses one")
    arguments = parser.parse_args()
    dose = Dose(arguments.kills, arguments.bits, arguments.seed)
    try:
        for verb in RUNS if arguments.verb == "all" else (arguments.verb,):
            RUNS[verb](dose)
    except NativeFailure as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
