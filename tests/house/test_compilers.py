"""The extension compiles without a warning under every compiler that is there."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from source_tree import ROOT

SOURCES = sorted((ROOT / "ipc" / "csrc").glob("*.c"))
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]


def compile_strictly(compiler: str, source: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Compiles one file with all warnings as errors; optimised, since some warnings need the optimiser's view."""
    include = sysconfig.get_path("include")
    flags = ["-std=gnu11", "-O2", "-fPIC", "-DPy_LIMITED_API=0x030B0000", f"-isystem{include}", f"-I{source.parent}"]
    command = [compiler, *flags, *WARNINGS, "-c", str(source), "-o", str(cwd / "out.o")]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_source_compiles_without_a_warning(compiler: str, source: Path, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    answer = compile_strictly(compiler, source, tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_a_lossy_conversion_is_refused(tmp_path: Path) -> None:
    planted = tmp_path / "planted.c"
    planted.write_text("#include <stdint.h>\nuint32_t shrink(uint64_t wide) { return wide; }\n")
    answer = compile_strictly("gcc", planted, tmp_path)
    assert answer.returncode != 0
    assert "-Wconversion" in answer.stderr or "-Werror=conversion" in answer.stderr
