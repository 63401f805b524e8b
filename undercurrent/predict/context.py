"""The context of one call: what hooks see and may change."""

from __future__ import annotations

import copy
import itertools
import os
import time
from contextvars import ContextVar
from typing import Any

from undercurrent.predict.errors import HookTimeoutError, PredictTypeError, PredictValueError

__all__ = ["WITHHELD", "PredictContext"]

WITHHELD = "[withheld: the hook that guards this text failed]"
"""What stands in `ctx.states` after a hook with the failure policy "withhold" failed."""

CORRELATION: ContextVar[str | None] = ContextVar("undercurrent_predict_correlation", default=None)
"""The correlation id of the outermost call of this thread or task; a nested call takes it over."""


_id_prefix = os.urandom(8).hex()
_id_count = itertools.count()


def new_id() -> str:
    """Returns 32 hex digits, unique among processes and calls: random ones of this process, and a count.

    A tenth of a UUID's cost.
    """
    return f"{_id_prefix}{next(_id_count):016x}"


def _renew_prefix() -> None:
    global _id_prefix
    _id_prefix = os.urandom(8).hex()


os.register_at_fork(after_in_child=_renew_prefix)


class PredictContext:
    """Mutable state of one call, handed to every hook of it; two contexts are never equal.

    A start hook may replace `states`, `questions`, `max_len` and `head_max_len`, or answer the call with `skip()`; an
    end hook may replace `results`; a route hook may replace `decision`. A context belongs to the thread of its call.
    """

    states: list[Any]
    """The states of the call: one for `predict` and for each request of a Router's batch."""
    questions: dict[str, Any]
    """Assign a new dict to change them: the one that is here may be shared with other requests, and is the caller's."""
    run_id: str
    """32 hex digits; one per context, so start, error and end of one call share it."""
    correlation_id: str
    """Shared by all contexts of one outermost call: route, load, evict, predict and the nested call of the Agent."""
    results: list[Any] | None
    """One per state, once there are any."""
    decision: dict[str, Any] | None
    """Router: which checkpoint, and why."""
    model: str | None
    """The checkpoint's resolved name at a Router, its `model_id` at an Agent."""
    agent: Any
    router: Any
    max_len: int | None
    """Token budget of this call; None: the checkpoint's own."""
    head_max_len: int | None
    usage: dict[str, int] | None
    """`input_tokens` and `output_tokens` over all results, when they are known."""
    started_at: float
    """Seconds of `time.perf_counter()`."""
    elapsed_ms: float | None
    """Time from `started_at` to the first end hook."""
    error: BaseException | None

    def __init__(
        self,
        states: list[Any],
        questions: dict[str, Any],
        *,
        correlation_id: str | None = None,
        decision: dict[str, Any] | None = None,
        model: str | None = None,
        agent: Any = None,
        router: Any = None,
        max_len: int | None = None,
        head_max_len: int | None = None,
    ) -> None:
        self.states = states
        self.questions = questions
        self.run_id = run_id = new_id()
        self.correlation_id = correlation_id or run_id
        self.results = None
        self.decision = decision
        self.model = model
        self.agent = agent
        self.router = router
        self.max_len = max_len
        self.head_max_len = head_max_len
        self.usage = None
        self.elapsed_ms = None
        self.error = None
        self._skipped: list[Any] | None = None
        self._is_document = False
        self.started_at = time.perf_counter()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id} model={self.model!r}>"

    @property
    def is_skipped(self) -> bool:
        """Whether a start hook answered the call, so that no model ran."""
        return self._skipped is not None

    def skip(self, results: list[Any]) -> None:
        """Answers the call from a start hook: nothing is tokenized or inferred, end hooks still run.

        `results` holds one result per state of `states`, in their order; in `predict_long`, where the states are
        windows of one document, one result for the document is right too. The results are copied, so that whoever
        changes them later changes no cache.

        Raises:
            PredictTypeError: `results` is no list or tuple.
            PredictValueError: their number is wrong.
        """
        if not isinstance(results, list | tuple):
            raise PredictTypeError(f"ctx.skip() takes a list with one result per state, got {type(results).__name__}")
        self._check_count(results)
        self.results = self._skipped = copied(list(results))

    def settle_skip(self) -> list[Any]:
        """Returns the results that start hooks left, checked and copied also where one assigned `results` directly."""
        if self.results is not self._skipped or self.results is None:
            self.skip(self.results)  # type: ignore[arg-type]
        assert self.results is not None
        self._check_count(self.results)
        return self.results

    def _check_count(self, results: list[Any] | tuple[Any, ...]) -> None:
        states: object = self.states
        if not isinstance(states, list | tuple):
            return  # What the caller passed is no list, which is said where states are checked.
        count = len(states)
        if len(results) != count and not (self._is_document and len(results) == 1):
            raise PredictValueError(
                f"ctx.skip() takes one result per state: {count} expected, {len(results)} came (model {self.model!r})"
            )


class Draft(PredictContext):
    """The context that a hook with a deadline works on: its own copy, which becomes the context's if it ends in time.

    What a hook reads is copied when it reads it, so a hook that reads nothing costs no copy.
    """

    _COPIED = ("states", "questions", "results", "decision", "usage")

    def __init__(self, origin: PredictContext) -> None:
        own = self.__dict__
        own.update(origin.__dict__)
        del own["states"], own["questions"], own["results"], own["decision"], own["usage"]
        own["_origin"] = origin

    def __getattr__(self, name: str) -> Any:
        if name not in self._COPIED:
            raise AttributeError(f"{PredictContext.__name__!r} object has no attribute {name!r}")
        origin = self.__dict__["_origin"]
        if origin is None:
            raise HookTimeoutError(f"`ctx.{name}` was read by a hook after its deadline; its call goes on without it")
        value = origin.__dict__[name]
        if name == "results" and value is not None and value is origin._skipped:
            self._skipped = value = copied(value)
        else:
            value = copied(value)
        self.__dict__[name] = value
        return value

    def commit(self) -> None:
        """Makes what the hook did the context's; called on the call's thread, once the hook has returned."""
        own = self.__dict__
        origin = own.pop("_origin")
        origin.__dict__.update(own)
        own["_origin"] = None

    def revoke(self) -> None:
        """Cuts the hook off from the context."""
        self.__dict__["_origin"] = None


def copied(value: Any) -> Any:
    """Returns a copy of plain data that shares nothing mutable with it; other objects are deep-copied.

    Raises:
        PredictTypeError: something in it cannot be copied.
    """
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is bool or value is None:
        return value
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if kind is list:
        return [copied(item) for item in value]
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise PredictTypeError(
            f"states, questions and results that are cached, or seen by a hook with a deadline, must be copyable;"
            f" {kind.__name__} is not"
        ) from error
