"""scikit-learn and scipy, imported when something is trained or measured."""

from __future__ import annotations

import importlib
from typing import Any

from undercurrent.errors import MissingDependencyError

__all__ = ["load_library"]


def load_library(module: str) -> Any:
    """The module of that name.

    Raises:
        MissingDependencyError: its package is not installed; the message says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"training and measuring probes needs {error.name}, which is not installed; run: pip install"
            " 'undercurrent[train]'",
            name=error.name,
        ) from None
