"""`RingBatch`: the `ActivationBatch` a worker fills from shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, overload

import numpy as np

from undercurrent import ipc
from undercurrent.core import ActivationBatch
from undercurrent.ipc.layout import FLAG_IS_GENERATED
from undercurrent.spec import ActivationRecord, ExtractionPoint
from undercurrent.workers import frames


class RingBatch(ActivationBatch):
    """Records in a worker's hand. Tensors are copied out when they are first asked for; `stack` is one gather."""

    def __init__(
        self,
        batch: ipc.Batch,
        request_id: str,
        point: ExtractionPoint,
        *,
        in_place: bool,
        first: int,
    ) -> None:
        self._batch = batch
        self._count = len(batch)
        self._is_readable = True
        self._request_id = request_id
        self._point = point
        self._in_place = in_place
        self._first = first
        self._made: list[ActivationRecord | None] = []  # filled with the first record that is asked for

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> ActivationRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[ActivationRecord]: ...
    def __getitem__(self, index: int | slice) -> ActivationRecord | list[ActivationRecord]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not self._made:
            self._made = [None] * self._count
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._make(range(self._count)[index])
        return made

    def __iter__(self) -> Iterator[ActivationRecord]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def _headers(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._batch.headers, frames.HEADER_DTYPE)

    @property
    def positions(self) -> np.ndarray[Any, Any]:
        """See `ActivationBatch`."""
        return self._headers["token_pos"].copy()

    @property
    def layers(self) -> np.ndarray[Any, Any]:
        """See `ActivationBatch`."""
        return self._headers["layer"].copy()

    @property
    def is_generated(self) -> np.ndarray[Any, Any]:
        """See `ActivationBatch`."""
        generated: np.ndarray[Any, Any] = (self._headers["flags"] & FLAG_IS_GENERATED).astype(bool)
        return generated

    @property
    def timestamps(self) -> np.ndarray[Any, Any]:
        """See `ActivationBatch`."""
        return self._headers["timestamp"].copy()

    @property
    def sequences(self) -> np.ndarray[Any, Any]:
        """See `ActivationBatch`."""
        numbers: np.ndarray[Any, Any] = self._headers["seq"].astype(np.int64) - self._first
        return numbers

    def stack(self) -> np.ndarray[Any, Any]:
        """See `ActivationBatch`; one copy straight out of shared memory where the tensors allow it."""
        return frames.stack(self._batch) if self._is_readable else super().stack()

    def detach(self) -> None:
        """The call is over: tensors that nobody asked for stay unknown, the others are owned copies."""
        self._is_readable = False

    def _make(self, index: int) -> ActivationRecord:
        if not self._is_readable:
            raise ValueError("a record of a batch was expected to be read during `on_activations`; the call is over")
        return make_record(self._batch, index, self._request_id, self._point, in_place=self._in_place)


def make_record(
    batch: ipc.Batch, index: int, request_id: str, point: ExtractionPoint, *, in_place: bool
) -> ActivationRecord:
    """Returns a record of a batch, its tensor a copy of its own, or a view of shared memory."""
    form, _, layer, token_pos, flags, timestamp = batch.facts(index)
    tensor = (
        frames.rebuild_form_view(form, batch.view(index)) if in_place else frames.rebuild_form(form, batch.copy(index))
    )
    is_generated = flags & FLAG_IS_GENERATED != 0
    return ActivationRecord(
        request_id, point.name, layer, token_pos, point.tensor_type, tensor, is_generated, timestamp
    )
