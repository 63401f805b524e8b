"""What a checkpoint over one transformers model says of that model."""

from __future__ import annotations

from typing import Any

__all__ = ["ModelCheckpoint"]


class ModelCheckpoint:
    """Holds the model of a checkpoint, which it borrows."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def device(self) -> str:
        """Where the weights are."""
        return str(self._model.device)

    @property
    def size_bytes(self) -> int:
        """Bytes of weights and buffers; shared weights count once."""
        return sum(part.nbytes for part in (*self._model.parameters(), *self._model.buffers()))

    @property
    def model(self) -> Any:
        """The torch module that `forward` runs."""
        return self._model
