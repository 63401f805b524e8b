"""The project's own files, as house tests look at them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Folder -> import name. The links below undercurrent/ show the same files once more and are not followed.
ROOMS = {
    "undercurrent": "undercurrent",
    "ipc": "undercurrent.ipc",
    "workers": "undercurrent.workers",
    "engines": "undercurrent.engines",
    "benchmarks": "undercurrent.benchmarks",
}
_NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.so", "*.o", "build", "dist", "runs", "*.egg-info"
)


def walk(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yields the files below a folder that end in one of the suffixes, without following links."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() or entry.name.startswith((".", "__pycache__")) or entry.name == "build":
            continue
        if entry.is_dir():
            yield from walk(entry, suffixes)
        elif entry.suffix in suffixes:
            yield entry


def product_files() -> list[Path]:
    """Returns every Python file of the rooms."""
    return [path for room in ROOMS for path in walk(ROOT / room, (".py",))]


def module_name(path: Path) -> str:
    """Returns the import name of a product file: `ipc/ring.py` is `undercurrent.ipc.ring`."""
    room, *parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join([ROOMS[room], *parts])


def package_names() -> set[str]:
    """Returns the import name of every package."""
    return {module_name(path) for path in product_files() if path.name == "__init__.py"}


def copy_tree(target: Path) -> Path:
    """Copies what belongs to the source tree, links kept as links, and returns the target."""
    shutil.copytree(ROOT, target, symlinks=True, ignore=_NOT_SOURCE)
    return target


def code_blocks(text: str, language: str) -> list[str]:
    """Returns the fenced blocks of one language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
