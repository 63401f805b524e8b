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
from undercurrent.engines.checkpoint_texts import Budget, Tokens, cut_state, require_room, state_text
from undercurrent.predict.checkpoint import CallOptions, EncodedState, Scores
from undercurrent.predict.questions import Question

__all__ = ["EncoderCheckpoint"]

_OPTIONS_KEPT_MAX = 1024
# Cosines of sentence encoders differ by hundredths; this is where softmax begins to tell them apart.
_SHARPNESS = 20.0


class _EncoderBatch(msgspec.Struct, frozen=True):
    token_ids: Tensor
    """`(states x questions, longest) int64`, padded on the right."""
    mask: Tensor


class EncoderCheckpoint:
    """An encoder of sentences, mean-pooled. Options are scored one by one, so their order changes nothing.

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
        """Takes a loaded transformers encoder in evaluation mode and its tokenizer."""
        self.model_id = model_id
        self._model = model
        self._tokenizer = tokenizer
        self._budget = budget or Budget(256, 96)
        self._calibration = calibration or Calibration()
        self._options: OrderedDict[tuple[str, ...], Tensor] = OrderedDict()

    @property
    def device(self) -> str:
        """Where the weights are."""
        return str(self._model.device)

    @property
    def size_bytes(self) -> int:
        """Bytes of weights and buffers."""
        return sum(part.nbytes for part in (*self._model.parameters(), *self._model.buffers()))

    def check(self, questions: Sequence[Question], options: CallOptions) -> None:
        """Each option is a sequence of its own: it and the instructions must fit.

        Raises:
            PredictValueError: one does not.
        """
        budget = Budget.of(options, self._budget)
        for question in questions:
            require_room(question, [len(self._head(question))], budget)
            for text in question.texts:
                require_room(question, [0, len(self._tokens(text))], budget)

    def encode(self, state: object, questions: Sequence[Question], options: CallOptions) -> EncodedState[list[Tokens]]:
        """One sequence per question: its instructions, then the state."""
        budget = Budget.of(options, self._budget)
        tokens = self._tokens(state_text(state))
        rows, cut, least = [], [], len(tokens)
        for question in questions:
            head = self._head(question)
            kept = cut_state(tokens, budget.max_len - len(head) - 2, is_conversation=isinstance(state, list))
            rows.append([self._tokenizer.cls_token_id, *head, *kept, self._tokenizer.sep_token_id])
            if len(kept) < len(tokens):
                cut.append(question.id)
            least = min(least, len(kept))
        return EncodedState(
            rows,
            input_tokens=sum(map(len, rows)),
            state_tokens=len(tokens),
            state_tokens_dropped=len(tokens) - least,
            truncated_questions=tuple(cut),
        )

    def collate(self, encoded: Sequence[EncodedState[list[Tokens]]]) -> _EncoderBatch:
        """All questions of all states as one padded batch."""
        return self._pad([row for state in encoded for row in state.row])

    def forward(self, batch: _EncoderBatch) -> Tensor:
        """Embeddings `(states x questions, hidden) float32` of length 1."""
        return self._embed(batch).cpu()

    def decode(
        self,
        output: Tensor,
        encoded: Sequence[EncodedState[list[Tokens]]],
        questions: Sequence[Question],
        options: CallOptions,
    ) -> list[list[Scores]]:
        """Softmax over cosines, calibrated."""
        embeddings = output.view(len(encoded), len(questions), -1)
        by_question = []
        for at, question in enumerate(questions):
            cosines = embeddings[:, at] @ self._options_of(question).T
            rows = (cosines * _SHARPNESS).softmax(-1).tolist()
            by_question.append([Scores(self._calibration.apply(question.type, row)) for row in rows])
        return [list(scores) for scores in zip(*by_question, strict=True)]

    def _options_of(self, question: Question) -> Tensor:
        """Embeddings `(options, hidden)` of the options' texts, kept by text."""
        known = self._options.get(question.texts)
        if known is None:
            special = (self._tokenizer.cls_token_id, self._tokenizer.sep_token_id)
            rows = [[special[0], *self._tokens(text), special[1]] for text in question.texts]
            known = self._embed(self._pad(rows)).cpu()
            self._options[question.texts] = known
            while len(self._options) > _OPTIONS_KEPT_MAX:
                self._options.popitem(last=False)
        return known

    def _head(self, question: Question) -> Tokens:
        return self._tokens(f"{question.instructions}\n")

    def _tokens(self, text: str) -> Tokens:
        found: Tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def _pad(self, rows: Sequence[Tokens]) -> _EncoderBatch:
        longest = max(map(len, rows))
        tokens = torch.full((len(rows), longest), self._tokenizer.pad_token_id or 0)
        mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for at, row in enumerate(rows):
            tokens[at, : len(row)] = torch.tensor(row)
            mask[at, : len(row)] = 1
        return _EncoderBatch(tokens.to(self._model.device), mask.to(self._model.device))

    @torch.inference_mode()
    def _embed(self, batch: _EncoderBatch) -> Tensor:
        hidden = self._model(input_ids=batch.token_ids, attention_mask=batch.mask).last_hidden_state.float()
        weights = batch.mask.unsqueeze(-1).float()
        return normalize((hidden * weights).sum(1) / weights.sum(1).clamp(min=1), dim=-1)
