"""Extraction points on a checkpoint of decisions: its forward passes feed a probe router, state by state.

    from undercurrent.engines.checkpoint_probes import CheckpointProbes
    from undercurrent.predict import Agent

    agent = Agent("english", probes=CheckpointProbes(spec, router))

A decision has no generation: the *prompt* of a point is what the model reads for one question about one state, so that
`prompt[-1]` is the last token of that. A state's request gets a record per question and point, in the order of the
questions. An inline probe that says `abort` vetoes the state's answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from undercurrent.core import ProbeResult, ProbeSignal
from undercurrent.engines.base import CaptureAuditError, EngineLimitationError, RowRouter
from undercurrent.engines.capture import BatchCapture, SequenceShape, TensorKey
from undercurrent.engines.hf_modules import find_modules, output_tensor
from undercurrent.engines.hf_tap import ModelTap
from undercurrent.engines.routing import BatchRouting, opened_requests
from undercurrent.predict.checkpoint import Checkpoint, EncodedState
from undercurrent.predict.probes import ProbeTap, StateVerdicts
from undercurrent.spec import ExtractionPoint, PositionKind, TensorType

__all__ = ["CheckpointProbes", "ReadableCheckpoint"]


@runtime_checkable
class ReadableCheckpoint(Protocol):
    """What a checkpoint says of itself, so that probes can read it."""

    @property
    def model(self) -> Any:
        """The torch module that `forward` runs."""
        ...

    def sequences(self, encoded: EncodedState[Any]) -> Sequence[Sequence[int]]:
        """The tokens of a state that the model reads, one sequence per question at least, in the order of the passes.

        A row of a pass may go on behind its sequence, and one sequence may have several rows; the first is read.
        """
        ...


class CheckpointProbes:
    """Attaches points to the checkpoint of an Agent: `Agent(name, probes=CheckpointProbes(points, router))`.

    It is given to each Agent that is made with it, also by a Router (`agent_options={"probes": …}`). The probe router
    stays the caller's.
    """

    def __init__(self, points: Iterable[ExtractionPoint], router: RowRouter) -> None:
        """Takes the points of a spec, and the `undercurrent.router.Router` that knows their probes.

        Raises:
            EngineLimitationError: a point reads what a decision does not have.
        """
        self._points = tuple(points)
        self._router = router
        problems = [
            f"point {point.name!r}: a decision generates nothing, so position {point.position.to_raw()!r} names no"
            " token; use one such as 'prompt[-1]'"
            for point in self._points
            if point.position.kind not in (PositionKind.ABSOLUTE, PositionKind.PROMPT_INDEX)
        ]
        if problems or not self._points:
            raise EngineLimitationError("; ".join(problems) or "expected at least one point, got none")

    def __call__(self, checkpoint: Checkpoint[Any, Any, Any]) -> ProbeTap:
        """A tap on a loaded checkpoint.

        Raises:
            EngineLimitationError: it is no model of torch, or cannot give a point what it reads.
        """
        if not isinstance(checkpoint, ReadableCheckpoint):
            raise EngineLimitationError(
                f"probes cannot read checkpoint {checkpoint.model_id!r}: {type(checkpoint).__name__} lacks `model` or"
                " `sequences`"
            )
        return _CheckpointTap(checkpoint, self._points, self._router)


class _CheckpointTap:
    """A `ProbeTap` on a model of torch."""

    def __init__(self, checkpoint: Any, points: tuple[ExtractionPoint, ...], router: RowRouter) -> None:
        modules = find_modules(checkpoint.model)
        capabilities = modules.capabilities()
        if not _is_causal(checkpoint.model):
            # An encoder's attention ends behind the norm that closes its residual sum: it is no addend of the stream.
            kinds = capabilities.tensor_types & {TensorType.RESIDUAL_STREAM}
            capabilities = type(capabilities)(capabilities.layer_count, capabilities.hidden_size, kinds)
        problems = [problem for point in points for problem in capabilities.find_problems(point)]
        if problems:
            raise EngineLimitationError("; ".join(problems))
        self._checkpoint = checkpoint
        self._points = points
        self._router = router
        # Checkpoints run the body of a model, without the head that would make logits of every token.
        self._tap = ModelTap(checkpoint.model.base_model, modules)

    @property
    def points(self) -> tuple[str, ...]:
        return tuple(point.name for point in self._points)

    @contextmanager
    def watching(
        self, request_ids: Sequence[str], states: Sequence[Any], encoded: Sequence[EncodedState[Any]]
    ) -> Iterator[_Watch]:
        sequences = [self._checkpoint.sequences(one) for one in encoded]
        shapes = [
            SequenceShape(request_id, len(of_state[0]), points=self._points)
            for request_id, of_state in zip(request_ids, sequences, strict=True)
        ]
        pending = [
            (request_id, list(sequence))
            for request_id, of_state in zip(request_ids, sequences, strict=True)
            for sequence in of_state
        ]
        watch = _Watch(self._points, pending)
        with opened_requests(self._router, shapes, states, model_name=self._checkpoint.model_id):
            with self._tap.attached(watch):
                yield watch
            outcomes = watch.route(self._router)
        results = _ended(self._router, request_ids)
        for index, request_id in enumerate(request_ids):
            outcome = outcomes.get(request_id, _Outcome())
            if outcome.error is not None:
                outcome.error.add_note(f"in request {request_id!r}, state {index} of its pass")
                raise outcome.error
            watch.verdicts.append(_verdicts(results[request_id], *outcome.abort))


class _Outcome:
    """What inline probes said about one state."""

    def __init__(self) -> None:
        self.abort: tuple[str | None, ProbeSignal | None] = (None, None)
        self.error: BaseException | None = None


class _Pass:
    """One forward pass of the model: which of its rows are read, and what was copied of them."""

    def __init__(self, capture: BatchCapture, column_count: int) -> None:
        self.capture = capture
        self.row_count = len(capture.sequences)
        self.column_count = column_count
        self.selected = capture.select(0, column_count)
        self.copies: dict[TensorKey, tuple[Tensor, list[int]]] = {}


class _Watch:
    """Listens while one thread runs a checkpoint's forward; see `hf_tap.TapListener`."""

    def __init__(self, points: tuple[ExtractionPoint, ...], pending: list[tuple[str, list[int]]]) -> None:
        self.keys = BatchCapture([SequenceShape("", 1, points=points)]).keys
        self.verdicts: list[StateVerdicts] = []
        self._points = points
        self._pending = pending
        self._passes: list[_Pass] = []

    def begin_forward(self, kwargs: dict[str, Any]) -> None:
        """Finds the rows of this pass that hold the next sequences.

        Raises:
            CaptureAuditError: the pass has no tokens to look at.
        """
        tokens = kwargs.get("input_ids")
        if tokens is None:
            raise CaptureAuditError("expected a forward pass over `input_ids`, got none; probes cannot tell its rows")
        shapes = []
        for row in tokens.tolist():
            shape = SequenceShape("", len(row))
            if self._pending and row[: len(self._pending[0][1])] == self._pending[0][1]:
                request_id, sequence = self._pending.pop(0)
                shape = SequenceShape(request_id, len(sequence), points=self._points)
            shapes.append(shape)
        capture = BatchCapture(shapes)
        for row, shape in enumerate(shapes):
            # What stands behind a sequence is padding, or an option's name.
            capture.end_sequence(row, column=shape.prompt_len)
        self._passes.append(_Pass(capture, tokens.shape[1]))

    def capture(self, key: TensorKey, output: Any) -> None:
        """Copies the wanted rows of one tensor."""
        if not self._passes or key in self._passes[-1].copies:
            raise CaptureAuditError(f"layer {key[0]} ran twice in a forward pass, or outside of one")
        now = self._passes[-1]
        if not len(now.selected):
            return
        rows = now.capture.rows_of(now.selected, key)
        if not len(rows):
            return
        hidden = output_tensor(output, batch_size=now.row_count, column_count=now.column_count)
        places, indices = np.unique(rows.sequences * now.column_count + rows.columns, return_inverse=True)
        # Whatever is made in inference mode could not be written by a probe that owns it.
        with torch.inference_mode(False), torch.no_grad():
            flat = hidden.detach().flatten(0, 1)
            copied = flat.index_select(0, torch.from_numpy(places).to(flat.device)).to("cpu")
        now.copies[key] = (copied, indices.tolist())

    def route(self, router: RowRouter) -> dict[str, _Outcome]:
        """Brings what was captured to the probes; returns what inline ones said, by request.

        Raises:
            CaptureAuditError: the model did not read what the checkpoint says it reads.
        """
        if self._pending:
            raise CaptureAuditError(
                f"{len(self._pending)} sequences of this call did not pass through the model that the checkpoint names"
                " as its `model`"
            )
        outcomes: dict[str, _Outcome] = {}
        with torch.inference_mode(False), torch.no_grad(), router.step():
            for one in self._passes:
                if not len(one.selected):
                    continue
                routing = BatchRouting(router, one.capture)
                for key in self.keys:
                    rows = one.capture.rows_of(one.selected, key)
                    if len(rows):
                        routing.route(key, one.copies[key][0], rows, one.copies[key][1])
                _gather(outcomes, one.capture, routing)
        return outcomes


