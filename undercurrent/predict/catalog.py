"""Where checkpoints come from by name: the entry-point group `undercurrent.checkpoints`, looked up when one is
loaded."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any

from undercurrent.errors import did_you_mean
from undercurrent.predict.checkpoint import Checkpoint, CheckpointFactory
from undercurrent.predict.errors import CheckpointNotFoundError, PredictError, PredictTypeError

__all__ = ["ALIASES", "CHECKPOINT_METHODS", "GROUP", "canonical", "is_checkpoint", "known_names", "load_checkpoint"]

GROUP = "undercurrent.checkpoints"
DIRECTORY = "directory"
"""The entry point that loads a local folder."""
ALIASES = {"en": "english", "ml": "multilingual"}
CHECKPOINT_METHODS = ("check", "encode", "collate", "forward", "decode")


class CheckpointFolderNotFoundError(PredictError, FileNotFoundError):
    """The path of a checkpoint leads nowhere."""


def canonical(name: str) -> str:
    """Returns a name as it is looked up: trimmed, in lower case, aliases resolved."""
    key = name.strip().lower()
    return ALIASES.get(key, key)


def known_names() -> tuple[str, ...]:
    """Returns the names of the entry-point group, sorted; reads the metadata of installed packages."""
    return tuple(sorted({point.name for point in metadata.entry_points(group=GROUP)} - {DIRECTORY}))


def load_checkpoint(source: str, **options: Any) -> Checkpoint[Any, Any, Any]:
    """Makes the checkpoint of a name, or of the folder a path names.

    Raises:
        CheckpointNotFoundError: no entry point has that name.
        FileNotFoundError: the path, or a file the checkpoint needs, is missing.
        MissingDependencyError: from the factory, with the command that installs what is missing.
    """
    if os.sep in source or source in (".", "..") or (os.path.isdir(source) and canonical(source) not in known_names()):
        if not os.path.isdir(source):
            raise CheckpointFolderNotFoundError(
                f"a checkpoint's folder was expected at {source!r}, and there is none; see the path"
            )
        name = DIRECTORY
    else:
        name = source = canonical(source)
    points = metadata.entry_points(group=GROUP, name=name)
    if not points:
        names = known_names()
        raise CheckpointNotFoundError(
            f"no checkpoint is known as {name!r}{did_you_mean(name, names) or ';'} known are"
            f" {', '.join(map(repr, names)) or 'none'}. A package adds one with an entry point in the group {GROUP!r}"
        )
    factory: CheckpointFactory = next(iter(points)).load()
    checkpoint = factory(source, **options)
    if not is_checkpoint(checkpoint):
        raise PredictTypeError(
            f"the factory of checkpoint {name!r} returned {type(checkpoint).__name__}, which lacks one of"
            f" {', '.join(CHECKPOINT_METHODS)}"
        )
    return checkpoint


def is_checkpoint(value: object) -> bool:
    """Tells whether an object, no class, has a checkpoint's methods."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in CHECKPOINT_METHODS)
