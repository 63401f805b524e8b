"""The published package of the prediction life cycle, in a venv of its own, for `--peer`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
from pathlib import Path

from undercurrent.benchmarks.harness import BenchmarkError

PREDICT_PEER = "laya==0.4.15"
# Of its dependencies the scenarios import these two; torch is lent by this interpreter, where it is installed.
NEEDS = ("numpy",)
INSTALL_S = 600.0


def predict_peer_python(cache: Path | None = None) -> Path:
    """Returns the interpreter of the peer's venv; makes it first where there is none.

    Raises:
        BenchmarkError: the package index does not give it.
    """
    root = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "undercurrent"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    folder = root / f"peer-{PREDICT_PEER.replace('==', '-')}-py{version}"
    python = folder / "bin" / "python"
    mark = folder / "complete"
    if not mark.exists():
        venv.EnvBuilder(with_pip=True, clear=True).create(folder)
        for command in (["install", "-q", *NEEDS], ["install", "-q", "--no-deps", PREDICT_PEER]):
            done = subprocess.run(
                [str(python), "-m", "pip", *command], capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
            if done.returncode != 0:
                raise BenchmarkError(
                    f"{PREDICT_PEER} was expected from the package index; pip says:\n{done.stderr[-1500:]}"
                )
        mark.touch()
    _lend_torch(folder / "lib" / f"python{version}" / "site-packages" / "torch_of_the_caller.pth")
    return python


def _lend_torch(path: Path) -> None:
    """Puts this interpreter's packages behind the venv's own: torch is 750 MB, and both shall use the same."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        path.write_text(f"{Path(spec.origin).parent.parent}\n")
