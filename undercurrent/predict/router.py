"""The Router: requests to checkpoints, which it loads, keeps and lets go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from undercurrent.predict import batch
from undercurrent.predict.answers import MinConfidence, checked_min_confidence
from undercurrent.predict.chain import HookChain, fail
from undercurrent.predict.context import CORRELATION, PredictContext, new_id
from undercurrent.predict.errors import PredictTypeError
from undercurrent.predict.handover import add_routing, lang_of, only, state_of, system_one
from undercurrent.predict.hooks import Hooks, Listeners
from undercurrent.predict.life import correlated, live
from undercurrent.predict.order import ERROR, ROUTE
from undercurrent.predict.residency import Resident
from undercurrent.predict.routing import LanguageGuess, RouteDecision, decide, model_of
from undercurrent.predict.store import CheckpointStore

__all__ = ["Router"]


class Router(CheckpointStore):
    """Sends each request to the checkpoint that can read it, and answers it there.

        router = Router()
        router.predict("Wo ist mein Paket?", {"late": {"type": "noul", "instructions": "a parcel is late"}})

    `models` adds or replaces checkpoints: name to source (a name, a path, a checkpoint, or a function that makes one).
    `max_loaded` and `max_loaded_bytes` bound what it keeps in memory, `default` reads what no language is recognised
    in, `agent_options` go to every Agent it builds. Calls may come from many threads at once.
    """

    def predict(
        self,
        state: Any,
        questions: dict[str, Any],
        model: str | None = None,
        lang: str | None = None,
        lang_guess: LanguageGuess = None,
        hooks: Hooks = None,
        on_predict_start: Listeners = None,
        on_predict_end: Listeners = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
        max_len: int | None = None,
        head_max_len: int | None = None,
        min_confidence: MinConfidence | None = None,
    ) -> dict[str, Any]:
        """Routes one request, answers it, and returns the result, with the decision as `result["routing"]`.

        The order of events is `SEQUENCES["Router.predict"]`. Hooks of the Router see the whole call; an Agent's own
        hooks run inside it.

        Raises:
            PredictTypeError, PredictValueError: the request cannot be used.
            CheckpointNotFoundError: `model`, or a hook's decision, names no checkpoint.
            Exception: whatever a hook, a factory or a checkpoint raised.
        """
        chain = self._chain(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_timeout)
        threshold = None if min_confidence is None else checked_min_confidence(min_confidence)
        return self._predict(
            state, questions, model, lang, lang_guess, chain, max_len, head_max_len, threshold, system_one
        )

    system_one = predict

    def predict_long(
        self,
        state: Any,
        questions: dict[str, Any],
        model: str | None = None,
        lang: str | None = None,
        lang_guess: LanguageGuess = None,
        hooks: Hooks = None,
        on_predict_start: Listeners = None,
        on_predict_end: Listeners = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Answers questions about a long state, as `Agent.predict_long` does, whose arguments it takes.

        Hooks of the Router see the whole state as `ctx.states[0]`, those of the Agent its windows.
        """
        chain = self._chain(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_timeout)

        def scan(agent: Any, ctx: PredictContext, lang: str | None) -> Any:
            given = arguments if lang is None else {**arguments, "lang": lang}
            return agent.predict_long(state_of(ctx), ctx.questions, **given)

        return self._predict(state, questions, model, lang, lang_guess, chain, None, None, None, scan)

    def predict_batch(
        self,
        requests: Sequence[Mapping[str, Any]],
        batch_size: int | None = None,
        hooks_timeout: float | None = None,
        min_confidence: MinConfidence | None = None,
        sort_by_length: bool = False,
        *,
        hooks: Hooks = None,
        on_predict_start: Listeners = None,
        on_predict_end: Listeners = None,
        hooks_raise: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Answers many requests; returns the results in their order, each what `predict` would return.

        A request is a dict with `state` and `questions`, and `model`, `lang`, `lang_guess`, `max_len` and
        `head_max_len` where they are wanted. Requests of one checkpoint with equal questions and budgets share forward
        passes. The order of events is `SEQUENCES["Router.predict_batch"]`.

        Raises:
            PredictTypeError, PredictValueError: names the request; nothing was routed.
            Exception: what failed, the very object; its `batch` (`BatchFailure`) holds the results of checkpoints that
                were done, and the requests that failed and that never started.
        """
        chain = self._chain(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_timeout)
        threshold = None if min_confidence is None else checked_min_confidence(min_confidence)
        run = batch.BatchRun(
            self, batch.checked_requests(requests), chain, threshold, batch_size, sort_by_length=sort_by_length
        )
        with correlated(CORRELATION.get() or new_id()):
            return run.results()

    def predict_stream(
        self, requests: Iterable[Mapping[str, Any]], window: int = 1024, **arguments: Any
    ) -> Iterator[dict[str, Any]]:
        """Answers requests from an iterator as they come, `window` of them as one `predict_batch`; yields in their
        order.

        Memory holds one window. A failure ends the stream; the indices of its `exc.batch` count the whole stream.
        """
        return batch.stream(self, requests, window, arguments)

    def route(
        self,
        state: Any,
        questions: dict[str, Any] | None = None,
        model: str | None = None,
        lang: str | None = None,
        lang_guess: LanguageGuess = None,
        hooks: Hooks = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
        *,
        explain: bool = False,
    ) -> RouteDecision | dict[str, Any]:
        """Says which checkpoint a request would go to, after `on_route` hooks; loads nothing.

        `explain` looks for the language of every script, which routing itself does not need.
        """
        chain = self._chain(hooks, None, None, hooks_raise, hooks_timeout)
        given = {"model": model, "lang": lang, "lang_guess": lang_guess}
        return self._routed(state, questions or {}, given, chain, explain=explain)

    def route_batch(
        self,
        requests: Sequence[Mapping[str, Any]],
        hooks_timeout: float | None = None,
        *,
        hooks: Hooks = None,
        hooks_raise: bool | None = None,
        explain: bool = False,
    ) -> list[RouteDecision | dict[str, Any]]:
        """Says where each request of a batch would go, in their order; loads nothing."""
        chain = self._chain(hooks, None, None, hooks_raise, hooks_timeout)
        with correlated(CORRELATION.get() or new_id()):
            return [
                self._routed(request["state"], request["questions"], request, chain, explain=explain)
                for request in batch.checked_requests(requests)
            ]

    def __enter__(self) -> Router:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.unload()

    def __repr__(self) -> str:
        return f"<predict.Router loaded={self.loaded}>"

    def _predict(
        self,
        state: Any,
        questions: dict[str, Any],
        model: str | None,
        lang: str | None,
        lang_guess: LanguageGuess,
        chain: HookChain,
        max_len: int | None,
        head_max_len: int | None,
        threshold: MinConfidence | None,
        infer: Any,
    ) -> dict[str, Any]:
        if state is None:
            raise PredictTypeError("`state` must be a text, a dict or a list of turns, got None")
        if not isinstance(questions, dict):
            raise PredictTypeError(
                f"`questions` must be a dict of question id to definition, got {type(questions).__name__}"
            )
        correlation_id = CORRELATION.get() or new_id()
        token = CORRELATION.set(correlation_id)
        try:
            given = {"model": model, "lang": lang, "lang_guess": lang_guess}
            decision, resident = self._routed_and_leased(state, questions, given, chain)
            try:
                ctx = PredictContext(
                    [state],
                    questions,
                    correlation_id=correlation_id,
                    decision=decision,
                    model=resident.name,
                    agent=resident.agent,
                    router=self,
                    max_len=max_len,
                    head_max_len=head_max_len,
                )

                def answer(ctx: PredictContext) -> None:
                    if ctx.results is None:
                        result = infer(resident.agent, ctx, lang_of(resident.agent, lang, decision))
                        result["routing"] = dict(decision)
                        ctx.results = [result]
                    else:
                        add_routing(ctx.settle_skip(), decision)

                result = only(live(chain, ctx, answer, threshold))
            except BaseException as error:
                self._release(resident, chain, error)
                raise
            self._release(resident, chain)
        finally:
            CORRELATION.reset(token)
        return result

    def _routed_and_leased(
        self, state: Any, questions: dict[str, Any], given: Mapping[str, Any], chain: HookChain
    ) -> tuple[dict[str, Any], Resident]:
        decision: dict[str, Any] | None = None
        try:
            decision = self._routed(state, questions, given, chain)
            return decision, self._lease(self.resolve(model_of(decision)), chain)
        except BaseException as error:
            self._tell_not_started(state, questions, decision, chain, error)
            raise

    def _tell_not_started(
        self, state: Any, questions: dict[str, Any], decision: Any, chain: HookChain, error: BaseException
    ) -> None:
        """Tells `on_error` of a request that failed before its start hooks; it has no end, as it had no start."""
        if chain.calls[ERROR]:
            ctx = PredictContext(
                [state],
                questions,
                correlation_id=CORRELATION.get(),
                decision=decision,
                model=decision.get("model") if isinstance(decision, Mapping) else None,
                router=self,
            )
            ctx.error = error
            fail(error, chain, ERROR, ctx)

    def _routed(
        self,
        state: Any,
        questions: dict[str, Any],
        given: Mapping[str, Any],
        chain: HookChain,
        *,
        explain: bool = False,
    ) -> RouteDecision | dict[str, Any]:
        """Decides, and lets route hooks look at it."""
        asked = given.get("model")
        if asked is not None:
            model, reason, detection = self.resolve(asked), f"the call asks for {asked!r}", None
        else:
            model, reason, detection = decide(
                state,
                lang=given.get("lang"),
                guesses=(given.get("lang_guess"), self.lang_guess),
                default=self.default,
                wants_language=explain,
            )
        decision = RouteDecision(model=model, repo=self.repo_of(model), reason=reason, detection=detection)
        if not chain.calls[ROUTE]:
            return decision
        ctx = PredictContext(
            [state], questions, correlation_id=CORRELATION.get(), decision=decision, model=model, router=self
        )
        failure = chain.run(ROUTE, ctx)
        if failure is not None:
            raise failure
        model_of(ctx.decision)
        assert ctx.decision is not None
        return ctx.decision
