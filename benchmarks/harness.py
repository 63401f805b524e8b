"""How every benchmark is run and reported: scenarios in processes of their own, rows with target, floor and peer."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from undercurrent.errors import ProbingValueError, UndercurrentError

SCENARIOS = Path(__file__).resolve().parent / "common" / "uc_bench_scenarios.py"
SCENARIO_S = 300.0
"""Longest run of one scenario."""


class BenchmarkError(UndercurrentError, RuntimeError):
    """A scenario did not give a result."""


@dataclass(frozen=True)
class Row:
    """One line of the table. A `None` was not measured, or cannot be measured there."""

    what: str
    unit: str
    ours: float | None
    target: str = ""
    """The figure to reach, in words."""
    is_reached: bool | None = None
    peer: float | None = None
    """The published package that does the same, in the same run."""
    floor: float | None = None
    floor_name: str = ""
    """What cannot be beaten, measured in the same run."""
    details: dict[str, Any] = field(default_factory=dict)
    peer_name: str = "0.1.0"
    """Package and version of the peer; of undercurrent itself the version alone."""


@dataclass(frozen=True)
class Runner:
    """Runs scenarios under this interpreter and, with `peer_python`, under the peer's."""

    peer_python: Path | None
    is_quick: bool = False
    say: Callable[[str], None] = lambda _: None

    def ours(self, scenario: str, **arguments: Any) -> dict[str, Any]:
        """Runs a scenario against this package."""
        return self._run(Path(sys.executable), scenario, arguments)

    def peer(self, scenario: str, **arguments: Any) -> dict[str, Any] | None:
        """Runs a scenario against the published package; None without `--peer`, or where it cannot finish."""
        if self.peer_python is None:
            return None
        try:
            return self._run(self.peer_python, scenario, arguments)
        except BenchmarkError as error:
            self.say(f"peer: {error}")
            return None

    def script(self, path: Path, *arguments: str, python: Path | None = None) -> dict[str, Any]:
        """Runs another program of ours that prints a JSON object last, under this interpreter or another."""
        return _last_json(self._execute([str(python or sys.executable), "-P", str(path), *arguments]), path.name)

    def _run(self, python: Path, scenario: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.say(f"{scenario} {json.dumps(arguments)} ({'peer' if python == self.peer_python else 'ours'})")
        return _last_json(self._execute([str(python), "-P", str(SCENARIOS), scenario, json.dumps(arguments)]), scenario)

    def _execute(self, command: Sequence[str]) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SCENARIO_S, env=environment, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"{command[2:]} did not end within {SCENARIO_S:g} s") from error
        if done.returncode != 0:
            raise BenchmarkError(f"{command[2:]} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout


def _last_json(text: str, name: str) -> dict[str, Any]:
    lines = text.strip().splitlines()
    if not lines:
        raise BenchmarkError(f"scenario {name} printed nothing; a JSON object was expected")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def value(result: dict[str, Any] | None, key: str) -> float | None:
    """Returns `result[key]`, None where there is no result."""
    return None if result is None else result.get(key)


def at_most(limit: float, measured: float | None) -> bool | None:
    """Whether a smaller-is-better figure is reached."""
    return None if measured is None else measured <= limit


def at_least(limit: float, measured: float | None) -> bool | None:
    """Whether a larger-is-better figure is reached."""
    return None if measured is None else measured >= limit


def check_outputs(*paths: Path | None, plot: Path | None, has_peer: bool) -> None:
    """Refuses what would fail behind minutes of measuring; a path that is None is not asked for.

    Raises:
        ProbingValueError: a plot is asked for, and no peer to draw ours against.
        BenchmarkError: there is no folder to write a path in.
    """
    if plot is not None and not has_peer:
        raise ProbingValueError("--plot draws ours against the peer; add --peer")
    for path in (*paths, plot):
        if path is not None and not path.parent.is_dir():
            raise BenchmarkError(f"{str(path.parent)!r}: no such folder to write {path.name!r} in")


def machine_facts() -> dict[str, Any]:
    """What a reader must know to compare two runs."""
    return {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "commit": _commit(),
    }


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Writes rows and machine facts."""
    import orjson

    document = {"machine": machine_facts(), "rows": [asdict(row) for row in rows]}
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            cwd=Path(__file__).resolve().parent,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
