"""The published package with the runtime's names, in a venv of its own, for `runtime --peer`. It needs Python 3.12."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from undercurrent.benchmarks.harness import BenchmarkError
from undercurrent.benchmarks.peer import INSTALL_S, _cache_folder

RUNTIME_PEER = "mllm-shap==0.8.0"
PYTHON_MIN = (3, 12)


def runtime_peer_python(cache: Path | None = None) -> Path:
    """Returns the interpreter of the peer's venv; makes it first where there is none.

    Raises:
        BenchmarkError: there is no Python of 3.12 or later, or the package index does not give the package.
    """
    folder = (cache or _cache_folder()) / f"peer-{RUNTIME_PEER.replace('==', '-')}"
    python, mark = folder / "bin" / "python", folder / "complete"
    if mark.exists():
        return python
    base = next(_interpreters(), None)
    if base is None:
        raise BenchmarkError(
            f"{RUNTIME_PEER} needs Python {'.'.join(map(str, PYTHON_MIN))} or later, and none was found on PATH or "
            "below pyenv's folder; its column stays empty"
        )
    for command in (
        [str(base), "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "-q", RUNTIME_PEER],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"{RUNTIME_PEER} could not be installed:\n{done.stderr[-1500:]}")
    mark.touch()
    return python


def _interpreters() -> Iterator[Path]:
    """Yields Pythons that are new enough and can make a venv."""
    on_path = [shutil.which(f"python3.{minor}") for minor in range(PYTHON_MIN[1], PYTHON_MIN[1] + 8)]
    candidates = [Path(sys.executable), *(Path(found) for found in on_path if found)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    with suppress(OSError):
        candidates += sorted(pyenv.glob("versions/3.*/bin/python3"))
    question = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {PYTHON_MIN})"
    for candidate in candidates:
        with suppress(OSError, subprocess.TimeoutExpired):
            if (
                subprocess.run([candidate, "-c", question], capture_output=True, timeout=20, check=False).returncode
                == 0
            ):
                yield candidate
