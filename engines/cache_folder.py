"""Where models that were unpacked once lie: the cache folder of the XDG base directory specification."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Returns `$XDG_CACHE_HOME/undercurrent`, by default `~/.cache/undercurrent`; creates nothing.

    See: XDG Base Directory Specification, which says that a relative path in the variable is to be ignored.
    """
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "undercurrent"
