"""Finds Python interpreters other than the one that runs, for tests that need a certain version.

As a script, `python tests/interpreters.py 3.12` ends with status 0 where such an interpreter really runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def _runs(candidate: Path, version: str) -> bool:
    """Tells whether the file starts and is that version: a version manager's shim may exist and start nothing."""
    question = "import sys, venv, ensurepip; print('{}.{}'.format(*sys.version_info))"
    try:
        answer = subprocess.run([candidate, "-c", question], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


def find_interpreter(version: str) -> Path | None:
    """Returns an interpreter of that version (`"3.12"`) from PATH or from pyenv's folder, or None."""
    candidates = []
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        candidates.append(Path(on_path))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    with suppress(OSError):  # the variable may name a folder of somebody else
        candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    return next((candidate for candidate in candidates if _runs(candidate, version)), None)


if __name__ == "__main__":
    sys.exit(0 if find_interpreter(sys.argv[1]) else 1)
