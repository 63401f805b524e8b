"""`ProbeRegistry`: probe types by name, registered here or published by installed packages."""

from __future__ import annotations

import builtins
import inspect
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from undercurrent.core.base import Probe, ProbeFactory, require_probe_kind
from undercurrent.errors import (
    ProbeDefinitionError,
    ProbeNotFoundError,
    ProbingTypeError,
    ProbingValueError,
)
from undercurrent.spec import ProbeKind

if TYPE_CHECKING:
    import importlib.metadata

__all__ = [
    "PLUGIN_GROUP",
    "ProbeRegistry",
    "default_registry",
    "get_probe_factory",
    "list_probes",
    "register_probe",
    "unregister_probe",
]

PLUGIN_GROUP = "undercurrent.probes"

logger = logging.getLogger(__name__)


class ProbeRegistry:
    """Probe factories by name.

    Names that nobody registered are looked up among the entry points of the group `undercurrent.probes`; a package
    found there is imported when its name is first asked for. What is registered by a call wins over a plugin. All
    methods may be called from any thread. No lock is held while a plugin is imported, since that import may register
    probes from another thread.
    """

    def __init__(self, *, load_entry_points: bool = True) -> None:
        self._lock = threading.Lock()
        # Guarded by `_lock`: all three. `_plugins` is None until the installed packages were searched.
        self._factories: dict[str, ProbeFactory] = {}
        self._plugins: dict[str, importlib.metadata.EntryPoint] | None = None if load_entry_points else {}
        self._from_plugin: set[str] = set()
        # By the class that serves another kind, the factory it was derived from and the derived one; guarded too.
        self._derived: dict[type[Probe], tuple[ProbeFactory, ProbeFactory]] = {}
        # Never changed after construction, but for the registry of this module.
        self._offered: dict[str, str] = {}

    def register(
        self,
        name: str,
        probe: type[Probe] | ProbeFactory | None = None,
        /,
        *,
        override: bool = False,
        **probe_kwargs: Any,
    ) -> Any:
        """Stores a probe under `name` and returns the stored factory; without `probe`, a decorator for a class.

        A class of the same module and name replaces its earlier self, so that a notebook cell can be run again.

        Raises:
            ProbingValueError: `name` is empty, or taken by something else.
            ProbeDefinitionError: `probe` is not a concrete subclass of `Probe`.
        """
        if not isinstance(name, str) or not name:
            raise ProbingValueError(
                f"a probe's name must be a non-empty string, got {name!r}; as in @register_probe('my_probe')"
            )
        if probe is None:
            return self._decorator(name, override, probe_kwargs)
        return self._store(name, probe, override, probe_kwargs)

    def unregister(self, name: str) -> None:
        """Forgets `name`; a plugin of that name is not loaded again.

        Raises:
            ProbeNotFoundError: nothing has that name.
        """
        self.get(name)
        with self._lock:
            self._factories.pop(name, None)
            self._from_plugin.discard(name)

    def get(self, name: str) -> ProbeFactory:
        """The factory registered under `name`.

        Raises:
            ProbeNotFoundError: nothing has that name; the error lists what is known and what is near.
        """
        if not isinstance(name, str):
            raise ProbingTypeError(f"a probe's name must be a string, got {name!r}")
        with self._lock:
            factory = self._factories.get(name)
        if factory is None:
            self._load_plugin(name)
            with self._lock:
                factory = self._factories.get(name)
        if factory is None:
            raise ProbeNotFoundError(name, self._known())
        return factory

    def list(self) -> builtins.list[str]:
        """All names in alphabetical order; imports every plugin, and leaves out those that cannot be used."""
        for name in self._known():
            self._load_plugin(name)
        with self._lock:
            return sorted(self._factories)

    def __contains__(self, name: object) -> bool:
        return name in self._known()

    def __len__(self) -> int:
        return len(self._known())

    def __repr__(self) -> str:
        return f"ProbeRegistry({self._known()!r})"

    def _decorator(
        self, name: str, override: bool, probe_kwargs: dict[str, Any]
    ) -> Callable[[type[Probe]], type[Probe]]:
        def decorate(probe_cls: type[Probe]) -> type[Probe]:
            self._store(name, probe_cls, override, probe_kwargs)
            return probe_cls

        return decorate

    def _store(
        self, name: str, probe: type[Probe] | ProbeFactory, override: bool, probe_kwargs: dict[str, Any]
    ) -> ProbeFactory:
        factory = _make_factory(name, probe, probe_kwargs)
        with self._lock:
            holder = self._factories.get(name)
            may_replace = override or name in self._from_plugin
            if holder and not may_replace and _identity(holder.probe_cls) != _identity(factory.probe_cls):
                raise ProbingValueError(
                    f"the probe name {name!r} is taken by {holder.probe_cls.__name__}; choose another name, or pass"
                    " override=True to replace it"
                )
            self._factories[name] = factory
            self._from_plugin.discard(name)
        return factory

    def of_kind(self, factory: ProbeFactory, kind: ProbeKind | str) -> ProbeFactory:
        """`factory`, or the one whose class serves points of `kind` in its place; see `Probe.of_kind`."""
        probe_cls = factory.probe_cls.of_kind(kind)
        if probe_cls is factory.probe_cls:
            return factory
        with self._lock:
            # One object per factory and class: a router knows by it that nothing has changed between two requests.
            known, derived = self._derived.get(probe_cls, (None, factory))
            if known is not factory:
                derived = ProbeFactory(probe_cls, factory.probe_kwargs)
                self._derived[probe_cls] = (factory, derived)
            return derived

    def _known(self) -> builtins.list[str]:
        plugins = self._find_plugins()
        with self._lock:
            return sorted({*self._factories, *plugins})

    def _find_plugins(self) -> dict[str, importlib.metadata.EntryPoint]:
        """The plugins that were not loaded yet, by name."""
        with self._lock:
            if self._plugins is not None:
                return self._plugins
        found = _search_plugins()
        with self._lock:
            if self._plugins is None:
                # Behind what packages publish: a name that somebody used before it was ours stays theirs.
                self._plugins = {**_entry_points(self._offered), **found}
            return self._plugins

    def _offer(self, modules: dict[str, str]) -> None:
        """Adds plugins that no package has to publish."""
        self._offered = dict(modules)

    def _load_plugin(self, name: str) -> None:
        entry_point = self._find_plugins().get(name)
        if entry_point is None:
            return
        factory: ProbeFactory | None = None
        try:
            factory = _make_factory(name, entry_point.load(), {})
        except Exception:
            # One broken package must not take down the probes of all others.
            logger.warning("probe plugin %r (%s) cannot be used and is skipped", name, entry_point.value, exc_info=True)
        with self._lock:
            if self._plugins is not None:
                self._plugins = {key: value for key, value in self._plugins.items() if key != name}
            if factory is not None and name not in self._factories:
                self._factories[name] = factory
                self._from_plugin.add(name)


