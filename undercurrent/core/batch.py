"""`ActivationBatch`: several records of one binding, taken in one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

from undercurrent.core.arrays import as_array
from undercurrent.errors import ProbingValueError
from undercurrent.spec import ActivationRecord

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ActivationBatch"]


class ActivationBatch(Sequence[ActivationRecord]):
    """Records of one point of one request, in order; what `Probe.on_activations` gets.

    It is a sequence of `ActivationRecord`. The columns are numpy arrays, built when they are first asked for. It is
    valid during the call it was made for; records taken from it stay valid unless the probe class `reads_in_place`.

    A worker fills it from shared memory in a subclass; `from_records` makes one from records at hand.

    >>> batch = ActivationBatch.from_records(
    ...     [ActivationRecord("r", "p", 4, position, "mlp_out", [1.0, 2.0], True) for position in (7, 8)])
    >>> batch.positions.tolist(), batch.stack().shape
    ([7, 8], (2, 2))
    """

    def __init__(self, records: Iterable[ActivationRecord], *, sequences: Sequence[int] | None = None) -> None:
        self._records = list(records)
        self._sequences = range(len(self._records)) if sequences is None else sequences
        if len(self._sequences) != len(self._records):
            raise ProbingValueError(
                f"`sequences` must have one entry per record, got {len(self._sequences)} for {len(self._records)}"
            )

    @classmethod
    def from_records(cls, records: Iterable[ActivationRecord], *, sequences: Sequence[int] | None = None) -> Self:
        """A batch over `records`; `sequences` are their numbers within the binding, 0, 1, 2 … when left out."""
        return cls(records, sequences=sequences)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> ActivationRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[ActivationRecord]: ...
    def __getitem__(self, index: int | slice) -> ActivationRecord | list[ActivationRecord]:
        return self._records[index]

    def __iter__(self) -> Iterator[ActivationRecord]:
        return iter(self._records)

    @property
    def positions(self) -> np.ndarray[Any, Any]:
        """Absolute token positions, int64."""
        return self._column([record.token_pos for record in self], "int64")

    @property
    def layers(self) -> np.ndarray[Any, Any]:
        """Layer indices, int32."""
        return self._column([record.layer for record in self], "int32")

    @property
    def is_generated(self) -> np.ndarray[Any, Any]:
        """Whether each token was generated, bool."""
        return self._column([record.is_generated for record in self], "bool")

    @property
    def timestamps(self) -> np.ndarray[Any, Any]:
        """Seconds since the epoch at capture, float64."""
        return self._column([record.timestamp for record in self], "float64")

    @property
    def sequences(self) -> np.ndarray[Any, Any]:
        """Number of each record within its binding, int64; a gap is a dropped or lost record."""
        return self._column(self._sequences, "int64")

    def stack(self) -> np.ndarray[Any, Any]:
        """All tensors one behind the other, `(len(batch), *shape)`, C-order and owned by the caller.

        Raises:
            ProbingValueError: the batch is empty, or its tensors differ in shape.
        """
        import numpy as np

        arrays = [as_array(record.tensor) for record in self]
        shapes = sorted({array.shape for array in arrays})
        if len(shapes) != 1:
            found = ", ".join(map(str, shapes)) or "no records"
            raise ProbingValueError(f"`stack` needs tensors of one shape, got {found}; go through the records instead")
        return np.stack(arrays)

    def _column(self, values: Sequence[Any], dtype: str) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.array(values, dtype=dtype)
