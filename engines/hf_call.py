"""One call of transformers' `generate`: what goes in, what runs, and what came of each prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList, StopStringCriteria

from undercurrent.engines.base import EngineLimitationError, FinishReason, Generation, RowRouter
from undercurrent.engines.capture import BatchCapture, SequenceShape, progression
from undercurrent.engines.hf_modes import GenerationMode, check_mode
from undercurrent.engines.hf_session import GenerationSession, TokenListener
from undercurrent.engines.hf_tap import ModelTap
from undercurrent.engines.prompt_state import PromptState
from undercurrent.engines.routing import BatchRouting

__all__ = ["GenerationCall", "seeded"]


class GenerationCall:
    """A batch of prompts on its way through a model; built, run and read on one thread.

    Raises:
        EngineLimitationError: a way of generating under which positions would be wrong.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        sequences: Sequence[SequenceShape],
        token_ids: Sequence[Sequence[int]],
        generation_kwargs: Mapping[str, Any],
        router: RowRouter,
        token_id_of: Callable[[str], int | None],
        on_tokens: TokenListener | None,
        state: PromptState | None = None,
    ) -> None:
        self.sequences = tuple(sequences)
        self._model = model
        self._tokenizer = tokenizer
        self._token_ids = token_ids
        self._columns = max(map(len, token_ids))
        self._arguments = dict(generation_kwargs)
        self._mode: GenerationMode = check_mode(model, self._arguments, sequences)
        capture = BatchCapture(sequences, token_id_of=token_id_of)
        if state is not None:
            _check_state(state, sequences)
            self._arguments["cache"] = state.cache
        self._routing = BatchRouting(router, capture)
        self.session = GenerationSession(
            capture,
            self._routing,
            prompt_columns=self._columns,
            rows_per_sequence=self._mode.rows_per_prompt,
            end_tokens=self._mode.end_tokens,
            stop_tests=self._take_stop_tests(),
            on_tokens=on_tokens,
            covered_columns=0 if state is None else state.token_count,
        )

    def run(self, tap: ModelTap) -> list[Generation]:
        """Generates; the answers are in the order of the prompts and hold no results yet.

        Raises:
            CaptureAuditError: rows and tokens do not match; nothing that was captured in that step was routed.
        """
        tokens, mask = self._pad()
        with tap.attached(self.session) as detach:
            self.session.detach = detach if self.session.keys else None
            output = self._model.generate(
                tokens,
                attention_mask=mask,
                stopping_criteria=StoppingCriteriaList([_EndOfStep(self.session)]),
                **self._arguments,
            )
        sequences = output if isinstance(output, Tensor) else output.sequences
        rows = sequences[:, self._columns :].tolist()
        return [self._describe(index, rows) for index in range(len(self.sequences))]

    def _take_stop_tests(self) -> list[Callable[[Tensor], Tensor]]:
        """Takes stop strings and the caller's criteria over, so that it is known which row each of them ends."""
        arguments = self._arguments
        criteria: list[StoppingCriteria] = list(arguments.pop("stopping_criteria", None) or [])
        strings = arguments.pop("stop_strings", None)
        tokenizer = arguments.pop("tokenizer", None) or self._tokenizer
        if strings:
            if tokenizer is None:
                raise EngineLimitationError("`stop_strings` needs a tokenizer; load the model with one")
            criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=strings))
        return [partial(_ask, criterion) for criterion in criteria]

    def _pad(self) -> tuple[Tensor, Tensor]:
        """The prompts as `(rows, columns)`, padded on the left, and their mask."""
        pad = self._pad_token()
        shape = (len(self.sequences), self._columns)
        tokens = torch.full(shape, pad, dtype=torch.long)
        mask = torch.zeros(shape, dtype=torch.long)
        for row, (sequence, ids) in enumerate(zip(self.sequences, self._token_ids, strict=True)):
            tokens[row, sequence.padding :] = torch.tensor(ids, dtype=torch.long)
            mask[row, sequence.padding :] = 1
        if "pad_token_id" not in self._arguments and "generation_config" not in self._arguments:
            self._arguments["pad_token_id"] = pad
        if self.session.keys:
            # Hooks do not run inside a compiled forward pass.
            self._arguments["disable_compile"] = True
        return tokens.to(self._model.device), mask.to(self._model.device)

    def _pad_token(self) -> int:
        """Some token for the columns that the mask hides."""
        candidates = (
            getattr(self._tokenizer, "pad_token_id", None),
            self._model.generation_config.pad_token_id,
            *sorted(self._mode.end_tokens),
        )
        return next((int(token) for token in candidates if isinstance(token, int)), 0)

    def _describe(self, index: int, rows: list[list[int]]) -> Generation:
        outcome = self._routing.outcomes[index]
        per_prompt = self._mode.sequences_per_prompt
        finish_column = self.session.finish_columns[index]
        mine = [self._cut(row, finish_column) for row in rows[index * per_prompt : (index + 1) * per_prompt]]
        texts = [self._text(token_ids) for token_ids in mine]
        return Generation(
            request_id=self.sequences[index].request_id,
            text=texts[0],
            token_ids=tuple(mine[0]),
            prompt_len=self.sequences[index].prompt_len,
            finish_reason=self.session.finish_reasons[index] or self._natural_end(mine[0]),
            other_texts=tuple(texts[1:]),
            abort_signal=outcome.abort_signal,
            abort_point=outcome.abort_point,
            error=outcome.error,
        )

    def _cut(self, row: list[int], finish_column: int | None) -> list[int]:
        """The tokens of one row without what `generate` adds to rows that ended before the others."""
        if finish_column is not None:
            row = row[: finish_column - self._columns]
        ends = [place for place, token in enumerate(row) if token in self._mode.end_tokens]
        return row[: ends[0] + 1] if ends else row

    def _natural_end(self, token_ids: list[int]) -> FinishReason:
        is_ended = bool(token_ids) and token_ids[-1] in self._mode.end_tokens
        return FinishReason.STOP if is_ended else FinishReason.LENGTH

    def _text(self, token_ids: list[int]) -> str:
        if self._tokenizer is None:
            return ""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text


