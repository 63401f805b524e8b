"""A checkpoint that continues text: a causal language model, and the option that it would most likely answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from undercurrent.engines.checkpoint_calibration import Calibration
from undercurrent.engines.checkpoint_texts import Budget, Tokens, cut_state, require_room, state_text
from undercurrent.predict.checkpoint import CallOptions, EncodedState, Scores
from undercurrent.predict.errors import PredictValueError
from undercurrent.predict.questions import Question

__all__ = ["CausalCheckpoint"]

_PRIORS_KEPT_MAX = 512
_ROWS_PER_PASS = 32
NO_STATE = "N/A"
"""Stands for a state that says nothing."""


class _Row(msgspec.Struct, frozen=True):
    """A prompt and one option as its continuation."""

    token_ids: Tokens
    label_len: int


class _Orders(msgspec.Struct, frozen=True):
    """How one question of one state is asked."""

    rows: tuple[tuple[_Row, ...], ...]
    """By order in which options are shown, then by option as the caller numbers them."""


class CausalCheckpoint:
    """A causal model that scores the options' names behind a prompt that lists them.

    The score of an option is the mean log-probability of its tokens, less what it is when the state says nothing
    (Zhao et al., "Calibrate before use", ICML 2021). Models prefer options by where they stand in the list; averaged
    over `permutations` rotations of it they prefer less, at that many times the cost.

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
        permutations: int = 1,
    ) -> None:
        """Takes a loaded transformers model in evaluation mode and its tokenizer.

        Raises:
            PredictValueError: `permutations` is below 1.
        """
        if permutations < 1:
            raise PredictValueError(f"`permutations` must be >= 1, got {permutations!r}")
        self.model_id = model_id
        self._model = model
        self._tokenizer = tokenizer
        self._budget = budget or Budget(1024, 512)
        self._calibration = calibration or Calibration()
        self._permutations = permutations
        self._priors: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()

    @property
    def device(self) -> str:
        """Where the weights are."""
        return str(self._model.device)

    @property
    def size_bytes(self) -> int:
        """Bytes of weights and buffers; shared weights count once."""
        return sum(part.nbytes for part in (*self._model.parameters(), *self._model.buffers()))

    def check(self, questions: Sequence[Question], options: CallOptions) -> None:
        """Instructions and the list of options must fit.

        Raises:
            PredictValueError: they do not.
        """
        budget = Budget.of(options, self._budget)
        for question in questions:
            orders = range(len(question.keys) + 1)
            counts = [len(self._tokens(_tail(question, tuple(range(count))))) for count in orders]
            require_room(question, counts, budget)

    def encode(self, state: object, questions: Sequence[Question], options: CallOptions) -> EncodedState[list[_Orders]]:
        """A prompt per question and order, continued by each option."""
        budget = Budget.of(options, self._budget)
        tokens = self._tokens(state_text(state))
        asked, cut, least = [], [], len(tokens)
        for question in questions:
            kept, orders = self._ask(tokens, question, budget, is_conversation=isinstance(state, list))
            asked.append(orders)
            if kept < len(tokens):
                cut.append(question.id)
            least = min(least, kept)
        return EncodedState(
            asked,
            input_tokens=sum(len(row.token_ids) for orders in asked for rows in orders.rows for row in rows),
            state_tokens=len(tokens),
            state_tokens_dropped=len(tokens) - least,
            truncated_questions=tuple(cut),
        )

    def collate(self, encoded: Sequence[EncodedState[list[_Orders]]]) -> list[_Row]:
        """All continuations of all states."""
        return [row for state in encoded for orders in state.row for rows in orders.rows for row in rows]

    def forward(self, batch: Sequence[_Row]) -> Tensor:
        """Mean log-probability of each continuation, `(rows,) float32`; in passes of 32 rows."""
        parts = [batch[at : at + _ROWS_PER_PASS] for at in range(0, len(batch), _ROWS_PER_PASS)]
        return torch.cat([self._score(part) for part in parts])

    def decode(
        self,
        output: Tensor,
        encoded: Sequence[EncodedState[list[_Orders]]],
        questions: Sequence[Question],
        options: CallOptions,
    ) -> list[list[Scores]]:
        """Softmax over what the state adds to each option, averaged over the orders, calibrated."""
        budget = Budget.of(options, self._budget)
        found, at = [], 0
        for state in encoded:
            scores = []
            for question, orders in zip(questions, state.row, strict=True):
                count = len(question.keys)
                shape = (len(orders.rows), count)
                logits = output[at : at + shape[0] * count].view(shape) - self._prior(question, budget)
                at += shape[0] * count
                scores.append(Scores(self._calibration.apply(question.type, logits.softmax(-1).mean(0).tolist())))
            found.append(scores)
        return found

    def _prior(self, question: Question, budget: Budget) -> Tensor:
        """The scores of a question's options when the state says nothing, `(orders, options)`, kept by question."""
        key = (question.instructions, question.labels, question.texts, question.option_order, budget.max_len)
        known = self._priors.get(key)
        if known is None:
            _, orders = self._ask(self._tokens(NO_STATE), question, budget, is_conversation=False)
            rows = [row for rows in orders.rows for row in rows]
            known = self.forward(rows).view(len(orders.rows), -1)
            self._priors[key] = known
            while len(self._priors) > _PRIORS_KEPT_MAX:
                self._priors.popitem(last=False)
        return known

    def _ask(self, state: Tokens, question: Question, budget: Budget, *, is_conversation: bool) -> tuple[int, _Orders]:
        """How many tokens of the state are seen, and the prompts."""
        labels = [self._tokens(f" {label}") for label in question.labels]
        begin = [] if self._tokenizer.bos_token_id is None else [self._tokenizer.bos_token_id]
        kept: Tokens = state
        rows = []
        for order in self._orders(question):
            tail = self._tokens(_tail(question, order))
            room = budget.max_len - len(begin) - len(tail) - max(map(len, labels))
            kept = cut_state(state, room, is_conversation=is_conversation)
            rows.append(tuple(_Row([*begin, *kept, *tail, *label], len(label)) for label in labels))
        return len(kept), _Orders(tuple(rows))

    def _orders(self, question: Question) -> list[tuple[int, ...]]:
        first = question.option_order or tuple(range(len(question.keys)))
        return [first[at:] + first[:at] for at in range(min(self._permutations, len(first)))]

    def _tokens(self, text: str) -> Tokens:
        found: Tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    @torch.inference_mode()
    def _score(self, rows: Sequence[_Row]) -> Tensor:
        longest = max(len(row.token_ids) for row in rows)
        tokens = torch.zeros((len(rows), longest), dtype=torch.long)
        for at, row in enumerate(rows):
            tokens[at, : len(row.token_ids)] = torch.tensor(row.token_ids)
        tokens = tokens.to(self._model.device)
        # Padding stands behind what is read, where a causal model cannot see it.
        hidden = self._model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        means = []
        for at, row in enumerate(rows):
            end = len(row.token_ids)
            logits = self._model.get_output_embeddings()(hidden[at, end - row.label_len - 1 : end - 1]).float()
            chosen = logits.log_softmax(-1).gather(1, tokens[at, end - row.label_len : end, None])
            means.append(chosen.mean())
        return torch.stack(means).cpu()


def _tail(question: Question, order: Sequence[int]) -> str:
    """What stands behind the state: the question, its options in an order, and where the answer goes."""
    listed = "".join(f"- {question.texts[option]}\n" for option in order)
    return f"\n\nQuestion: {question.instructions}\nOptions:\n{listed}Answer:"
