"""Hooks: the protocol, how they are checked, and the list of installed ones."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar, get_args

from undercurrent.errors import did_you_mean, one_of
from undercurrent.predict.chain import HookCall, HookChain, Swallowed
from undercurrent.predict.context import PredictContext
from undercurrent.predict.errors import PredictTypeError, PredictValueError
from undercurrent.predict.order import EVENTS

__all__ = ["BaseHook", "FailurePolicy", "Hook", "HookRegistry", "Hooks", "Listeners", "with_policy"]

FailurePolicy = Literal["closed", "open", "withhold"]
"""What a hook that raises, or is over its deadline, does to its call. "closed": the call fails. "open": it goes on, and
the failure is logged and counted. "withhold": as "closed", and where it fails in `on_predict_start`, `ctx.states` are
replaced before any other hook sees them."""

RegistryT = TypeVar("RegistryT", bound="HookRegistry")


class Hook(Protocol):
    """Any object with at least one of these methods; it need not have all, nor inherit anything.

    Two attributes are read too: `failure_policy` (a `FailurePolicy`; without it `hooks_raise` decides) and `deadline_s`
    (seconds; without it `hooks_timeout` decides). A method may be `async def`: it is awaited before the next hook runs.
    Methods run on the thread of the call, those with a deadline on a thread of the pool.
    """

    def on_predict_start(self, ctx: PredictContext) -> object:
        """Runs before anything is tokenized; may rewrite the context or `ctx.skip(...)`."""
        ...

    def on_predict_end(self, ctx: PredictContext) -> object:
        """Runs once for each `on_predict_start`, whatever happened; `ctx.error` is what happened."""
        ...

    def on_route(self, ctx: PredictContext) -> object:
        """Runs before a checkpoint is loaded; may replace `ctx.decision`."""
        ...

    def on_load(self, ctx: PredictContext) -> object:
        """Runs after a checkpoint was built, outside the Router's lock."""
        ...

    def on_evict(self, ctx: PredictContext) -> object:
        """Runs after a checkpoint was let go, outside the Router's lock."""
        ...

    def on_error(self, ctx: PredictContext) -> object:
        """Runs when a call fails, before its `on_predict_end`."""
        ...


class BaseHook:
    """A hook that does nothing: inherit and override what is needed. What is not overridden costs nothing."""

    def on_predict_start(self, ctx: PredictContext) -> object:
        """Does nothing."""

    def on_predict_end(self, ctx: PredictContext) -> object:
        """Does nothing."""

    def on_route(self, ctx: PredictContext) -> object:
        """Does nothing."""

    def on_load(self, ctx: PredictContext) -> object:
        """Does nothing."""

    def on_evict(self, ctx: PredictContext) -> object:
        """Does nothing."""

    def on_error(self, ctx: PredictContext) -> object:
        """Does nothing."""


Hooks = object | Sequence[object] | None
"""One hook, or several in the order they run in."""
Listener = Callable[[PredictContext], object]
Listeners = Listener | Sequence[Listener] | None
"""One function for a single event, or several."""


class with_policy:  # noqa: N801 -- read as a verb where it is used: `hooks=[with_policy(audit, failure="open")]`
    """A hook under another policy than its class has; install, and remove, the object this returns."""

    def __init__(self, hook: object, *, failure: FailurePolicy | None = None, deadline_s: float | None = None) -> None:
        self.hook = hook
        self.failure_policy = failure if failure is not None else getattr(hook, "failure_policy", None)
        self.deadline_s = deadline_s if deadline_s is not None else getattr(hook, "deadline_s", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["hook"], name)


