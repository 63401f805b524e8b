"""`RingBatch`: the `ActivationBatch` a worker fills from shared memory."""

from __future__ import annotations

from collections.abc import Iterator
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
        headers: np.ndarray[Any, Any],
        request_id: str,
        point: ExtractionPoint,
        *,
        in_place: bool,
        first: int,
    ) -> None:
        self._batch: ipc.Batch | None = batch
        self._headers = headers
        self._request_id = request_id
        self._point = point
        self._in_place = in_place
        self._first = first
        self._made: list[ActivationRecord | None] = [None] * len(headers)

    def __len__(self) -> int:
        return len(self._headers)

    @overload
    def __getitem__(self, index: int) -> ActivationRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[ActivationRecord]: ...
    def __getitem__(self, index: int | slice) -> ActivationRecord | list[ActivationRecord]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._make(range(len(self))[index])
        return made

    def __iter__(self) -> Iterator[ActivationRecord]:
        return (self[index] for index in range(len(self)))

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
        if self._batch is None:
            return super().stack()
        return frames.stack(self._headers, self._batch)

    def detach(self) -> None:
        """The call is over: tensors that nobody asked for stay unknown, the others are owned copies."""
        self._batch = None

    def _make(self, index: int) -> ActivationRecord:
        return make_record(self._headers[index], self._tensor(index), self._request_id, self._point)

    def _tensor(self, index: int) -> Any:
        if self._batch is None:
            raise ValueError("a record of a batch was expected to be read during `on_activations`; the call is over")
        if self._in_place:
            return frames.rebuild_view(self._headers[index], self._batch.view(index))
        return frames.rebuild(self._headers[index], self._batch.copy(index))


def make_record(header: Any, tensor: Any, request_id: str, point: ExtractionPoint) -> ActivationRecord:
    """Returns the record that `header` and `tensor` describe."""
    return ActivationRecord(
        request_id,
        point.name,
        int(header["layer"]),
        int(header["token_pos"]),
        point.tensor_type,
        tensor,
        bool(header["flags"] & FLAG_IS_GENERATED),
        float(header["timestamp"]),
    )
