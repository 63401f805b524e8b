"""Tells lanes that they are in a forked child now, where they must touch nothing that is the parent's."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["watch_forks"]


class _Forkable(Protocol):
    def _after_fork(self) -> None: ...


_forkables: weakref.WeakSet[_Forkable] = weakref.WeakSet()
_is_watching_forks = False


def _after_fork_in_child() -> None:
    for forkable in list(_forkables):
        forkable._after_fork()
    _forkables.clear()


def watch_forks(lane: _Forkable) -> None:
    """Registers a lane for `_after_fork` in forked children; the hook itself is installed once per process."""
    global _is_watching_forks
    if not _is_watching_forks:
        os.register_at_fork(after_in_child=_after_fork_in_child)
        _is_watching_forks = True
    _forkables.add(lane)