def _ended(router: RowRouter, request_ids: Sequence[str]) -> dict[str, dict[str, ProbeResult]]:
    """Ends every request, and raises the first failure after all of them."""
    results: dict[str, dict[str, ProbeResult]] = {}
    first: BaseException | None = None
    for request_id in request_ids:
        try:
            results[request_id] = router.end_request(request_id)
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
    return results


def _gather(outcomes: dict[str, _Outcome], capture: BatchCapture, routing: BatchRouting) -> None:
    for sequence, said in zip(capture.sequences, routing.outcomes, strict=True):
        if not said.is_over:
            continue
        outcome = outcomes.setdefault(sequence.request_id, _Outcome())
        if outcome.error is None:
            outcome.error = said.error
        if outcome.abort[1] is None:
            outcome.abort = (said.abort_point, said.abort_signal)


def _verdicts(results: dict[str, ProbeResult], vetoed_by: str | None, signal: ProbeSignal | None) -> StateVerdicts:
    points: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        metadata = dict(result.metadata)
        points[name] = {"verdict": result.verdict, "coverage": metadata.pop("coverage", {})}
        if metadata:
            points[name]["metadata"] = metadata
    if vetoed_by is not None and signal is not None:
        points[vetoed_by] |= {"vetoed": True, "reason": dict(signal.metadata)}
    return StateVerdicts(points, vetoed_by)


def _is_causal(model: Any) -> bool:
    """Whether a model continues text: such models have a head for it, or say that they are decoders."""
    return model.get_output_embeddings() is not None or bool(getattr(model.config, "is_decoder", False))
