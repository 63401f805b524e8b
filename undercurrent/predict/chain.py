"""The hooks of one call, and how an event runs them: every one of them, whatever the others do."""

from __future__ import annotations

import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context

from undercurrent.predict.context import WITHHELD, Draft, PredictContext
from undercurrent.predict.errors import HookTimeoutError
from undercurrent.predict.pool import POOL

__all__ = ["HookCall", "HookChain", "Swallowed", "fail", "note_failure"]

_log = logging.getLogger(__name__)

# The hook locks that the present chain of calls holds. A contextvar and not the thread, because a hook with a deadline
# runs on another thread and may still call back.
_held: ContextVar[frozenset[threading.Lock]] = ContextVar("undercurrent_predict_held_locks", default=frozenset())


class HookCall:
    """One method of one hook, with the policy it runs under."""

    __slots__ = ("deadline_s", "method", "name", "policy")

    def __init__(
        self, method: Callable[[PredictContext], object], name: str, policy: str | None, deadline_s: float | None
    ) -> None:
        self.method = method
        self.name = name
        self.policy = policy
        self.deadline_s = deadline_s


class Swallowed:
    """Counts the failures that were let pass; one per Agent or Router."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1)
        self.count = 0

    def add(self) -> None:
        """Counts one, from any thread."""
        self.count = next(self._ticks)


class HookChain:
    """The hooks of one call, by event, in the order they run in. Immutable; shared by calls without hooks of their
    own."""

    __slots__ = ("calls", "deadline_s", "is_raising", "lock", "swallowed")

    def __init__(
        self,
        calls: Mapping[str, tuple[HookCall, ...]],
        is_raising: bool,
        deadline_s: float | None,
        lock: threading.Lock | None,
        swallowed: Swallowed,
    ) -> None:
        self.calls = calls
        self.is_raising = is_raising
        self.deadline_s = deadline_s
        self.lock = lock
        self.swallowed = swallowed

    def run(self, event: str, ctx: PredictContext) -> BaseException | None:
        """Runs every hook of an event, in order, and returns the first failure that ends the call, or None.

        A failure that is no `Exception` (Ctrl-C, SystemExit) goes before others. Failures after the first are notes on
        it.
        """
        first: BaseException | None = None
        for call in self.calls[event]:
            try:
                if self.lock is None and self.deadline_s is None and call.deadline_s is None:
                    outcome = call.method(ctx)
                    if outcome is not None:
                        _finish(outcome)
                else:
                    self._run_guarded(call, ctx)
            except BaseException as failure:
                first = self._judged(call, event, ctx, failure, first)
        return first

    def _run_guarded(self, call: HookCall, ctx: PredictContext) -> None:
        deadline_s = call.deadline_s if call.deadline_s is not None else self.deadline_s
        lock, held = self.lock, _held.get()
        if lock is None or lock in held:
            _call(call, ctx, deadline_s)
            return
        if not lock.acquire(timeout=-1 if deadline_s is None else deadline_s):
            raise HookTimeoutError(f"hook {call.name}: another hook ran for its whole deadline of {deadline_s:g} s")
        token = _held.set(held | {lock})
        try:
            _call(call, ctx, deadline_s)
        finally:
            _held.reset(token)
            lock.release()

    def _judged(
        self,
        call: HookCall,
        event: str,
        ctx: PredictContext,
        failure: BaseException,
        first: BaseException | None,
    ) -> BaseException | None:
        if call.policy == "withhold" and event == "on_predict_start":
            count = len(ctx.states) if isinstance(ctx.states, list | tuple) else 1
            ctx.states = [WITHHELD] * count
        is_closed = self.is_raising if call.policy is None else call.policy != "open"
        if not is_closed and isinstance(failure, Exception):
            # The words of a hook's error may quote the state it was given, so the log has its kind alone.
            self.swallowed.add()
            _log.warning("hook %s failed with %s and was let pass (%s)", call.name, type(failure).__name__, ctx.run_id)
            _log.debug("hook %s", call.name, exc_info=failure)
            return first
        if first is None or first is failure:
            return failure
        if isinstance(first, Exception) and not isinstance(failure, Exception):
            first, failure = failure, first
        note_failure(first, call.name, failure)
        return first


def note_failure(first: BaseException, name: str, later: BaseException) -> None:
    """Says on an error what failed after it, so that it hides nothing and nothing hides it."""
    first.add_note(f"then {name} failed with {type(later).__name__}: {later}")


def _call(call: HookCall, ctx: PredictContext, deadline_s: float | None) -> None:
    if deadline_s is None:
        _invoke(call.method, ctx)
        return
    draft = Draft(ctx)
    try:
        failure = POOL.run(_invoke, call.method, draft, deadline_s, call.name)
    except BaseException:
        draft.revoke()
        raise
    # What a hook did before it raised stays, as it does for a hook without a deadline.
    draft.commit()
    if failure is not None:
        raise failure


def _invoke(method: Callable[[PredictContext], object], ctx: PredictContext) -> None:
    outcome = method(ctx)
    if outcome is not None:
        _finish(outcome)


def _finish(outcome: object) -> None:
    """Awaits what an `async def` hook returned; anything else that is returned is nobody's."""
    if not inspect.isawaitable(outcome):
        return
    # Loaded by the first such hook: it is a third of what importing this package would cost.
    import asyncio

    async def wait() -> None:
        await outcome

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(wait())
        return
    # This thread runs a loop, which cannot run another: the hook gets a thread of its own.
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(wait())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=copy_context().run, args=(elsewhere,), name="undercurrent-hook-loop", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def fail(first: BaseException, chain: HookChain, event: str, ctx: PredictContext) -> None:
    """Runs an event of the failure path: what its hooks raise becomes a note on the error that led here."""
    later = chain.run(event, ctx)
    if later is not None and later is not first:
        note_failure(first, event, later)
