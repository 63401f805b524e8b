"""The checkpoints a Router knows, and those it has in memory, with the events of loading and letting go."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from undercurrent.errors import did_you_mean
from undercurrent.predict.agent import Agent
from undercurrent.predict.catalog import ALIASES, canonical, is_checkpoint, known_names
from undercurrent.predict.chain import HookChain, note_failure
from undercurrent.predict.checkpoint import Checkpoint
from undercurrent.predict.context import CORRELATION, PredictContext, new_id
from undercurrent.predict.errors import CheckpointNotFoundError, PredictTypeError, PredictValueError
from undercurrent.predict.hooks import HookRegistry, Hooks, Listeners
from undercurrent.predict.life import correlated
from undercurrent.predict.order import EVICT, LOAD
from undercurrent.predict.residency import Residency, Resident
from undercurrent.predict.routing import ENGLISH, MULTILINGUAL, LanguageGuess

__all__ = ["CheckpointStore", "Source"]

Source = str | Checkpoint[Any, Any, Any] | Callable[[], Any]
"""Where a checkpoint comes from: a name or path, a checkpoint, or a function that makes a checkpoint or an agent."""

_BUILT_IN = (ENGLISH, MULTILINGUAL)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_RESERVED = ("auto", *ALIASES)
_NEAR_MIN = 0.85


class CheckpointStore(HookRegistry):
    """The half of a Router that knows and keeps checkpoints."""

    def __init__(
        self,
        models: Mapping[str, Source] | None = None,
        *,
        max_loaded: int | None = 2,
        max_loaded_bytes: int | None = None,
        pinned: Iterable[str] = (),
        default: str = MULTILINGUAL,
        preload: bool = False,
        lang_guess: LanguageGuess = None,
        hooks: Hooks = None,
        on_predict_start: Listeners = None,
        on_predict_end: Listeners = None,
        hooks_raise: bool = True,
        hooks_concurrent: bool = True,
        hooks_timeout: float | None = None,
        agent_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            hooks,
            on_predict_start,
            on_predict_end,
            hooks_raise=hooks_raise,
            hooks_concurrent=hooks_concurrent,
            hooks_timeout=hooks_timeout,
        )
        for name, value in (("max_loaded", max_loaded), ("max_loaded_bytes", max_loaded_bytes)):
            if value is not None and (type(value) is not int or value < 1):
                raise PredictValueError(f"`{name}` must be an int >= 1 or None, got {value!r}")
        self._sources: dict[str, Source | None] = {name: name for name in _BUILT_IN}
        self._descriptions: dict[str, str] = {}
        self._agent_options = dict(agent_options or {})
        self._residency = Residency(self._build, max_loaded=max_loaded, max_loaded_bytes=max_loaded_bytes)
        for name, source in (models or {}).items():
            self._sources[self._new_name(name)] = _checked_source(name, source)
        self.default = self.resolve(default)
        """The checkpoint for states in which no language is recognised."""
        self.lang_guess = lang_guess
        """A language code, or a function of the state, asked before the text is looked at."""
        for name in pinned:
            self._residency.pin(self.resolve(name))
        if preload:
            self.preload()

    def resolve(self, name: object) -> str:
        """Returns the name a checkpoint is known by; aliases and case are resolved.

        Raises:
            PredictTypeError: `name` is no string.
            CheckpointNotFoundError: nobody knows it; the message has the nearest name and all that are known.
        """
        if type(name) is str and name in self._sources:
            return name
        if not isinstance(name, str):
            raise PredictTypeError(f"a checkpoint's name must be a string, got {name!r}")
        key = canonical(name)
        if key in self._sources:
            return key
        installed = known_names()
        if key in installed:
            self._sources.setdefault(key, key)
            return key
        known = sorted({*self._sources, *installed})
        raise CheckpointNotFoundError(
            f"no checkpoint is known as {name!r}{did_you_mean(name, known) or ';'} known are"
            f" {', '.join(map(repr, known))}. Add one with register(name, source) or attach(name, agent)"
        )

    def register(self, name: str, source: Source, description: str | None = None) -> str:
        """Makes a checkpoint known; loads nothing. One that is resident under the name is let go. Returns the name."""
        key = self._new_name(name)
        source = _checked_source(name, source)
        is_replaced = self._sources.get(key) is not None and self._sources[key] is not source
        self._sources[key] = source
        if description is not None:
            self._descriptions[key] = description
        if is_replaced:
            self.unload(key)
        return key

    def unregister(self, name: str) -> None:
        """Forgets a checkpoint and lets it go."""
        key = self.resolve(name)
        if key in _BUILT_IN or key == self.default:
            raise PredictValueError(f"{key!r} is built in, or the default, and stays known")
        self.unload(key)
        self._sources.pop(key, None)
        self._descriptions.pop(key, None)

    @property
    def registered(self) -> dict[str, dict[str, Any]]:
        """The known checkpoints: where each comes from, and its description."""
        return {
            name: {"repo": self.repo_of(name), "description": self._descriptions.get(name)} for name in self._sources
        }

    def repo_of(self, name: str) -> str | None:
        """Returns where a checkpoint is loaded from, if that is a name or path."""
        source = self._sources.get(name)
        return source if type(source) is str else None

    def load(self, name: str, hooks: Hooks = None) -> Any:
        """Returns a checkpoint's agent, built now if it is not resident; `on_evict` and then `on_load` run if it was.

        What on_load or on_evict hooks raise is raised after all of them have run; the checkpoint stays resident.
        """
        chain = self._chain(hooks)
        with correlated(CORRELATION.get() or new_id()):
            resident = self._lease(self.resolve(name), chain)
            self._release(resident, chain)
        return resident.agent

    def preload(self, names: Iterable[str] | None = None) -> None:
        """Loads checkpoints (None: all that are known), and raises `max_loaded` so that they stay."""
        keys = [self.resolve(name) for name in (self._sources if names is None else names)]
        self._residency.make_room_for(len(set(keys) - set(self.loaded)))
        for key in keys:
            self.load(key)

    def unload(self, name: str | None = None) -> None:
        """Lets a checkpoint go (None: all), pinned or attached too, and runs `on_evict`.

        Requests that use it keep it until they end; its memory is free when the last one has.
        """
        names = self.loaded if name is None else [self.resolve(name)]
        removed = [resident for key in names if (resident := self._residency.remove(key)) is not None]
        self._tell_evicted(removed, self._chain_installed)

    def attach(self, name: str, agent: Any) -> None:
        """Keeps an existing agent under a name, new or known, until it is unloaded; limits do not touch it.

        No `on_load`, since nothing was built. An agent it takes the place of gets `on_evict`.
        """
        if isinstance(agent, type) or not callable(getattr(agent, "system_one", None)):
            raise PredictTypeError(f"`agent` must be an object with a method system_one, got {agent!r}")
        key = self._new_name(name)
        self._sources.setdefault(key, None)
        displaced = self._residency.attach(key, agent)
        self._tell_evicted([displaced] if displaced else [], self._chain_installed)

    def pin(self, name: str) -> None:
        """Keeps a checkpoint from being evicted for room, now or once it is loaded."""
        self._residency.pin(self.resolve(name))

    def unpin(self, name: str) -> None:
        """Takes a pin back; what is over a limit goes at once."""
        self._tell_evicted(self._residency.unpin(self.resolve(name)), self._chain_installed)

    @property
    def loaded(self) -> list[str]:
        """The checkpoints in memory, the one used longest ago first."""
        return self._residency.names

    @property
    def loaded_bytes(self) -> int:
        """Bytes of all checkpoints in memory, attached ones too."""
        return self._residency.size_bytes

    @property
    def pinned(self) -> frozenset[str]:
        """The pinned names."""
        return self._residency.pins

    def _lease(self, name: str, chain: HookChain) -> Resident:
        """Returns a checkpoint that stays until `_release`; runs the events of loading it after every lock is free."""
        resident, evicted = self._residency.lease(name)
        if evicted is None:
            return resident
        first = self._run_evicted(evicted, chain)
        loaded = chain.run(LOAD, self._store_context(resident))
        if first is None:
            first = loaded
        elif loaded is not None:
            note_failure(first, LOAD, loaded)
        if first is not None:
            self._release(resident, chain, first)
            raise first
        return resident

    def _release(self, resident: Resident, chain: HookChain, error: BaseException | None = None) -> None:
        """Ends a use; what could not be evicted while it was in use is evicted now."""
        evicted = self._residency.release(resident)
        if not evicted:
            return
        failure = self._run_evicted(evicted, chain)
        if failure is None:
            return
        if error is None:
            raise failure
        note_failure(error, EVICT, failure)

    def _tell_evicted(self, residents: list[Resident], chain: HookChain) -> None:
        failure = self._run_evicted(residents, chain)
        if failure is not None:
            raise failure

    def _run_evicted(self, residents: list[Resident], chain: HookChain) -> BaseException | None:
        first: BaseException | None = None
        for resident in residents:
            failure = chain.run(EVICT, self._store_context(resident))
            if first is None:
                first = failure
            elif failure is not None:
                note_failure(first, EVICT, failure)
        return first

    def _store_context(self, resident: Resident) -> PredictContext:
        return PredictContext(
            [], {}, correlation_id=CORRELATION.get(), model=resident.name, agent=resident.agent, router=self
        )

    def _build(self, name: str) -> Any:
        source = self._sources.get(name)
        if source is None:
            raise CheckpointNotFoundError(
                f"checkpoint {name!r} was attached and is not resident any more; attach it again, or register a source"
            )
        if not isinstance(source, str) and not is_checkpoint(source):
            source = source()  # type: ignore[operator]
            if callable(getattr(source, "system_one", None)):
                return source
        return Agent(source, **self._agent_options)  # type: ignore[arg-type]

    def _new_name(self, name: object) -> str:
        key = canonical(name) if isinstance(name, str) else ""
        if not _NAME.fullmatch(key) or key in _RESERVED:
            raise PredictValueError(
                f"a checkpoint's name must be letters, digits, '.', '_' and '-', and not 'auto', got {name!r}"
            )
        near = difflib.get_close_matches(key, _BUILT_IN, n=1, cutoff=_NEAR_MIN)
        if near and near[0] != key:
            warnings.warn(f"checkpoint {key!r} is named almost as the built-in {near[0]!r}", UserWarning, stacklevel=4)
        return key


def _checked_source(name: object, source: object) -> Source:
    if isinstance(source, str) or is_checkpoint(source) or (callable(source) and not is_checkpoint(source)):
        return source  # type: ignore[return-value]
    raise PredictTypeError(
        f"the source of checkpoint {name!r} must be a name, a path, a checkpoint, or a function that makes one,"
        f" got {type(source).__name__}"
    )
