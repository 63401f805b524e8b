"""`@probe`: a function from a record to a score, as a probe."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from numbers import Real
from types import EllipsisType
from typing import Any, ClassVar

from undercurrent.core.base import Probe
from undercurrent.core.isolation import stateful_defaults
from undercurrent.core.registry import ProbeRegistry, default_registry
from undercurrent.core.signals import ProbeAction, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import ProbeDefinitionError, ProbingTypeError, ProbingValueError, one_of
from undercurrent.spec import ActivationRecord, ProbeKind

__all__ = ["FunctionProbe", "probe", "read_action", "read_threshold"]

ProbeFunction = Callable[..., Any]

_ACTION_WORDS = (ProbeAction.ABORT.value, ProbeAction.FLAG.value)
_OWN_OPTIONS = ("threshold", "action")


class FunctionProbe(Probe):
    """The base of the classes that `@probe` makes; the function is the class attribute `fn`."""

    probe_kind: ClassVar[ProbeKind | str] = ProbeKind.SINGLE_SHOT.value
    probe_name: ClassVar[str]
    fn: ClassVar[ProbeFunction | None] = None
    default_threshold: ClassVar[float | None] = None
    default_action: ClassVar[ProbeAction] = ProbeAction.ABORT
    _fn_defaults: ClassVar[tuple[tuple[str, Any], ...]] = ()

    def __init__(
        self,
        *,
        threshold: float | EllipsisType | None = ...,
        action: ProbeAction | str | EllipsisType = ...,
        **fn_kwargs: Any,
    ) -> None:
        """`threshold` and `action` replace the decorator's; the other arguments go to the function.

        Raises:
            ProbingTypeError: an argument the function does not take or lacks, or a `threshold` that is no number.
            ProbingValueError: an `action` other than abort and flag, or a `threshold` that is NaN.
        """
        if self.fn is None:
            raise ProbeDefinitionError(f"`{type(self).__name__}` has no function; make one with @probe")
        where = f"probe {self.probe_name!r}"
        self._threshold = self.default_threshold if threshold is ... else read_threshold(threshold, where)
        self._action = self.default_action if action is ... else read_action(action, where)
        _check_arguments(self.fn, fn_kwargs, where)
        # State at class level, of which each instance has a copy: the function's own defaults outlive a request.
        self._fn_kwargs = {**dict(self._fn_defaults), **fn_kwargs}
        self._count = 0
        self._nan_count = 0
        self._is_flagged = False
        self._max_score: float | None = None
        self._signal_history: list[ProbeSignal] = []

    def on_start(self, request_ctx: RequestContext) -> None:
        """Forgets everything, so that an instance can watch again."""
        self._count = 0
        self._nan_count = 0
        self._is_flagged = False
        self._max_score = None
        self._signal_history = []

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        """Calls the function and turns what it returns into a signal.

        None says nothing. A bool says the action or nothing. A number is a score, held against the threshold; NaN
        counts as reaching it, because a score that cannot be compared must not pass as harmless. A `ProbeSignal` is
        passed on.

        Raises:
            ProbingTypeError: the function returned anything else.
        """
        fn = type(self).fn
        assert fn is not None, "the constructor refuses a class without a function"
        answer = fn(record, **self._fn_kwargs)
        if answer is None:
            return None
        signal = answer if isinstance(answer, ProbeSignal) else self._judge(answer)
        self._count += 1
        self._is_flagged = self._is_flagged or signal.action is not ProbeAction.CONTINUE
        self._signal_history.append(signal)
        return signal

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        """Whether anything was flagged, the highest score, and how many records were scored."""
        return ProbeResult(
            self.request_id,
            self.extraction_point_name,
            {"flagged": self._is_flagged, "max_score": self._max_score, "n": self._count},
            signal_history=list(self._signal_history),
            metadata={"nan_count": self._nan_count} if self._nan_count else {},
        )

    def _judge(self, answer: Any) -> ProbeSignal:
        if isinstance(answer, bool) or _is_numpy_bool(answer):
            if answer:
                return ProbeSignal(self._action, {"score": None, "probe": self.probe_name}, confidence=1.0)
            return ProbeSignal(ProbeAction.CONTINUE, {"score": None, "probe": self.probe_name})
        if not isinstance(answer, Real):
            raise ProbingTypeError(
                f"probe {self.probe_name!r} must return a number, bool, ProbeSignal or None, got"
                f" {type(answer).__name__}; convert a tensor with float(...) or .item()"
            )
        score = float(answer)
        metadata: dict[str, Any] = {"score": score, "probe": self.probe_name}
        if math.isnan(score):
            metadata["nan"] = True
            self._nan_count += 1
        elif self._max_score is None or score > self._max_score:
            self._max_score = score
        # Not `score >= threshold`: NaN compares false with everything and would pass.
        is_flagged = self._threshold is not None and not score < self._threshold
        return ProbeSignal(self._action if is_flagged else ProbeAction.CONTINUE, metadata, confidence=score)


def probe(
    name: str | ProbeFunction | None = None,
    /,
    *,
    threshold: float | None = None,
    action: ProbeAction | str = "abort",
    registry: ProbeRegistry | None = None,
    register: bool = True,
) -> Any:
    """Makes a probe of a function `fn(record, *, option=…) -> score`, and registers it under `name`.

    Used bare, or with arguments; the name of the function is the default name. What the function may return is said
    at `FunctionProbe.on_activation`. The decorated name is a class, and the function its attribute `fn`.

    >>> @probe("largest", threshold=0.5, register=False)
    ... def largest(record):
    ...     return max(record.tensor)
    >>> largest.spawn("r", "p").on_activation(ActivationRecord("r", "p", 0, 0, "mlp_out", [0.1, 0.7], True)).action
    <ProbeAction.ABORT: 'abort'>

    Raises:
        ProbeDefinitionError: the function cannot be called with one record.
        ProbingTypeError: `threshold` is no number.
        ProbingValueError: `action` is neither abort nor flag, `threshold` is NaN, or the name is empty or taken.
    """
    if callable(name) and not isinstance(name, str):
        return probe(registry=registry, threshold=threshold, action=action, register=register)(name)
    if name is not None and (not isinstance(name, str) or not name):
        raise ProbingValueError(
            f"@probe takes a non-empty name or none, got {name!r}; as in @probe('my_probe'), or @probe for the"
            " function's own name"
        )
    default_threshold = read_threshold(threshold, "@probe")
    default_action = read_action(action, "@probe")

    def decorate(fn: ProbeFunction) -> type[FunctionProbe]:
        _check_function(fn)
        probe_name = name or fn.__name__
        attributes = {
            "__module__": fn.__module__,
            "__qualname__": fn.__qualname__,
            "__doc__": fn.__doc__,
            "fn": staticmethod(fn),
            "probe_name": probe_name,
            "default_threshold": default_threshold,
            "default_action": default_action,
            "_fn_defaults": tuple(stateful_defaults(fn).items()),
        }
        probe_cls = type(fn.__name__, (FunctionProbe,), attributes)
        if register:
            (default_registry if registry is None else registry).register(probe_name, probe_cls)
        return probe_cls

    return decorate


def read_threshold(threshold: object, where: str) -> float | None:
    """A number that scores can be held against, or None."""
    if threshold is None:
        return None
    if isinstance(threshold, bool) or not isinstance(threshold, Real):
        raise ProbingTypeError(f"{where}: `threshold` must be a number or None, got {threshold!r}")
    if math.isnan(threshold):
        raise ProbingValueError(f"{where}: `threshold` must be comparable, got nan; None only records scores")
    return float(threshold)


def read_action(action: object, where: str) -> ProbeAction:
    """What a flag asks for: abort or flag."""
    if isinstance(action, str) and action in _ACTION_WORDS:
        return ProbeAction(action)
    raise ProbingValueError(f"{where}: `action` must be {one_of(_ACTION_WORDS)}, got {action!r}")


def _check_function(fn: Any) -> None:
    if isinstance(fn, type) or not callable(fn) or not hasattr(fn, "__qualname__"):
        raise ProbeDefinitionError(
            f"@probe decorates a function `def fn(record) -> score`, got {fn!r}; for a class, subclass Probe and use"
            " @register_probe('name')"
        )
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ProbeDefinitionError(f"@probe needs a plain function that returns its score, got {fn.__qualname__}")
    parameters = inspect.signature(fn).parameters.values()
    positional = [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    variadic = [item.name for item in parameters if item.kind is item.VAR_POSITIONAL]
    if len(positional) != 1 or variadic:
        found = ", ".join([*positional, *(f"*{item}" for item in variadic)]) or "none"
        raise ProbeDefinitionError(
            f"@probe: `{fn.__qualname__}` must take exactly one positional parameter, the record, got {found}; make"
            f" options keyword-only: def {fn.__name__}(record, *, option=…)"
        )
    taken = [item.name for item in parameters if item.name in _OWN_OPTIONS]
    if taken:
        raise ProbeDefinitionError(
            f"@probe: `{fn.__qualname__}` has a parameter {taken[0]!r}, which @probe takes itself; give it another name"
        )


def _check_arguments(fn: ProbeFunction, fn_kwargs: dict[str, Any], where: str) -> None:
    parameters = inspect.signature(fn).parameters.values()
    options = {item.name: item for item in parameters if item.kind is item.KEYWORD_ONLY}
    missing = [name for name, item in options.items() if item.default is item.empty and name not in fn_kwargs]
    if missing:
        raise ProbingTypeError(
            f"{where}: the function needs {', '.join(map(repr, missing))}; set it in `probe_args` of the point or in"
            " the factory's arguments"
        )
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return
    unknown = sorted(set(fn_kwargs) - set(options))
    if unknown:
        raise ProbingTypeError(
            f"{where}: the function takes no {', '.join(map(repr, unknown))}; it takes"
            f" {', '.join(map(repr, sorted([*options, *_OWN_OPTIONS])))}"
        )


def _is_numpy_bool(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.bool_)
