"""Where things that outlive a process lie: the state folder of the XDG base directory specification."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["state_folder"]


def state_folder() -> Path:
    """Returns `$XDG_STATE_HOME/undercurrent`, by default `~/.local/state/undercurrent`; creates nothing.

    See: XDG Base Directory Specification, which says that a relative path in the variable is to be ignored.
    """
    configured = os.environ.get("XDG_STATE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".local" / "state"
    return base / "undercurrent"
