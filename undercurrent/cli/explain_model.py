"""The model of a run, loaded: in this process, or in one of an executor. Importing this loads torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from undercurrent.cli.models import missing_model_named, resolve_model
from undercurrent.cli.specs import import_modules
from undercurrent.cli.verbs import say
from undercurrent.engines import HFEngine
from undercurrent.engines.coalitions import HFCoalitions
from undercurrent.router import Router
from undercurrent.runtime.pipeline import FIRED_SUFFIX, RunSettings
from undercurrent.spec import ProbeSpec

__all__ = ["LoadedCoalitions", "load_coalitions"]


class LoadedCoalitions(HFCoalitions):
    """A model for runs that owns what was opened for it."""

    def __init__(self, engine: HFEngine, settings: RunSettings, opened: ExitStack, **options: Any) -> None:
        super().__init__(engine, settings.generation, **options)
        self._opened = opened

    def close(self) -> None:
        """Ends the thread, and closes what was opened; idempotent."""
        super().close()
        self._opened.close()


def load_coalitions(
    name: str,
    settings: RunSettings,
    *,
    points: ProbeSpec | None = None,
    imports: Sequence[str] = (),
    device: str | None = None,
    is_alone: bool = False,
) -> LoadedCoalitions:
    """The model `name` says, with the spec's probes attached; whoever gets it closes it.

    Also called in the processes of executors, where `is_alone` makes its answers depend on nothing but the job: one
    thread, and no prompt that goes on from another's. Numbers are then equal to the bit wherever a job runs.

    Raises:
        CLIError: there is no such model.
    """
    import_modules(imports)
    tell = _be_quiet if is_alone else say
    choice = resolve_model(name, on_progress=tell)
    tell(f"loading {choice.title}")
    engine = HFEngine()
    with missing_model_named(name):
        engine.load_model(
            choice.model,
            device=device,
            shows_progress=False,
            thread_count=1 if is_alone else None,
            **choice.options,
        )
    options: dict[str, Any] = {"reuses_prefixes": False} if is_alone else {}
    with ExitStack() as stack:
        if points is not None:
            # A verdict must rest on every record, so the model waits for a slow probe instead of leaving records out.
            router = stack.enter_context(Router(default_overflow_policy="block"))
            router.prewarm(points, loads_torch=True)
            fired = settings.value.removesuffix(FIRED_SUFFIX) if settings.value.endswith(FIRED_SUFFIX) else None
            options |= {
                "points": list(points),
                "router": router,
                "stops_when_fired": [fired] if fired in points.names else [],
            }
        return LoadedCoalitions(engine, settings, stack.pop_all(), **options)


def _be_quiet(_: str) -> None:
    """Several processes would say the same."""