def _check_state(state: PromptState, sequences: Sequence[SequenceShape]) -> None:
    if len(sequences) != 1:
        raise EngineLimitationError(f"a prompt state belongs to one prompt, got {len(sequences)} prompts")
    (sequence,) = sequences
    if state.token_count >= sequence.prompt_len:
        raise EngineLimitationError(
            f"a prompt state must leave at least one token of the prompt to compute, got {state.token_count} of "
            f"{sequence.prompt_len}"
        )
    for point in sequence.points:
        start, stop, _ = progression(point, sequence.prompt_len)
        if start < min(stop, state.token_count):
            raise EngineLimitationError(
                f"point {point.name!r} reads position {start}, and the first {state.token_count} tokens are not "
                "computed again; generate without a prompt state"
            )


class _EndOfStep(StoppingCriteria):
    """Where `generate` asks whether to go on, a step ends."""

    def __init__(self, session: GenerationSession) -> None:
        self._session = session

    def __call__(self, input_ids: Tensor, _scores: object, **_kwargs: object) -> Tensor:
        return self._session.end_step(input_ids)


def _ask(criterion: Callable[[Tensor, Any], Any], tokens: Tensor) -> Tensor:
    """A criterion's answer as one truth value per row; older ones answer for the whole batch."""
    answer = criterion(tokens, None)
    if isinstance(answer, Tensor):
        return answer.expand(tokens.shape[0]) if answer.ndim <= 1 else answer
    return torch.full((tokens.shape[0],), bool(answer), device=tokens.device)


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draws from `seed` on within the block and leaves torch's generators as they were; None changes nothing.

    The generators are those of the process: calls that draw on other threads meanwhile disturb one another.
    """
    if seed is None:
        yield
        return
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
        torch.manual_seed(seed)
        yield
