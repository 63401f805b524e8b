"""Published packages to compare with, each in a venv of its own below the cache folder, for `--peer`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from undercurrent.benchmarks.harness import BenchmarkError
from undercurrent.engines.cache_folder import cache_folder

PEER = "undercurrent==0.1.0"
# Its declared dependencies hold torch and transformers, which its router never imports; these are what it and the
# scenarios do import.
NEEDS = ("numpy", "packaging", "psutil", "pydantic>=2", "PyYAML")
_INSTALL_S = 600.0
_COMPLETE = "complete"


def peer_python(cache: Path | None = None) -> Path:
    """Returns the interpreter of the venv of the published thread-based package; makes it first where there is none.

    Raises:
        BenchmarkError: the package index does not give it.
    """
    return make_peer(peer_folder(PEER, cache), Path(sys.executable), NEEDS, ("--no-deps", PEER))


def peer_folder(peer: str, cache: Path | None) -> Path:
    """Where the venv of a package lies, for this version of Python; below the user's cache folder without `cache`."""
    version = f"py{sys.version_info[0]}.{sys.version_info[1]}"
    return (cache or cache_folder()) / f"peer-{peer.replace('==', '-')}-{version}"


def make_peer(folder: Path, base: Path, *installs: Sequence[str]) -> Path:
    """Makes a venv of `base` with what `installs` say, the arguments of a `pip install` each; returns its interpreter.

    One that is complete is left as it is.

    Raises:
        BenchmarkError: a command failed.
    """
    made = made_peer(folder)
    if made is not None:
        return made
    python = folder / "bin" / "python"
    commands = [[str(base), "-m", "venv", "--clear", str(folder)]]
    commands += [[str(python), "-m", "pip", "install", "-q", *arguments] for arguments in installs]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"{folder.name} could not be made; {' '.join(command)} says:\n{done.stderr[-1500:]}")
    (folder / _COMPLETE).touch()
    return python


def made_peer(folder: Path) -> Path | None:
    """The interpreter of a venv that `make_peer` made to its end; None where there is none."""
    return folder / "bin" / "python" if (folder / _COMPLETE).exists() else None
