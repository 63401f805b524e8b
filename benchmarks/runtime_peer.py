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
from undercurrent.benchmarks.peer import made_peer, make_peer
from undercurrent.engines.cache_folder import cache_folder

RUNTIME_PEER = "mllm-shap==0.8.0"
PYTHON_MIN = (3, 12)


def runtime_peer_python(cache: Path | None = None) -> Path:
    """Returns the interpreter of the peer's venv; makes it first where there is none.

    Raises:
        BenchmarkError: there is no Python of 3.12 or later, or the package index does not give the package.
    """
    # Whichever Python it is made of.
    folder = (cache or cache_folder()) / f"peer-{RUNTIME_PEER.replace('==', '-')}"
    made = made_peer(folder)
    if made is not None:
        return made
    base = next(_interpreters(), None)
    if base is None:
        raise BenchmarkError(
            f"{RUNTIME_PEER} needs Python {'.'.join(map(str, PYTHON_MIN))} or later, and none was found on PATH or "
            "below pyenv's folder; its column stays empty"
        )
    return make_peer(folder, base, (RUNTIME_PEER,))


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