def _make_factory(name: str, probe: object, probe_kwargs: dict[str, Any]) -> ProbeFactory:
    kwargs = dict(probe_kwargs)
    if isinstance(probe, ProbeFactory):
        kwargs = {**probe.probe_kwargs, **kwargs}
        probe = probe.probe_cls
    if not (isinstance(probe, type) and issubclass(probe, Probe)):
        raise ProbeDefinitionError(
            f"the probe {name!r} must be a subclass of `undercurrent.core.Probe`, got {probe!r}; for a function, use"
            f" @probe({name!r})"
        )
    require_probe_kind(probe)
    if inspect.isabstract(probe):
        missing = ", ".join(sorted(probe.__abstractmethods__))
        raise ProbeDefinitionError(f"the probe {name!r} ({probe.__name__}) is abstract; implement {missing}")
    return ProbeFactory(probe, kwargs)


def _identity(probe_cls: type[Probe]) -> tuple[str, str]:
    return probe_cls.__module__, probe_cls.__qualname__


# `importlib.metadata` brings the parsers of e-mail along: a tenth of what a worker's first record waits for, while most
# workers never look for a plugin.


def _entry_points(modules: dict[str, str]) -> dict[str, importlib.metadata.EntryPoint]:
    import importlib.metadata

    return {name: importlib.metadata.EntryPoint(name, value, PLUGIN_GROUP) for name, value in modules.items()}


def _search_plugins() -> dict[str, importlib.metadata.EntryPoint]:
    import importlib.metadata

    found: dict[str, importlib.metadata.EntryPoint] = {}
    try:
        entry_points = tuple(importlib.metadata.entry_points(group=PLUGIN_GROUP))
    except Exception:
        # Metadata of any installed package may be damaged; that is no reason to refuse the probes at hand.
        logger.warning("probe plugins cannot be listed and are skipped", exc_info=True)
        return found
    for entry_point in entry_points:
        first = found.setdefault(entry_point.name, entry_point)
        if first.value != entry_point.value:
            logger.warning(
                "two packages publish the probe %r: %s is used, %s is not",
                entry_point.name,
                first.value,
                entry_point.value,
            )
    return found


default_registry = ProbeRegistry()
# Our own probes are found as a plugin is: imported, with numpy, when a spec first names one.
default_registry._offer(
    {
        "linear": "undercurrent.core.builtin:LinearProbe",
        "mlp": "undercurrent.core.builtin:MLPProbe",
        "mean_difference": "undercurrent.core.builtin:MeanDifferenceProbe",
        "sae_feature": "undercurrent.core.builtin:SaeFeatureProbe",
    }
)


def register_probe(
    name: str, probe: type[Probe] | ProbeFactory | None = None, /, *, override: bool = False, **probe_kwargs: Any
) -> Any:
    """`default_registry.register`, as a decorator or a call."""
    return default_registry.register(name, probe, override=override, **probe_kwargs)


def unregister_probe(name: str) -> None:
    """`default_registry.unregister`."""
    default_registry.unregister(name)


def get_probe_factory(name: str) -> ProbeFactory:
    """`default_registry.get`."""
    return default_registry.get(name)


def list_probes() -> list[str]:
    """`default_registry.list`."""
    return default_registry.list()
