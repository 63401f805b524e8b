"""A checkpoint that compares meanings: a sentence encoder, and the option whose text lies nearest to the state's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import normalize

from undercurrent.engines.checkpoint_calibration import Calibration
from undercurrent.engines.checkpoint_model import ModelCheckpoint
from undercurrent.engines.checkpoint_texts import (
    Budget,
    Tokens,
    cut_state,
    require_room,
    split_state,
    state_text,
    token_reader,
)
from undercurrent.predict.checkpoint import CallOptions, EncodedState, Scores, StateWindow
from undercurrent.predict.errors import PredictValueError
from undercurrent.predict.questions import Question

__all__ = ["EncoderCheckpoint"]

_QUESTIONS_KEPT_MAX = 1024
_ROWS_PER_PASS = 64
# Cosines of sentence encoders differ by hundredths; this is where softmax begins to tell them apart.
_SHARPNESS = 20.0
# The cosine up to which a text and a statement have nothing to do with each other: where "no" begins if nothing says
# what it looks like. It parts the fitting items of tests/checkpoint_items.py best, 0.98 of them, for MiniLM-L6.
_UNRELATED = 0.13
_SPECIAL_COUNT = 2


class _EncoderBatch(msgspec.Struct, frozen=True):
    token_ids: Tensor
    """`(rows, longest) int64`, padded on the right; a row is a state, or an option."""
    mask: Tensor


class EncoderCheckpoint(ModelCheckpoint):
    """An encoder of sentences, mean-pooled. Options are scored one by one, so their order changes nothing.

    The state is embedded on its own, once for all questions, and compared with each option behind the instructions; a
    yes/no question that does not describe its "no" is a statement, compared with a cosine that says "unrelated". Short
    questions about what a text is about suit it; what takes reasoning does not.

    See `undercurrent.predict.Checkpoint`. Any number of threads may use it at once.
    """

    uses_lang = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        model_id: str,
        budget: Budget | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        """Takes a loaded transformers encoder in evaluation mode and its tokenizer.

        Raises:
            PredictValueError: the tokenizer does not mark the ends of a sequence.
        """
        ends = (tokenizer.cls_token_id, tokenizer.sep_token_id)
        if None in ends:
            raise PredictValueError(f"a tokenizer with a first and a last token was expected, got {ends!r}")
        self.model_id = model_id
        super().__init__(model)
        self._first, self._last = ends
        self._padding = tokenizer.pad_token_id or 0
        self._to_text = tokenizer.decode
        self._tokens = token_reader(tokenizer)
        self._budget = budget or Budget(256, 96)
        self._calibration = calibration or Calibration()
        self._questions: OrderedDict[tuple[str, ...], Tensor] = OrderedDict()

    def sequences(self, encoded: EncodedState[Tokens]) -> list[Tokens]:
        """What the model reads of a state: one sequence, for probes that read along."""
        return [encoded.row]

    def check(self, questions: Sequence[Question], options: CallOptions) -> None:
        """Each option is a sequence of its own: it must fit behind the instructions, and the state beside nothing.

        Raises:
            PredictValueError: one does not.
        """
        budget = Budget.of(options, self._budget)
        for question in questions:
            counts = [len(self._tokens(text)) + _SPECIAL_COUNT for text in _option_texts(question)]
            fitting_count = sum(count <= budget.head_max_len for count in counts)
            require_room(question, [*[0] * (fitting_count + 1), max(counts)], budget)

    def encode(self, state: object, questions: Sequence[Question], options: CallOptions) -> EncodedState[Tokens]:
        """The state as one sequence, whatever is asked."""
        budget = Budget.of(options, self._budget)
        tokens = self._tokens(state_text(state))
        kept = cut_state(tokens, budget.max_len - _SPECIAL_COUNT, is_conversation=isinstance(state, list))
        is_cut = len(kept) < len(tokens)
        return EncodedState(
            [self._first, *kept, self._last],
            input_tokens=len(kept) + _SPECIAL_COUNT,
            state_tokens=len(tokens),
            state_tokens_dropped=len(tokens) - len(kept),
            truncated_questions=tuple(question.id for question in questions) if is_cut else (),
        )

    def collate(self, encoded: Sequence[EncodedState[Tokens]]) -> _EncoderBatch:
        """All states as one padded batch."""
        return self._pad([state.row for state in encoded])

    def forward(self, batch: _EncoderBatch) -> Tensor:
        """Embeddings `(states, hidden) float32` of length 1."""
        return self._embed(batch)

    def decode(
        self,
        output: Tensor,
        encoded: Sequence[EncodedState[Tokens]],
        questions: Sequence[Question],
        options: CallOptions,
    ) -> list[list[Scores]]:
        """Softmax over cosines, calibrated."""
        by_question = []
        for question in questions:
            cosines = output @ self._embedded(_option_texts(question)).T
            if cosines.shape[-1] < len(question.keys):
                cosines = torch.nn.functional.pad(cosines, (1, 0), value=_UNRELATED)
            rows = (cosines * _SHARPNESS).softmax(-1).tolist()
            by_question.append([Scores(self._calibration.apply(question.type, row)) for row in rows])
        return [list(scores) for scores in zip(*by_question, strict=True)]

    def split(
        self,
        state: object,
        questions: Sequence[Question],
        options: CallOptions,
        *,
        window_tokens: int | None,
        stride_tokens: int | None,
    ) -> Sequence[StateWindow]:
        """Windows as long as a sequence.

        Raises:
            PredictValueError: no room, or a stride longer than the window.
        """
        return split_state(
            self._tokens(state_text(state)),
            self._to_text,
            room=Budget.of(options, self._budget).max_len - _SPECIAL_COUNT,
            window_tokens=window_tokens,
            stride_tokens=stride_tokens,
        )

    def _embedded(self, texts: tuple[str, ...]) -> Tensor:
        """Embeddings `(texts, hidden)` of a question's options, kept by their texts."""
        known = self._questions.get(texts)
        if known is None:
            rows = [[self._first, *self._tokens(text), self._last] for text in texts]
            parts = [rows[at : at + _ROWS_PER_PASS] for at in range(0, len(rows), _ROWS_PER_PASS)]
            known = torch.cat([self._embed(self._pad(part)) for part in parts])
            self._questions[texts] = known
            while len(self._questions) > _QUESTIONS_KEPT_MAX:
                self._questions.popitem(last=False)
        return known

    def _pad(self, rows: Sequence[Tokens]) -> _EncoderBatch:
        longest = max(map(len, rows))
        tokens = torch.full((len(rows), longest), self._padding)
        mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for at, row in enumerate(rows):
            tokens[at, : len(row)] = torch.tensor(row)
            mask[at, : len(row)] = 1
        return _EncoderBatch(tokens.to(self._model.device), mask.to(self._model.device))

    @torch.inference_mode()
    def _embed(self, batch: _EncoderBatch) -> Tensor:
        hidden = self._model(input_ids=batch.token_ids, attention_mask=batch.mask).last_hidden_state.float()
        weights = batch.mask.unsqueeze(-1).float()
        return normalize((hidden * weights).sum(1) / weights.sum(1).clamp(min=1), dim=-1).cpu()


def _option_texts(question: Question) -> tuple[str, ...]:
    """What the state is compared with, in the order of the keys; a bare yes/no question has only its "yes"."""
    instructions = question.instructions
    if question.type == "score":
        return tuple(f"{instructions} {description}" for description in question.descriptions)
    if question.type == "choice":
        return tuple(f"{instructions} {text}" for text in question.texts)
    no, yes = question.descriptions
    if question.labels != question.keys:
        # Labels of the caller's own say what both answers are about.
        no, yes = (
            label if text is None else f"{label}: {text}"
            for label, text in zip(question.labels, (no, yes), strict=True)
        )
    affirmed = instructions if yes is None else f"{instructions} {yes}"
    return (affirmed,) if no is None else (f"{instructions} {no}", affirmed)
