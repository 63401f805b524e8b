"""A checkpoint that continues text: a causal language model, and the option that it would most likely answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

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

__all__ = ["CausalCheckpoint"]

_PRIORS_KEPT_MAX = 512
_ROWS_PER_PASS = 32
NO_STATE = "N/A"
"""Stands for a state that says nothing."""


class _Prompt(msgspec.Struct, frozen=True):
    """A question about a state, its options in one order, and how each of them would go on."""

    token_ids: Tokens
    labels: tuple[Tokens, ...]
    """By option, as the caller numbers them."""


class _Sequence(msgspec.Struct, frozen=True):
    """One row of a pass: a prompt, continued by all but the last token of the labels that begin alike."""

    token_ids: Tokens
    labels: tuple[tuple[int, Tokens], ...]
    """Where in the output each label's score belongs, and its tokens."""


class CausalCheckpoint(ModelCheckpoint):
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
        if type(permutations) is not int or permutations < 1:
            raise PredictValueError(f"`permutations` must be an int >= 1, got {permutations!r}")
        self.model_id = model_id
        super().__init__(model)
        self._begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        self._to_text = tokenizer.decode
        self._tokens = token_reader(tokenizer)
        self._budget = budget or Budget(1024, 512)
        self._calibration = calibration or Calibration()
        self._permutations = permutations
        self._priors: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()

    def sequences(self, encoded: EncodedState[list[_Prompt]]) -> list[Tokens]:
        """What the model reads of a state, for probes that read along: a prompt per question and order of options."""
        return [prompt.token_ids for prompt in encoded.row]

    def check(self, questions: Sequence[Question], options: CallOptions) -> None:
        """Instructions, the list of options and the longest of their names must fit.

        Raises:
            PredictValueError: they do not.
        """
        budget = Budget.of(options, self._budget)
        for question in questions:
            if self._head_len(question, len(question.keys)) > budget.head_max_len:
                counts = [self._head_len(question, count) for count in range(len(question.keys) + 1)]
                require_room(question, counts, budget)

    def encode(self, state: object, questions: Sequence[Question], options: CallOptions) -> EncodedState[list[_Prompt]]:
        """A prompt per question and order of its options."""
        budget = Budget.of(options, self._budget)
        tokens = self._tokens(state_text(state))
        prompts, cut, least = [], [], len(tokens)
        for question in questions:
            kept, asked = self._ask(tokens, question, budget, is_conversation=isinstance(state, list))
            prompts += asked
            if kept < len(tokens):
                cut.append(question.id)
            least = min(least, kept)
        return EncodedState(
            prompts,
            input_tokens=sum(len(sequence.token_ids) for sequence in _sequences(prompts)),
            state_tokens=len(tokens),
            state_tokens_dropped=len(tokens) - least,
            truncated_questions=tuple(cut),
        )

    def collate(self, encoded: Sequence[EncodedState[list[_Prompt]]]) -> list[_Sequence]:
        """What the model reads for all prompts of all states."""
        return _sequences([prompt for state in encoded for prompt in state.row])

    def forward(self, batch: Sequence[_Sequence]) -> Tensor:
        """Mean log-probability of each label of each prompt in turn, `(labels,) float32`; in passes of 32 rows."""
        scores = torch.empty(sum(len(sequence.labels) for sequence in batch))
        for at in range(0, len(batch), _ROWS_PER_PASS):
            self._score(batch[at : at + _ROWS_PER_PASS], scores)
        return scores

    def decode(
        self,
        output: Tensor,
        encoded: Sequence[EncodedState[list[_Prompt]]],
        questions: Sequence[Question],
        options: CallOptions,
    ) -> list[list[Scores]]:
        """Softmax over what the state adds to each option, averaged over the orders, calibrated."""
        budget = Budget.of(options, self._budget)
        priors = [self._prior(question, budget) for question in questions]
        parts = iter(torch.split(output, [prior.numel() for prior in priors] * len(encoded)))
        return [
            [
                Scores(
                    self._calibration.apply(
                        question.type, (next(parts).view(prior.shape) - prior).softmax(-1).mean(0).tolist()
                    )
                )
                for question, prior in zip(questions, priors, strict=True)
            ]
            for _ in encoded
        ]

    def split(
        self,
        state: object,
        questions: Sequence[Question],
        options: CallOptions,
        *,
        window_tokens: int | None,
        stride_tokens: int | None,
    ) -> Sequence[StateWindow]:
        """Windows as long as the largest question leaves room.

        Raises:
            PredictValueError: no room, or a stride longer than the window.
        """
        longest = max(self._head_len(question, len(question.keys)) for question in questions)
        return split_state(
            self._tokens(state_text(state)),
            self._to_text,
            room=Budget.of(options, self._budget).max_len - longest,
            window_tokens=window_tokens,
            stride_tokens=stride_tokens,
        )

    def _head_len(self, question: Question, count: int) -> int:
        """Tokens of a prompt besides the state's, and of the longest label, with the first `count` options."""
        labels = [len(self._tokens(f" {label}")) for label in question.labels[:count]]
        return len(self._begin) + len(self._tokens(_tail(question, range(count)))) + max(labels, default=0)

    def _prior(self, question: Question, budget: Budget) -> Tensor:
        """The scores of a question's options when the state says nothing, `(orders, options)`, kept by question."""
        key = (question.instructions, question.labels, question.texts, question.option_order, budget.max_len)
        known = self._priors.get(key)
        if known is None:
            _, prompts = self._ask(self._tokens(NO_STATE), question, budget, is_conversation=False)
            known = self.forward(_sequences(prompts)).view(len(prompts), -1)
            self._priors[key] = known
            while len(self._priors) > _PRIORS_KEPT_MAX:
                self._priors.popitem(last=False)
        return known

    def _ask(
        self, state: Tokens, question: Question, budget: Budget, *, is_conversation: bool
    ) -> tuple[int, list[_Prompt]]:
        """How many tokens of the state are seen, the same in every order, and a prompt per order."""
        labels = tuple(self._tokens(f" {label}") for label in question.labels)
        tails = [self._tokens(_tail(question, order)) for order in self._orders(question)]
        room = budget.max_len - len(self._begin) - max(map(len, tails)) - max(map(len, labels))
        kept = cut_state(state, room, is_conversation=is_conversation)
        return len(kept), [_Prompt([*self._begin, *kept, *tail], labels) for tail in tails]

    def _orders(self, question: Question) -> list[tuple[int, ...]]:
        first = question.option_order or tuple(range(len(question.keys)))
        return [first[at:] + first[:at] for at in range(min(self._permutations, len(first)))]

    @torch.inference_mode()
    def _score(self, sequences: Sequence[_Sequence], scores: Tensor) -> None:
        longest = max(len(sequence.token_ids) for sequence in sequences)
        tokens = torch.zeros((len(sequences), longest), dtype=torch.long)
        for at, sequence in enumerate(sequences):
            tokens[at, : len(sequence.token_ids)] = torch.tensor(sequence.token_ids)
        # Padding stands behind what is read, where a causal model cannot see it.
        hidden = self._model.base_model(input_ids=tokens.to(self._model.device), use_cache=False).last_hidden_state
        for at, sequence in enumerate(sequences):
            end = len(sequence.token_ids)
            width = len(sequence.labels[0][1])
            logits = self._model.get_output_embeddings()(hidden[at, end - width : end]).float().log_softmax(-1).cpu()
            for index, label in sequence.labels:
                scores[index] = logits.gather(1, torch.tensor(label)[:, None]).mean()


def _sequences(prompts: Sequence[_Prompt]) -> list[_Sequence]:
    """The rows that score all labels of all prompts: labels that differ in their last token only share one."""
    found, index = [], 0
    for prompt in prompts:
        shared: dict[tuple[int, ...], list[tuple[int, Tokens]]] = {}
        for label in prompt.labels:
            shared.setdefault(tuple(label[:-1]), []).append((index, label))
            index += 1
        found += [_Sequence([*prompt.token_ids, *begun], tuple(labels)) for begun, labels in shared.items()]
    return found


def _tail(question: Question, order: Sequence[int]) -> str:
    """What stands behind the state: the question, its options in an order, and where the answer goes."""
    listed = "".join(f"- {question.texts[option]}\n" for option in order)
    return f"\n\nQuestion: {question.instructions}\nOptions:\n{listed}Answer:"
