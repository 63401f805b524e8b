"""One generate call: which rows each forward pass gives, when they are routed, and which requests stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undercurrent.engines.base import CaptureAuditError, EngineLimitationError, FinishReason, IndexArray
from undercurrent.engines.capture import BatchCapture, CapturedRows, TensorKey
from undercurrent.engines.hf_modules import output_tensor
from undercurrent.engines.routing import BatchRouting

__all__ = ["GenerationSession", "TokenListener"]

TokenListener = Callable[[int, list[int]], None]
"""Called with a row of the batch and its new tokens, after the step in which they were chosen was routed."""

StopTest = Callable[[Tensor], Tensor]
"""Says for each row of `(rows, tokens)` whether its text is complete."""


@dataclass(slots=True)
class _Forward:
    """One forward pass: where its columns lie, and the rows copied from it."""

    first_column: int
    column_count: int
    selected: CapturedRows
    copies: dict[TensorKey, Tensor] = field(default_factory=dict)
    rows: dict[TensorKey, CapturedRows] = field(default_factory=dict)
    row_indices: dict[TensorKey, list[int] | None] = field(default_factory=dict)


class GenerationSession:
    """Follows one call of `generate`; used on the thread that runs it, except for `cancel`.

    Hooks copy the wanted rows while the model computes; they are routed at the end of the step, when `generate` asks
    whether to go on. Only then is it known which tokens were accepted, so refused drafts never become records.
    """

    def __init__(
        self,
        capture: BatchCapture,
        routing: BatchRouting,
        *,
        prompt_columns: int,
        rows_per_sequence: int = 1,
        end_tokens: frozenset[int] = frozenset(),
        stop_tests: Sequence[StopTest] = (),
        on_tokens: TokenListener | None = None,
        covered_columns: int = 0,
    ) -> None:
        """`rows_per_sequence` is more than 1 for beams and for several sequences per prompt: they share a prompt, whose
        rows are read from the first of them, and their tokens are not followed."""
        self.keys = tuple(capture.keys)
        self.finish_columns: list[int | None] = [None] * len(capture.sequences)
        """Column behind the last token of a row that ended before the call did."""
        self.finish_reasons: list[FinishReason | None] = [None] * len(capture.sequences)
        self._capture = capture
        self._routing = routing
        self._rows_per_sequence = rows_per_sequence
        self._end_tokens = end_tokens
        self._stop_tests = tuple(stop_tests)
        self._on_tokens = on_tokens
        self._length = prompt_columns
        """Columns whose tokens are settled."""
        self._covered = covered_columns
        """Columns whose activations were seen, or were in the cache before this call."""
        self._forwards: list[_Forward] = []
        self._cancelled = [threading.Event() for _ in capture.sequences]
        self.detach: Callable[[], None] | None = None
        """Removes the hooks; set by whoever attached them."""

    # ---- while the model computes ----------------------------------------------------------------------------------

    def begin_forward(self, kwargs: dict[str, Any]) -> None:
        """Settles which columns a forward pass covers.

        Raises:
            CaptureAuditError: it leaves columns out, or is not about the rows of this call.
        """
        tokens = kwargs.get("input_ids")
        row_count = len(self._cancelled) * self._rows_per_sequence
        if tokens is None or tokens.shape[0] != row_count:
            raise CaptureAuditError(
                f"expected a forward pass over the tokens of {row_count} rows, got"
                f" {'none' if tokens is None else tokens.shape[0]}; something else than `generate` runs this model"
            )
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        first = 0 if cache is None else _cached_length(cache)
        stop = first + tokens.shape[1]
        if first > self._covered or stop <= self._covered:
            raise CaptureAuditError(
                f"expected a forward pass that goes on at column {self._covered}, got columns {first} to {stop - 1};"
                " something else than `generate` runs this model, or its cache does not tell its length"
            )
        # Without a cache, every pass computes all columns again; a position becomes a record once.
        selected = self._capture.select(self._covered, stop - self._covered)
        self._forwards.append(_Forward(first, tokens.shape[1], selected))
        self._covered = stop

    def capture(self, key: TensorKey, output: Any) -> None:
        """Copies the wanted rows of one tensor; the copy shares no memory with the model."""
        if not self._forwards or key in self._forwards[-1].rows:
            raise CaptureAuditError(f"layer {key[0]} ran twice in a forward pass, or outside of one")
        forward = self._forwards[-1]
        rows = self._capture.rows_of(forward.selected, key)
        forward.rows[key] = rows
        if not len(rows):
            return
        row_count = len(self._cancelled) * self._rows_per_sequence
        hidden = output_tensor(output, batch_size=row_count, column_count=forward.column_count)
        places = rows.sequences * (self._rows_per_sequence * forward.column_count) + rows.columns - forward.first_column
        places, forward.row_indices[key] = _distinct(places) if key in self._capture.shared_keys else (places, None)
        forward.copies[key] = _copy_rows(hidden, places)

    # ---- at the end of a step --------------------------------------------------------------------------------------

    def end_step(self, tokens: Tensor) -> Tensor:
        """Routes what was captured since the last call and says for each row of `tokens` whether it is done.

        Called by `generate` with all tokens `(rows, columns)` after it has appended new ones.
        """
        length = tokens.shape[1]
        follows_tokens = self._rows_per_sequence == 1
        appended = tokens[:, self._length : length].cpu().numpy() if follows_tokens else None
        if appended is not None:
            self._capture.observe(self._length, appended)
        self._route_step(length)
        if appended is not None:
            self._tell_tokens(appended)
        self._end_stopped(length)
        if appended is not None:
            self._end_finished(tokens, appended)
        self._length = length
        if self.detach is not None and self._capture.is_exhausted(length - 1):
            self.detach()
            self.detach = None
        done = torch.tensor([reason is not None for reason in self.finish_reasons], device=tokens.device)
        return done.repeat_interleave(tokens.shape[0] // len(self.finish_reasons))

    def cancel(self, sequence: int) -> None:
        """Ends a row of the batch after the current step; from any thread."""
        self._cancelled[sequence].set()

    def _route_step(self, length: int) -> None:
        forwards, self._forwards = self._forwards, []
        if not self.keys or self.detach is None:
            return
        if self._covered < length - 1:
            raise CaptureAuditError(
                f"{length - 1 - self._covered} tokens were computed without a forward pass that the hooks saw; a"
                " compiled model runs without them: load it uncompiled"
            )
        has_refused_drafts = self._covered > length - 1
        # Whatever a probe copies in inference mode could not be written later.
        with torch.inference_mode(False), torch.no_grad(), self._routing.router.step():
            for forward in forwards:
                for key in self.keys:
                    self._route_tensor(forward, key, length - 1 if has_refused_drafts else None)
        self._covered = length - 1

    def _route_tensor(self, forward: _Forward, key: TensorKey, column_count: int | None) -> None:
        rows = forward.rows.get(key)
        if rows is None:
            if not len(self._capture.rows_of(forward.selected, key)):
                return
            raise CaptureAuditError(
                f"layer {key[0]} did not run through its {key[1].value!r} hook; a compiled layer runs without it: load"
                " the model uncompiled"
            )
        if not len(rows):
            return
        indices = forward.row_indices[key]
        is_kept = None if column_count is None else self._capture.accept(rows, column_count=column_count)
        if is_kept is not None and not is_kept.all():
            kept = np.flatnonzero(is_kept)
            indices = kept.tolist() if indices is None else [indices[index] for index in kept]
            rows = rows.keep(is_kept)
        self._routing.route(key, forward.copies[key], rows, indices)

    def _tell_tokens(self, appended: IndexArray) -> None:
        if self._on_tokens is None:
            return
        for sequence, reason in enumerate(self.finish_reasons):
            if reason is None:
                self._on_tokens(sequence, appended[sequence].tolist())

    def _end_finished(self, tokens: Tensor, appended: IndexArray) -> None:
        """Ends the rows that chose an end token, or whose text is complete; what follows in them is padding."""
        ended = {row for row, token in enumerate(appended[:, -1].tolist()) if token in self._end_tokens}
        for test in self._stop_tests:
            ended.update(np.flatnonzero(test(tokens).cpu().numpy()).tolist())
        for sequence in ended:
            self._end(sequence, FinishReason.STOP, tokens.shape[1])

    def _end_stopped(self, length: int) -> None:
        for sequence, outcome in enumerate(self._routing.outcomes):
            if outcome.error is not None:
                self._end(sequence, FinishReason.ERROR, length)
            elif outcome.abort_signal is not None:
                self._end(sequence, FinishReason.ABORT, length)
            elif self._cancelled[sequence].is_set():
                self._end(sequence, FinishReason.CANCELLED, length)

    def _end(self, sequence: int, reason: FinishReason, length: int) -> None:
        if self.finish_reasons[sequence] is None:
            self.finish_reasons[sequence] = reason
            self.finish_columns[sequence] = length
            # The last token of a row is never computed: nothing stands behind the token before it.
            self._capture.end_sequence(sequence, column=length - 1)


def _cached_length(cache: Any) -> int:
    """How many columns a cache holds.

    Raises:
        EngineLimitationError: it does not say, as that of a recurrent model, so that no position could be checked.
    """
    try:
        return int(cache.get_seq_length())
    except (AttributeError, TypeError, ValueError) as error:
        raise EngineLimitationError(
            f"the {type(cache).__name__} of this model does not tell how many tokens it holds, so positions cannot be"
            " checked; generate with `use_cache=False`"
        ) from error


def _distinct(places: IndexArray) -> tuple[IndexArray, list[int] | None]:
    """The places to copy, each once, and which of them each entry reads; None where they are in order already."""
    distinct, inverse = np.unique(places, return_inverse=True)
    if len(distinct) == len(places):
        return places, None
    return distinct, inverse.tolist()


def _copy_rows(hidden: Tensor, places: IndexArray) -> Tensor:
    """Copies rows of `(rows, columns, hidden)` to a CPU tensor of its own, outside of inference mode."""
    flat = hidden.detach().flatten(0, 1)
    # A tensor made in inference mode could not be written by a probe that owns it.
    with torch.inference_mode(False), torch.no_grad():
        if len(places) == 1:
            place = int(places[0])
            return flat[place : place + 1].to("cpu", copy=True)
        index = torch.from_numpy(places)
        if flat.device.type == "cpu":
            return flat.index_select(0, index)
        return flat.index_select(0, index.to(flat.device)).to("cpu")
