"""torch tensors as bytes. torch is imported inside these functions, which run when a tensor is at hand."""

from __future__ import annotations

import logging
import math
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from undercurrent.errors import UnsupportedPayloadError
from undercurrent.workers.references import MalformedValueError

if TYPE_CHECKING:
    import torch

__all__ = ["TORCH_DTYPES", "build_tensor", "is_tensor_type", "pack_tensor", "tensor_dtype", "unpack_tensor"]

_logger = logging.getLogger("undercurrent.workers")

_NDIM_MAX = 64
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[str, list[int], memoryview])
_warned_devices: set[str] = set()

TORCH_DTYPES = {
    (0, 8): "int8",
    (0, 16): "int16",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 16): "uint16",
    (1, 32): "uint32",
    (1, 64): "uint64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (5, 32): "complex32",
    (5, 64): "complex64",
    (5, 128): "complex128",
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
"""The torch dtype behind each DLPack type code and width, by name: what a ring reads from a tensor itself."""


def is_tensor_type(kind: type) -> bool:
    """Whether `kind` is `torch.Tensor` or a parameter, without importing torch: who holds a tensor has it already."""
    loaded = sys.modules.get("torch")
    return loaded is not None and (kind is loaded.Tensor or kind is loaded.nn.Parameter)


def load_torch() -> None:
    """Imports torch now, so that the seconds it takes the first time count as nobody's probe time."""
    import torch

    assert torch


def tensor_dtype(name: str) -> torch.dtype:
    """Returns the torch dtype called `name`.

    Raises:
        MalformedValueError: torch has no such dtype.
    """
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise MalformedValueError(f"torch {torch.__version__} has no dtype {name!r}")
    return dtype


def build_tensor(dtype: torch.dtype, shape: tuple[int, ...], owned: bytearray) -> torch.Tensor:
    """Returns a tensor over `owned`, which nobody else may use afterwards."""
    import torch

    if not owned:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(owned, dtype=dtype)
    return flat if len(shape) == 1 else flat.view(shape)


def pack_tensor(tensor: torch.Tensor) -> bytes:
    """Returns `[dtype, shape, bytes]` of any strided tensor, C-order, detached; one of a device is copied from there.

    Raises:
        UnsupportedPayloadError: the tensor has no plain memory (sparse, quantized, nested, meta, fake).
    """
    import torch

    layout = tensor.layout
    if layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta":
        raise UnsupportedPayloadError(
            f"a torch tensor must be strided and hold its data to be a record, got {_describe(tensor)}; "
            "pass `tensor.to_dense()`, `tensor.dequantize()` or a padded tensor"
        )
    try:
        plain = tensor.detach().as_subclass(torch.Tensor)
        if plain.device.type != "cpu":
            _warn_of_device(plain.device.type)
            plain = plain.cpu()
        plain = plain.resolve_conj().resolve_neg().contiguous()
        flat = plain.reshape(-1)
        if flat.stride(0) != 1:
            # One element counts as contiguous whatever its stride, but cannot be viewed as bytes.
            flat = flat.clone(memory_format=torch.contiguous_format)
        raw: Any = flat.view(torch.uint8).numpy(force=True)
    except Exception as error:
        raise UnsupportedPayloadError(f"the memory of {_describe(tensor)} cannot be read: {error}") from error
    return _encoder.encode((str(plain.dtype).removeprefix("torch."), list(plain.shape), memoryview(raw)))


def unpack_tensor(data: bytes | bytearray | memoryview) -> torch.Tensor:
    """Returns the tensor of `pack_tensor`: on the CPU, owned, C-order, without gradient.

    Raises:
        MalformedValueError: `data` is not what `pack_tensor` writes.
    """
    try:
        name, shape, raw = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise MalformedValueError(f"bytes that should describe a torch tensor do not: {error}") from error
    dtype = tensor_dtype(name)
    is_sound = len(shape) <= _NDIM_MAX and min(shape, default=0) >= 0
    if not is_sound or math.prod(shape) * dtype.itemsize != len(raw):
        raise MalformedValueError(f"a torch tensor of dtype {name} and shape {shape} came with {len(raw)} bytes")
    try:
        return build_tensor(dtype, tuple(shape), bytearray(raw))
    except Exception as error:
        raise MalformedValueError(f"a torch tensor of dtype {name} cannot be built from bytes: {error}") from error


def _describe(tensor: Any) -> str:
    return f"`{type(tensor).__name__}` of dtype {tensor.dtype}, layout {tensor.layout}, device {tensor.device}"


def _warn_of_device(device_type: str) -> None:
    if device_type in _warned_devices:
        return
    _warned_devices.add(device_type)
    _logger.warning(
        "a tensor that crosses to another process lies on device %r; it is copied to the CPU here, which waits for the "
        "device: copy it once in the engine, with the other rows of its step (said once per device type)",
        device_type,
    )
