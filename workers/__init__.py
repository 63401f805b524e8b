"""Worker processes: who starts them, what crosses to them, and the loop that runs probes in them.

`Supervisor` lives in the engine's process and gives every async point of a request an `AsyncBinding`, which copies
records into the ring of a lane. `Worker` is the loop on the other side. `frames` says how payloads and values cross.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from undercurrent.workers.binding import AsyncBinding
    from undercurrent.workers.plans import BindingPlan, BindingStatistics, WorkerStatus
    from undercurrent.workers.supervisor import Supervisor

__all__ = ["AsyncBinding", "BindingPlan", "BindingStatistics", "Supervisor", "WorkerStatus"]

_HOMES = {
    "AsyncBinding": "binding",
    "BindingPlan": "plans",
    "BindingStatistics": "plans",
    "Supervisor": "supervisor",
    "WorkerStatus": "plans",
}


def __getattr__(name: str) -> Any:
    # Looked up when asked for: a worker process imports this package for its loop and needs no supervisor.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"undercurrent.workers.{_HOMES[name]}"), name)
