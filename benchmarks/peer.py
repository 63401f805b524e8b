"""The published thread-based package, in a venv of its own under the cache folder, for `--peer`."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from undercurrent.benchmarks.harness import BenchmarkError

PEER = "undercurrent==0.1.0"
# Its declared dependencies hold torch and transformers, which its router never imports; these are what it and the
# scenarios do import.
NEEDS = ("numpy", "packaging", "psutil", "pydantic>=2", "PyYAML")
INSTALL_S = 600.0


def peer_python(cache: Path | None = None) -> Path:
    """Returns the interpreter of the peer's venv; makes it first where there is none.

    Raises:
        BenchmarkError: the package index does not give it.
    """
    folder = (
        cache or _cache_folder()
    ) / f"peer-{PEER.replace('==', '-')}-py{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin" / "python"
    mark = folder / "complete"
    if mark.exists():
        return python
    venv.EnvBuilder(with_pip=True, clear=True).create(folder)
    for command in (["install", "-q", *NEEDS], ["install", "-q", "--no-deps", PEER]):
        done = subprocess.run(
            [str(python), "-m", "pip", *command], capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        if done.returncode != 0:
            raise BenchmarkError(f"{PEER} was expected from the package index; pip says:\n{done.stderr[-1500:]}")
    mark.touch()
    return python


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "undercurrent"
