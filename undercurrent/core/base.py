"""`Probe`, the class users write, and `ProbeFactory`, which makes one per extraction point and request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from undercurrent.core.isolation import can_carry_state, fresh_copy, stateful_defaults
from undercurrent.core.signals import ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import (
    ProbeDefinitionError,
    ProbingRuntimeError,
    ProbingTypeError,
    ProbingValueError,
    did_you_mean,
    one_of,
)
from undercurrent.spec import ActivationRecord, ProbeKind

if TYPE_CHECKING:
    from undercurrent.core.batch import ActivationBatch

__all__ = ["Probe", "ProbeFactory", "require_probe_kind"]

_KIND_WORDS = tuple(kind.value for kind in ProbeKind)
_REFUSED_CLASS_STATE = (list, dict, set, bytearray)
_OWN_TABLES = frozenset({"_class_state", "_stateful_defaults"})
# What Python and its dataclasses keep in a class is no state of a probe.
_PYTHONS_TABLES = frozenset(
    {
        *("__annotations__", "__annotations_cache__", "__conditional_annotations__"),
        *("__dataclass_fields__", "__dict__", "__slots__"),
    }
)


class Probe(ABC):
    """Watches one extraction point of one request.

    A subclass names its `probe_kind` and implements `on_start`, `on_activation` and `on_end`; instances come from
    `spawn`. One instance is called by one thread at a time, with records in the order they were routed. An inline
    probe runs on the engine's thread, an async probe in a worker.

    >>> class Longest(Probe):
    ...     probe_kind = "trajectory"
    ...     def on_start(self, request_ctx): self.longest = 0
    ...     def on_activation(self, record): self.longest = max(self.longest, len(record.tensor))
    ...     def on_end(self, request_ctx):
    ...         return ProbeResult(self.request_id, self.extraction_point_name, self.longest)
    """

    probe_kind: ClassVar[ProbeKind | str]
    """`single_shot` or `trajectory`, as a word or a `ProbeKind`."""

    reads_in_place: ClassVar[bool] = False
    """Whether an async probe of this class takes read-only views that are valid during the call, instead of copies."""

    # Class-level containers that `__init_subclass__` does not refuse; each instance gets copies of its own.
    _class_state: ClassVar[dict[str, Any]] = {}
    # Defaults of the constructor's parameters that could carry state; each instance gets copies of these too.
    _stateful_defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "probe_kind" in cls.__dict__:
            require_probe_kind(cls)
        for name, value in cls.__dict__.items():
            if isinstance(value, _REFUSED_CLASS_STATE) and not _is_dunder(name):
                raise ProbeDefinitionError(
                    f"`{cls.__name__}.{name}` is a class-level {type(value).__name__}, which every request would share;"
                    " set it on `self` in `__init__` or `on_start`"
                )
        cls._class_state = _find_class_state(cls)
        cls._stateful_defaults = stateful_defaults(cls.__init__)

    @classmethod
    def spawn(cls, request_id: str, extraction_point_name: str, **probe_kwargs: Any) -> Self:
        """A new instance for one point of one request; `probe_kwargs` go to the constructor.

        Raises:
            ProbingTypeError: called on `Probe` itself.
            ProbeDefinitionError: the class has no valid `probe_kind`.
            ProbingValueError: an empty id or name.
            TypeError: the class is abstract, or the constructor refuses the arguments.
        """
        if cls is Probe:
            raise ProbingTypeError("`Probe` is abstract; call `spawn` on a subclass")
        require_probe_kind(cls)
        if not request_id:
            raise ProbingValueError(f"`request_id` must be a non-empty string, got {request_id!r}")
        if not extraction_point_name:
            raise ProbingValueError(
                f"`extraction_point_name` must be a non-empty string, got {extraction_point_name!r}"
            )
        for name, value in cls._stateful_defaults.items():
            if name not in probe_kwargs:
                probe_kwargs[name] = fresh_copy(value)
        # Before the constructor, so that it can read its identity and finds no state of an earlier request.
        probe = cls.__new__(cls) if cls.__new__ is object.__new__ else cls.__new__(cls, **probe_kwargs)
        probe.__dict__["_request_id"] = request_id
        probe.__dict__["_extraction_point_name"] = extraction_point_name
        for name, value in cls._class_state.items():
            probe.__dict__[name] = fresh_copy(value)
        probe.__init__(**probe_kwargs)  # type: ignore[misc]
        return probe

    @classmethod
    def of_kind(cls, kind: ProbeKind | str) -> type[Probe]:
        """The class that serves points of `kind`; a probe that has one for each kind overrides this."""
        return cls

    @property
    def request_id(self) -> str:
        """The request this instance was spawned for."""
        return self._spawned("_request_id")

    @property
    def extraction_point_name(self) -> str:
        """The extraction point this instance was spawned for."""
        return self._spawned("_extraction_point_name")

    @abstractmethod
    def on_start(self, request_ctx: RequestContext) -> None:
        """Called once, before the first record."""

    @abstractmethod
    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        """Called with each record, in order; None says nothing."""

    def on_activations(self, batch: ActivationBatch) -> Sequence[ProbeSignal | None] | None:
        """Called by a worker instead of `on_activation` if a class overrides it; one answer per record, or None.

        A class that overrides it still implements `on_activation`, which inline points call.
        """
        return [self.on_activation(record) for record in batch]

    @abstractmethod
    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        """Called once, after the last record."""

    def _spawned(self, name: str) -> str:
        try:
            value: str = self.__dict__[name]
        except KeyError:
            raise ProbingRuntimeError(
                f"this {type(self).__name__} belongs to no request; make probes with `{type(self).__name__}.spawn(...)`"
            ) from None
        return value


@dataclass(frozen=True)
class ProbeFactory:
    """A probe class with constructor arguments; makes one probe per point and request.

    Containers and writable numpy arrays among the arguments are copied for each probe, so that no request sees what
    another one's probe did to them. Other objects are shared.
    """

    probe_cls: type[Probe]
    probe_kwargs: dict[str, Any] = field(default_factory=dict)

    def spawn(self, request_id: str, extraction_point_name: str, **extra_kwargs: Any) -> Probe:
        """A new probe; `extra_kwargs` win over the factory's."""
        merged = {**(self.probe_kwargs or {}), **extra_kwargs}
        fresh = {name: fresh_copy(value) for name, value in merged.items()}
        return self.probe_cls.spawn(request_id, extraction_point_name, **fresh)


def require_probe_kind(probe_cls: type[Probe]) -> ProbeKind:
    """The kind of a probe class.

    Raises:
        ProbeDefinitionError: `probe_kind` is missing or no kind.
    """
    kind = getattr(probe_cls, "probe_kind", None)
    try:
        return ProbeKind(kind)
    except ValueError:
        suggestion = did_you_mean(str(kind), _KIND_WORDS) or ";"
        raise ProbeDefinitionError(
            f"`{probe_cls.__name__}.probe_kind` must be {one_of(_KIND_WORDS)}, got {kind!r}{suggestion} 'single_shot'"
            " judges each record by itself, 'trajectory' keeps state across a generation"
        ) from None


def _find_class_state(cls: type[Probe]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base is Probe:
            continue
        for name, value in base.__dict__.items():
            if name in _OWN_TABLES or name in _PYTHONS_TABLES:
                continue
            state.pop(name, None)
            if can_carry_state(value):
                state[name] = value
    return state


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