class HookRegistry:
    """What Agent and Router share: installed hooks, and how a call joins them with its own.

    A call works on the hooks that were installed when it began. `hooks_concurrent=False` lets one hook method run at a
    time, for hooks that are not thread-safe; a hook may call back.
    """

    def __init__(
        self,
        hooks: Hooks,
        on_predict_start: Listeners,
        on_predict_end: Listeners,
        *,
        hooks_raise: bool,
        hooks_concurrent: bool,
        hooks_timeout: float | None,
    ) -> None:
        self._mutex = threading.Lock()
        self._swallowed = Swallowed()
        self._hooks_lock = None if hooks_concurrent else threading.Lock()
        self._hooks_raise = bool(hooks_raise)
        self._hooks_timeout = checked_deadline(hooks_timeout, "hooks_timeout")
        self._install(checked_hooks(hooks, on_predict_start, on_predict_end))

    @property
    def hooks(self) -> tuple[object, ...]:
        """The installed hooks, in the order they run in."""
        return self._installed

    @property
    def hooks_raise(self) -> bool:
        """Whether a hook without a policy of its own fails its call, where the call does not say."""
        return self._hooks_raise

    @property
    def hooks_concurrent(self) -> bool:
        """Whether hook methods may run at the same time."""
        return self._hooks_lock is None

    @property
    def hooks_timeout(self) -> float | None:
        """Deadline in seconds of hooks that have none of their own; None: none."""
        return self._hooks_timeout

    @property
    def hook_failure_count(self) -> int:
        """Hook calls that failed and were let pass, by the policy "open" or by `hooks_raise=False`."""
        return self._swallowed.count

    def add_hook(self: RegistryT, hook: Hooks) -> RegistryT:
        """Installs one hook, or several, behind those that are there."""
        added = checked_hooks(hook)
        with self._mutex:
            self._install((*self._installed, *added))
        return self

    def remove_hook(self, hook: object) -> bool:
        """Removes a hook, every copy of it; says whether it was there."""
        with self._mutex:
            left = tuple(installed for installed in self._installed if installed is not hook)
            was_there = len(left) < len(self._installed)
            self._install(left)
        return was_there

    @contextmanager
    def hooks_installed(self, *hooks: Hooks) -> Iterator[None]:
        """Installs hooks for the length of a `with` block; removes what it installed also where the block raises."""
        added = tuple(one for hook in hooks for one in checked_hooks(hook))
        with self._mutex:
            self._install((*self._installed, *added))
        try:
            yield
        finally:
            with self._mutex:
                left = list(self._installed)
                for hook in reversed(added):
                    last = next((at for at in reversed(range(len(left))) if left[at] is hook), None)
                    if last is not None:
                        del left[last]
                self._install(tuple(left))

    def _install(self, hooks: tuple[object, ...]) -> None:
        # Calls in flight hold the chain they began with.
        self._installed = hooks
        self._chain_installed = HookChain(
            compiled(hooks), self._hooks_raise, self._hooks_timeout, self._hooks_lock, self._swallowed
        )

    def _chain(
        self,
        hooks: Hooks = None,
        on_predict_start: Listeners = None,
        on_predict_end: Listeners = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
    ) -> HookChain:
        """The hooks of one call: installed ones, then its own."""
        chain = self._chain_installed
        if (
            hooks is None
            and on_predict_start is None
            and on_predict_end is None
            and hooks_raise is None
            and hooks_timeout is None
        ):
            return chain
        own = checked_hooks(hooks, on_predict_start, on_predict_end)
        return HookChain(
            {event: (*chain.calls[event], *calls) for event, calls in compiled(own).items()} if own else chain.calls,
            chain.is_raising if hooks_raise is None else bool(hooks_raise),
            chain.deadline_s if hooks_timeout is None else checked_deadline(hooks_timeout, "hooks_timeout"),
            chain.lock,
            chain.swallowed,
        )


class _Single:
    """A plain function as a hook of one event."""

    def __init__(self, event: str, listener: object) -> None:
        if not callable(listener):
            raise PredictTypeError(f"`{event}` takes a function of the context, got {type(listener).__name__}")
        self.hook = listener
        setattr(self, event, listener)


def checked_hooks(
    hooks: Hooks = None, on_predict_start: Listeners = None, on_predict_end: Listeners = None
) -> tuple[object, ...]:
    """Returns all of them as hooks, in the order they run in.

    Raises:
        PredictTypeError, PredictValueError: one cannot be a hook; the message says why.
    """
    checked = [_checked(hook) for hook in _sequence(hooks)]
    checked += [_Single("on_predict_start", listener) for listener in _sequence(on_predict_start)]
    checked += [_Single("on_predict_end", listener) for listener in _sequence(on_predict_end)]
    return tuple(checked)


def checked_deadline(value: object, name: str) -> float | None:
    """Returns a deadline in seconds.

    Raises:
        PredictValueError: it is no positive finite number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise PredictValueError(f"`{name}` must be a positive finite number of seconds, or None, got {value!r}")
    return float(value)


def compiled(hooks: tuple[object, ...]) -> dict[str, tuple[HookCall, ...]]:
    """Returns, per event, the methods to call."""
    return {event: tuple(_calls(hooks, event)) for event in EVENTS}


def _calls(hooks: tuple[object, ...], event: str) -> Iterator[HookCall]:
    for hook in hooks:
        method = getattr(hook, event, None)
        if method is None or getattr(method, "__func__", None) is getattr(BaseHook, event):
            continue
        yield HookCall(
            method,
            _name(hook, event),
            getattr(hook, "failure_policy", None),
            checked_deadline(getattr(hook, "deadline_s", None), "deadline_s"),
        )


def _checked(hook: object) -> object:
    if isinstance(hook, type):
        raise PredictTypeError(f"a hook must be an object, got the class {hook.__name__}; write {hook.__name__}()")
    kind = type(hook.hook if isinstance(hook, with_policy) else hook).__name__
    events = [event for event in EVENTS if getattr(hook, event, None) is not None]
    if not events:
        near = next((hint for name in dir(hook) if name.startswith("on_") and (hint := did_you_mean(name, EVENTS))), "")
        raise PredictTypeError(
            f"a hook must have a method named {one_of(EVENTS)}; {kind} has none{near}. Pass a plain function as"
            " on_predict_start= or on_predict_end="
        )
    for event in events:
        if not callable(getattr(hook, event)):
            raise PredictTypeError(f"{kind}.{event} must be a method, got {type(getattr(hook, event)).__name__}")
    policy = getattr(hook, "failure_policy", None)
    if policy is not None and policy not in get_args(FailurePolicy):
        raise PredictValueError(f"{kind}.failure_policy must be {one_of(get_args(FailurePolicy))}, got {policy!r}")
    checked_deadline(getattr(hook, "deadline_s", None), f"{kind}.deadline_s")
    return hook


def _name(hook: object, event: str) -> str:
    if isinstance(hook, _Single):
        return f"{event}={getattr(hook.hook, '__qualname__', type(hook.hook).__name__)}"
    return f"{type(hook.hook if isinstance(hook, with_policy) else hook).__name__}.{event}"


def _sequence(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)
