"""From captured rows to probes, and from their answers to what happens to each request of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from undercurrent.core import ProbeAction, ProbeSignal, RequestContext
from undercurrent.engines.base import Generation, RowRouter
from undercurrent.engines.capture import BatchCapture, CapturedRows, SequenceShape, TensorKey
from undercurrent.router import Router, RowEntry, RowsError

__all__ = ["BatchRouting", "RequestOutcome", "opened_requests", "with_results"]


@dataclass(slots=True)
class RequestOutcome:
    """What inline probes said so far about one request of a batch."""

    abort_signal: ProbeSignal | None = None
    abort_point: str | None = None
    error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether this request must generate no further."""
        return self.abort_signal is not None or self.error is not None


class BatchRouting:
    """Routes the rows of one batch; `outcomes[i]` belongs to row i of the batch.

    Owned by one generate call and used on its thread. A probe that raises ends its own request: the error is kept in
    the outcome, and the rows of all other requests are routed.
    """

    def __init__(self, router: RowRouter, capture: BatchCapture) -> None:
        self.router = router
        self.outcomes = [RequestOutcome() for _ in capture.sequences]
        self._capture = capture
        self._index_of = {sequence.request_id: index for index, sequence in enumerate(capture.sequences)}
        self._failed: set[int] = set()

    def route(self, key: TensorKey, rows: Any, captured: CapturedRows, row_indices: list[int] | None = None) -> None:
        """Routes a copy of rows; entry i of `captured` reads `rows[row_indices[i]]`, or `rows[i]` without indices."""
        entries = self._entries(captured, row_indices)
        if not entries:
            return
        layer, tensor_type = key
        try:
            signals = self.router.route_rows(rows, layer, tensor_type, entries)
        except RowsError as error:
            signals = error.signals
            for index, cause in error.errors.items():
                self._fail(entries[index].request_id, cause)
        for entry, signal in zip(entries, signals, strict=True):
            if signal is not None and signal.action is ProbeAction.ABORT:
                self._abort(entry, signal)

    def _entries(self, captured: CapturedRows, row_indices: list[int] | None) -> list[RowEntry]:
        is_generated = (captured.positions >= self._capture.prompt_lens[captured.sequences]).tolist()
        names = self._capture.names
        rows = range(len(captured)) if row_indices is None else row_indices
        entries = [
            RowEntry(names[pair][0], names[pair][1], position, is_behind_prompt, row)
            for pair, position, is_behind_prompt, row in zip(
                captured.pairs.tolist(), captured.positions.tolist(), is_generated, rows, strict=True
            )
        ]
        if not self._failed:
            return entries
        # A probe that raised, in this step or before, ended its request: it gets no more records.
        return [entry for entry in entries if self._index_of[entry.request_id] not in self._failed]

    def _abort(self, entry: RowEntry, signal: ProbeSignal) -> None:
        outcome = self.outcomes[self._index_of[entry.request_id]]
        if outcome.abort_signal is None:
            outcome.abort_signal = signal
            outcome.abort_point = entry.extraction_point_name

    def _fail(self, request_id: str, error: BaseException) -> None:
        index = self._index_of[request_id]
        self._failed.add(index)
        if self.outcomes[index].error is None:
            self.outcomes[index].error = error


@contextmanager
def opened_requests(
    router: RowRouter, sequences: Sequence[SequenceShape], prompts: Sequence[object], *, model_name: str
) -> Iterator[None]:
    """Registers the requests of a batch; ends them again if one is refused, or if the block raises.

    A block that ends well leaves them open, so that the caller has the text before the verdicts. Ctrl-C waits for no
    verdict.
    """
    opened: list[str] = []
    try:
        for sequence, prompt in zip(sequences, prompts, strict=True):
            metadata = {"model": model_name, "prompt": prompt, "prompt_len": sequence.prompt_len}
            context = RequestContext(sequence.request_id, metadata, None)
            router.register_request(sequence.request_id, sequence.points, context)
            opened.append(sequence.request_id)
        yield
    except BaseException as error:
        for request_id in opened:
            if isinstance(error, KeyboardInterrupt) and isinstance(router, Router):
                router.end_request(request_id, timeout_s=0.0)
            else:
                router.end_request(request_id)
        raise


def with_results(generations: Sequence[Generation], router: RowRouter) -> list[Generation]:
    """Ends the requests of a batch and puts their results into the generations."""
    return [replace(generation, results=router.end_request(generation.request_id)) for generation in generations]
