"""An Agent: one loaded checkpoint, and the order of events around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from undercurrent.predict import long
from undercurrent.predict.answers import MinConfidence, checked_min_confidence, empty_result, make_result
from undercurrent.predict.catalog import CHECKPOINT_METHODS, is_checkpoint, load_checkpoint
from undercurrent.predict.checkpoint import CallOptions, Checkpoint, EncodedState
from undercurrent.predict.context import CORRELATION, PredictContext
from undercurrent.predict.errors import PredictRuntimeError, PredictTypeError, PredictValueError
from undercurrent.predict.handover import only
from undercurrent.predict.hooks import HookRegistry, Hooks, Listeners
from undercurrent.predict.life import correlated, live
from undercurrent.predict.probes import ProbeAttachment, StateVerdicts, add_verdicts, asked_of_model
from undercurrent.predict.questions import STATE_TYPES, parse_questions

__all__ = ["Agent"]

_SORT_WINDOW_CHUNKS = 8
_Encoded = EncodedState[Any]


class Agent(HookRegistry):
    """Answers questions about states with one checkpoint, which it keeps loaded.

        agent = Agent("english")
        agent.predict("where is my parcel", {"late": {"type": "noul", "instructions": "a parcel is late"}})

    `checkpoint` is a name of the entry-point group `undercurrent.checkpoints`, the path of a local checkpoint, or a
    checkpoint; `options` go to the factory of a name. `probes` attaches probes to the model inside
    (`undercurrent.engines.checkpoint_probes`). Calls may come from many threads at once.
    """

    def __init__(
        self,
        checkpoint: str | Checkpoint[Any, Any, Any],
        *,
        hooks: Hooks = None,
        on_predict_start: Listeners = None,
        on_predict_end: Listeners = None,
        hooks_raise: bool = True,
        hooks_concurrent: bool = True,
        hooks_timeout: float | None = None,
        probes: ProbeAttachment | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            hooks,
            on_predict_start,
            on_predict_end,
            hooks_raise=hooks_raise,
            hooks_concurrent=hooks_concurrent,
            hooks_timeout=hooks_timeout,
        )
        if isinstance(checkpoint, str):
            checkpoint = load_checkpoint(checkpoint, **options)
        elif not is_checkpoint(checkpoint):
            raise PredictTypeError(
                f"`checkpoint` must be a name, a path, or an object with {', '.join(CHECKPOINT_METHODS)},"
                f" got {type(checkpoint).__name__}"
            )
        self._checkpoint: Checkpoint[Any, Any, Any] | None = checkpoint
        self._tap = None if probes is None else probes(checkpoint)

    @property
    def checkpoint(self) -> Checkpoint[Any, Any, Any]:
        """The loaded model."""
        if self._checkpoint is None:
            raise PredictRuntimeError("this Agent was closed: its `with` block has ended; make another")
        return self._checkpoint

    @property
    def model_id(self) -> str:
        """How results call the checkpoint."""
        return self.checkpoint.model_id

    @property
    def size_bytes(self) -> int:
        """Bytes of weights and buffers that this Agent keeps in memory."""
        return self.checkpoint.size_bytes

    @property
    def device(self) -> str:
        """Where the weights are."""
        return self.checkpoint.device

    @property
    def uses_lang(self) -> bool:
        """Whether answers depend on the `lang` of a call."""
        return self.checkpoint.uses_lang

    def check_questions(
        self, questions: object, *, max_len: int | None = None, head_max_len: int | None = None
    ) -> None:
        """Says whether questions can be asked, and their options fit the budget, without running anything.

        Raises:
            PredictTypeError, PredictValueError: names the question and what to change.
        """
        parsed = parse_questions(questions)
        if parsed:
            self.checkpoint.check(asked_of_model(parsed, self._tap), _options(max_len, head_max_len, None))

    def predict_batch(
        self,
        states: list[Any],
        questions: dict[str, Any],
        batch_size: int | None = None,
        lang: str | None = None,
        hooks: Hooks = None,
        on_predict_start: Listeners = None,
        on_predict_end: Listeners = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
        max_len: int | None = None,
        head_max_len: int | None = None,
        sort_by_length: bool = False,
        min_confidence: MinConfidence | None = None,
    ) -> list[dict[str, Any]]:
        """Answers the same questions about each state; returns one result per state, in their order.

        `batch_size` bounds the states of one forward pass (None: all in one), `sort_by_length` joins states of like
        length to save padding. The order of events is `SEQUENCES["Agent.predict_batch"]`.

        Raises:
            PredictTypeError, PredictValueError: states, questions or arguments cannot be used; nothing was tokenized.
            Exception: whatever a hook or the checkpoint raised.
        """
        chain = self._chain(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_timeout)
        threshold = None if min_confidence is None else checked_min_confidence(min_confidence)
        if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
            raise PredictValueError(f"`batch_size` must be an int >= 1 or None, got {batch_size!r}")
        ctx = self._context(states, questions, max_len, head_max_len)

        def answer(ctx: PredictContext) -> None:
            if ctx.results is None:
                ctx.results = self._infer(ctx, batch_size, lang, sort_by_length=sort_by_length)
            else:
                ctx.settle_skip()

        if CORRELATION.get() is not None:
            return live(chain, ctx, answer, threshold)
        token = CORRELATION.set(ctx.correlation_id)
        try:
            return live(chain, ctx, answer, threshold)
        finally:
            CORRELATION.reset(token)

    def system_one(
        self,
        state: Any,
        questions: dict[str, Any],
        lang: str | None = None,
        hooks: Hooks = None,
        on_predict_start: Listeners = None,
        on_predict_end: Listeners = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
        max_len: int | None = None,
        head_max_len: int | None = None,
        min_confidence: MinConfidence | None = None,
    ) -> dict[str, Any]:
        """Answers questions about one state: `predict_batch([state], ...)[0]`."""
        results = self.predict_batch(
            [state],
            questions,
            None,
            lang,
            hooks,
            on_predict_start,
            on_predict_end,
            hooks_raise,
            hooks_timeout,
            max_len,
            head_max_len,
            min_confidence=min_confidence,
        )
        return only(results)

    predict = system_one

    def predict_long(
        self,
        state: Any,
        questions: dict[str, Any],
        window: int | None = None,
        stride: int | None = None,
        aggregate: str = "auto",
        batch_size: int | None = None,
        lang: str | None = None,
        hooks: Hooks = None,
        on_predict_start: Listeners = None,
        on_predict_end: Listeners = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
    ) -> dict[str, Any]:
        """Answers questions about a state longer than the model's sequence, read in windows that overlap.

        `window` and `stride` count tokens. Hooks see the windows as `ctx.states`, one call for all of them. A noul is
        answered by the window with the highest probability, choice and score by the most confident one; each answer
        says which (`answer["window"]`), and `usage["windows"]` how many were scored (0 where a hook answered). The
        numbers are that window's and are not calibrated for the document. `result["probes"]` is a list, by window.

        Raises:
            PredictTypeError, PredictValueError: as `predict_batch`; also where the checkpoint cannot cut states.
        """
        windows = long.windows_of(
            self.checkpoint, state, questions, window, stride, aggregate, _options(None, None, lang), self._tap
        )
        chain = self._chain(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_timeout)
        texts = [state] if len(windows) == 1 else [one.text for one in windows]
        ctx = self._context(list(texts), questions, None, None)
        ctx._is_document = True

        def answer(ctx: PredictContext) -> None:
            if ctx.results is None:
                ctx.results = self._infer(ctx, batch_size, lang, sort_by_length=False)
            else:
                ctx.settle_skip()

        with correlated(ctx.correlation_id):
            results = live(chain, ctx, answer, None)
        return long.joined(self.model_id, ctx, results, windows, is_as_cut=ctx.states == texts)

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._checkpoint = None

    def __repr__(self) -> str:
        return f"<Agent {self._checkpoint.model_id if self._checkpoint else 'closed'}>"

    def _context(
        self, states: list[Any], questions: dict[str, Any], max_len: int | None, head_max_len: int | None
    ) -> PredictContext:
        return PredictContext(
            states,
            questions,
            correlation_id=CORRELATION.get(),
            model=self.model_id,
            agent=self,
            max_len=max_len,
            head_max_len=head_max_len,
        )

    def _infer(
        self, ctx: PredictContext, batch_size: int | None, lang: str | None, *, sort_by_length: bool
    ) -> list[dict[str, Any]]:
        """Checks what the start hooks have left, and runs the model over it."""
        checkpoint = self.checkpoint
        model_id = checkpoint.model_id
        states = _checked_states(ctx.states)
        questions = parse_questions(ctx.questions)
        if not states:
            return []
        if not questions:
            return [empty_result(model_id) for _ in states]
        options = _options(ctx.max_len, ctx.head_max_len, lang)
        asked = asked_of_model(questions, self._tap)
        checkpoint.check(asked, options)
        passes: list[tuple[Sequence[int], list[_Encoded], Any]] = []
        said: dict[int, StateVerdicts] = {}
        if batch_size is None or batch_size >= len(states):
            encoded = [checkpoint.encode(state, asked, options) for state in states]
            indices: Sequence[int] = range(len(states))
            passes.append((indices, encoded, self._forward(ctx, indices, encoded, said)))
        else:
            for indices, encoded in _chunks(
                states, batch_size, lambda state: checkpoint.encode(state, asked, options), sort_by_length
            ):
                passes.append((indices, encoded, self._forward(ctx, indices, encoded, said)))
        results: list[Any] = [None] * len(states)
        for indices, encoded, output in passes:
            scores = checkpoint.decode(output, encoded, asked, options)
            if len(scores) != len(indices):
                raise PredictRuntimeError(f"checkpoint {model_id!r} decoded {len(scores)} of {len(indices)} states")
            for index, row, per_question in zip(indices, encoded, scores, strict=True):
                results[index] = make_result(model_id, asked, per_question, row)
        for index, verdicts in said.items():
            add_verdicts(results[index], questions, verdicts)
        return results

    def _forward(
        self, ctx: PredictContext, indices: Sequence[int], encoded: list[_Encoded], said: dict[int, StateVerdicts]
    ) -> Any:
        """Runs the model over one chunk; what attached probes say of its states goes to `said`."""
        checkpoint = self.checkpoint
        if self._tap is None:
            return checkpoint.forward(checkpoint.collate(encoded))
        names = [f"{ctx.run_id}/{index}" for index in indices]
        with self._tap.watching(names, [ctx.states[index] for index in indices], encoded) as watch:
            output = checkpoint.forward(checkpoint.collate(encoded))
        said.update(zip(indices, watch.verdicts, strict=True))
        return output


def _chunks(
    states: Sequence[Any], size: int, encode: Callable[[Any], _Encoded], is_sorting: bool
) -> Iterator[tuple[Sequence[int], list[_Encoded]]]:
    """Yields the states of each forward pass, `size` of them or fewer, encoded, with their indices."""
    count = len(states)
    window = size * _SORT_WINDOW_CHUNKS if is_sorting and size > 1 else size
    for first in range(0, count, window):
        indices = range(first, min(first + window, count))
        encoded = [encode(states[index]) for index in indices]
        if window == size:
            yield indices, encoded
            continue
        order = sorted(range(len(encoded)), key=lambda at: encoded[at].input_tokens)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            yield [first + at for at in part], [encoded[at] for at in part]


def _options(max_len: object, head_max_len: object, lang: str | None) -> CallOptions:
    if max_len is None and head_max_len is None and lang is None:
        return _NO_OPTIONS
    for name, value in (("max_len", max_len), ("head_max_len", head_max_len)):
        if value is not None and (type(value) is not int or value < 1):
            raise PredictValueError(f"`{name}` counts tokens: an int >= 1 or None is expected, got {value!r}")
    return CallOptions(max_len, head_max_len, lang)  # type: ignore[arg-type]


_NO_OPTIONS = CallOptions()


def _checked_states(states: object) -> Sequence[Any]:
    if not isinstance(states, (list, tuple)):
        raise PredictTypeError(
            f"`states` must be a list of states, got {type(states).__name__}; for one state call predict()"
        )
    for index, state in enumerate(states):
        if not isinstance(state, STATE_TYPES):
            raise PredictTypeError(
                f"states[{index}] must be a text, a dict or a list of turns, got {type(state).__name__}"
            )
    return states
