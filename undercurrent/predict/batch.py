"""Many requests at once: routed first, then answered checkpoint by checkpoint, in shared forward passes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from undercurrent.predict.answers import MinConfidence
from undercurrent.predict.chain import HookChain, note_failure
from undercurrent.predict.context import CORRELATION, PredictContext
from undercurrent.predict.errors import (
    BatchFailure,
    PredictError,
    PredictRuntimeError,
    PredictTypeError,
    PredictValueError,
)
from undercurrent.predict.handover import add_routing, arguments_of, lang_of, state_of
from undercurrent.predict.life import end, end_failed, settle, start
from undercurrent.predict.order import END
from undercurrent.predict.questions import STATE_TYPES, schema_key
from undercurrent.predict.residency import Resident
from undercurrent.predict.routing import model_of

if TYPE_CHECKING:
    from undercurrent.predict.router import Router

__all__ = ["BatchRun", "checked_requests", "stream"]

_KEYS = frozenset({"state", "questions", "model", "lang", "lang_guess", "max_len", "head_max_len"})


def checked_requests(requests: object) -> Sequence[Mapping[str, Any]]:
    """Returns the requests of a batch.

    Raises:
        PredictTypeError, PredictValueError: one cannot be used; the message names it.
    """
    if not isinstance(requests, Sequence) or isinstance(requests, str | bytes):
        raise PredictTypeError(
            f"`requests` must be a list of dicts with `state` and `questions`, got {type(requests).__name__}; an"
            " iterator goes to predict_stream()"
        )
    for index, request in enumerate(requests):
        _check_request(index, request)
    return requests


def _check_request(index: int, request: object) -> None:
    if type(request) is not dict and not isinstance(request, Mapping):
        raise PredictTypeError(f"requests[{index}] must be a dict, got {type(request).__name__}")
    for key in ("state", "questions"):
        if key not in request:
            raise PredictValueError(f"requests[{index}] has no {key!r}")
    if not isinstance(request["state"], STATE_TYPES):
        raise PredictTypeError(
            f"requests[{index}]: `state` must be a text, a dict or a list of turns, got"
            f" {type(request['state']).__name__}"
        )
    if not isinstance(request["questions"], dict):
        raise PredictTypeError(
            f"requests[{index}]: `questions` must be a dict of question id to definition, got"
            f" {type(request['questions']).__name__}"
        )


class _Group:
    """Requests that share forward passes."""

    __slots__ = ("arguments", "contexts", "indices", "questions", "states")

    def __init__(self, questions: Any, arguments: dict[str, Any]) -> None:
        self.questions = questions
        self.arguments = arguments
        self.indices: list[int] = []
        self.contexts: list[PredictContext] = []
        self.states: list[Any] = []


class BatchRun:
    """One `predict_batch`; used once, on one thread."""

    def __init__(
        self,
        router: Router,
        requests: Sequence[Mapping[str, Any]],
        chain: HookChain,
        threshold: MinConfidence | None,
        batch_size: int | None,
        *,
        sort_by_length: bool,
    ) -> None:
        self.router = router
        self.requests = requests
        self.chain = chain
        self.threshold = threshold
        self.batch_size = batch_size
        self.sort_by_length = sort_by_length
        self.decisions: list[dict[str, Any]] = []
        self.answered: dict[int, dict[str, Any]] = {}
        self.failed: list[int] = []
        self.started: set[int] = set()

    def results(self) -> list[dict[str, Any]]:
        """Runs it, and returns one result per request."""
        try:
            by_checkpoint = self._route()
            for name, indices in by_checkpoint.items():
                self._run_checkpoint(name, indices)
        except BaseException as error:
            self._describe(error)
            raise
        return [self.answered[index] for index in range(len(self.requests))]

    def _route(self) -> dict[str, list[int]]:
        """Routes every request; returns the indices of each checkpoint, in order of first appearance."""
        by_checkpoint: dict[str, list[int]] = {}
        router, chain = self.router, self.chain
        for index, request in enumerate(self.requests):
            decision: Any = None
            try:
                decision = router._routed(request["state"], request["questions"], request, chain)
                name = router.resolve(model_of(decision))
            except BaseException as error:
                self.failed = [index]
                router._tell_not_started(request["state"], request["questions"], decision, chain, error)
                raise
            self.decisions.append(decision)
            by_checkpoint.setdefault(name, []).append(index)
        return by_checkpoint

    def _run_checkpoint(self, name: str, indices: list[int]) -> None:
        router, chain = self.router, self.chain
        try:
            resident = router._lease(name, chain)
        except BaseException as error:
            self.failed = indices
            for index in reversed(indices):
                request = self.requests[index]
                router._tell_not_started(request["state"], request["questions"], self.decisions[index], chain, error)
            raise
        try:
            self._answer_checkpoint(resident, indices)
        except BaseException as error:
            router._release(resident, chain, error)
            raise
        router._release(resident, chain)

    def _answer_checkpoint(self, resident: Resident, indices: list[int]) -> None:
        contexts: list[PredictContext] = []
        chain = self.chain
        try:
            for index in indices:
                ctx = self._context(index, resident)
                contexts.append(ctx)
                self.started.add(index)
                start(chain, ctx)
            self._infer(resident.agent, list(zip(indices, contexts, strict=True)))
            for ctx in contexts:
                settle(ctx, self.threshold)
        except BaseException as error:
            self.failed = indices[: len(contexts)]
            for ctx in reversed(contexts):
                end_failed(chain, ctx, error)
            raise
        self._end(indices, contexts)

    def _end(self, indices: list[int], contexts: list[PredictContext]) -> None:
        """Ends every request, the last started first; the first failure of an end hook is raised after all."""
        first: BaseException | None = None
        failed: list[int] = []
        for index, ctx in zip(reversed(indices), reversed(contexts), strict=True):
            failure = end(self.chain, ctx)
            if failure is None and (ctx.results is None or len(ctx.results) != 1):
                failure = PredictRuntimeError(
                    f"requests[{index}] has one state and one result; end hooks left another number"
                )
            if failure is not None:
                failed.append(index)
                if first is None:
                    first = failure
                elif first is not failure:
                    note_failure(first, END, failure)
            else:
                assert ctx.results is not None
                self.answered[index] = ctx.results[0]
        if first is not None:
            self.failed = sorted(failed)
            raise first

    def _context(self, index: int, resident: Resident) -> PredictContext:
        request = self.requests[index]
        return PredictContext(
            [request["state"]],
            request["questions"],
            correlation_id=CORRELATION.get(),
            decision=self.decisions[index],
            model=resident.name,
            agent=resident.agent,
            router=self.router,
            max_len=request.get("max_len"),
            head_max_len=request.get("head_max_len"),
        )

    def _infer(self, agent: Any, started: list[tuple[int, PredictContext]]) -> None:
        """Groups what no hook answered, checks every group, and then runs them."""
        groups = self._groups(agent, started)
        check = getattr(agent, "check_questions", None)
        for group in groups:
            if check is not None and group.questions:
                with _naming(group):
                    budget = {key: value for key, value in group.arguments.items() if key != "lang"}
                    check(group.questions, **budget)
        for group in groups:
            arguments = dict(group.arguments)
            if self.sort_by_length:
                arguments["sort_by_length"] = True
            with _naming(group):
                results = agent.predict_batch(
                    group.states,
                    group.questions,
                    batch_size=self.batch_size,
                    **arguments,
                )
                if len(results) != len(group.contexts):
                    raise PredictRuntimeError(
                        f"{type(agent).__name__}.predict_batch returned {len(results)} results for"
                        f" {len(group.contexts)} states"
                    )
            for index, ctx, result in zip(group.indices, group.contexts, results, strict=True):
                result["routing"] = dict(self.decisions[index])
                ctx.results = [result]

    def _groups(self, agent: Any, started: list[tuple[int, PredictContext]]) -> list[_Group]:
        groups: dict[Any, _Group] = {}
        uses_lang = getattr(agent, "uses_lang", False)
        questions: Any = None
        schema: Any = None
        for index, ctx in started:
            try:
                if ctx.results is not None:
                    add_routing(ctx.settle_skip(), self.decisions[index])
                    continue
                state = state_of(ctx)
            except PredictError as error:
                error.add_note(f"in {_shown([index])} of the batch")
                raise
            if ctx.questions is not questions or schema is None:
                questions, schema = ctx.questions, schema_key(ctx.questions)
            lang = lang_of(agent, self.requests[index].get("lang"), self.decisions[index]) if uses_lang else None
            key = (schema, ctx.max_len, ctx.head_max_len, lang)
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group(questions, arguments_of(ctx.max_len, ctx.head_max_len, lang))
            group.indices.append(index)
            group.contexts.append(ctx)
            group.states.append(state)
        return list(groups.values())

    def _describe(self, error: BaseException) -> None:
        """Says on the error what the batch came to: as a note for readers, as `batch` for programs."""
        not_started = [index for index in range(len(self.requests)) if index not in self.started]
        failure = BatchFailure(dict(sorted(self.answered.items())), list(self.failed), not_started)
        error.add_note(
            f"predict_batch of {len(self.requests)}: {len(failure.results)} answered, {len(failure.failed)} failed"
            f" {_shown(failure.failed)}, {len(not_started)} not started; see the exception's `batch`"
        )
        # An exception of an extension may take no attributes; the note has the figures.
        with contextlib.suppress(AttributeError, TypeError):
            error.batch = failure  # type: ignore[attr-defined]


class _naming:  # noqa: N801 -- read as a verb: `with _naming(group):`
    """Notes on an error which requests of the batch it is about."""

    __slots__ = ("indices",)

    def __init__(self, group: _Group) -> None:
        self.indices = group.indices

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            error.add_note(f"in {_shown(self.indices)} of the batch")


def _shown(indices: Sequence[int]) -> str:
    return (
        f"requests {list(indices)}" if len(indices) <= 8 else f"requests {[*indices[:8]]} and {len(indices) - 8} more"
    )


def stream(
    router: Router, requests: Iterable[Mapping[str, Any]], window: int, arguments: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yields results window by window; see `Router.predict_stream`."""
    if type(window) is not int or window < 1:
        raise PredictValueError(f"`window` counts requests: an int >= 1 is expected, got {window!r}")
    if isinstance(requests, str | bytes | Mapping):
        raise PredictTypeError(f"`requests` must be an iterable of dicts, got {type(requests).__name__}")
    return _windows(router, iter(requests), window, arguments)


def _windows(
    router: Router, requests: Iterator[Mapping[str, Any]], window: int, arguments: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    first = 0
    while part := list(itertools.islice(requests, window)):
        count = len(part)
        try:
            results = router.predict_batch(part, **arguments)
        except BaseException as error:
            _shift(error, first)
            raise
        del part
        first += count
        results.reverse()
        while results:
            yield results.pop()


def _shift(error: BaseException, first: int) -> None:
    """Makes the indices of a window's failure count the whole stream."""
    failure = getattr(error, "batch", None)
    if isinstance(failure, BatchFailure):
        error.batch = BatchFailure(  # type: ignore[attr-defined]
            {first + index: result for index, result in failure.results.items()},
            [first + index for index in failure.failed],
            [first + index for index in failure.not_started],
        )
