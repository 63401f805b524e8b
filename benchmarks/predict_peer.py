"""The published package of the prediction life cycle, in a venv of its own, for `--peer`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from undercurrent.benchmarks.peer import make_peer, peer_folder

PREDICT_PEER = "laya==0.4.15"
# Of its dependencies the scenarios import these; torch is lent by this interpreter, where it is installed.
NEEDS = ("numpy",)


def predict_peer_python(cache: Path | None = None) -> Path:
    """Returns the interpreter of the peer's venv; makes it first where there is none.

    Raises:
        BenchmarkError: the package index does not give it.
    """
    folder = peer_folder(PREDICT_PEER, cache)
    python = make_peer(folder, Path(sys.executable), NEEDS, ("--no-deps", PREDICT_PEER))
    (packages,) = folder.glob("lib/python*/site-packages")
    _lend_torch(packages / "torch_of_the_caller.pth")
    return python


def _lend_torch(path: Path) -> None:
    """Puts this interpreter's packages behind the venv's own: torch is 750 MB, and both shall use the same."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        path.write_text(f"{Path(spec.origin).parent.parent}\n")
