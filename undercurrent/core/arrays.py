"""Any tensor of a record as a numpy array; the only place where core touches numpy, and only when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["as_array"]


def as_array(tensor: Any) -> np.ndarray[Any, Any]:
    """`tensor` as a numpy array, without a copy where memory can be shared.

    Torch tensors of a dtype numpy lacks (bfloat16, float8) become float32, which holds all their values.

    Raises:
        ValueError: the tensor is a ragged list.
    """
    import numpy as np

    if isinstance(tensor, np.ndarray):
        return tensor
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        try:
            return np.asarray(tensor)
        except TypeError:
            return np.asarray(tensor.float())
    if isinstance(tensor, (bytes, bytearray, memoryview)):
        return np.frombuffer(tensor, dtype=np.uint8) if isinstance(tensor, (bytes, bytearray)) else np.asarray(tensor)
    return np.asarray(tensor)
