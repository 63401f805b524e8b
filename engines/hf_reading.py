"""Reads the activations of texts without generating: what a probe is trained on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undercurrent.engines.capture import TensorKey
from undercurrent.engines.hf_modules import ModelModules, output_tensor

__all__ = ["read_texts"]

FloatArray = np.ndarray[Any, np.dtype[np.float32]]


def read_texts(
    model: Any,
    modules: ModelModules,
    token_ids: Sequence[Sequence[int]],
    keys: Sequence[TensorKey],
    *,
    batch_size: int,
) -> Iterator[dict[TensorKey, FloatArray]]:
    """Yields for each text, in order, an array `(tokens, hidden) float32` per tensor.

    Texts are padded on the right: a causal model's token sees nothing behind it, and every position is what it is when
    the text is read alone.
    """
    for begin in range(0, len(token_ids), batch_size):
        batch = token_ids[begin : begin + batch_size]
        columns = max(map(len, batch))
        tokens = torch.zeros((len(batch), columns), dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, ids in enumerate(batch):
            tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            mask[row, : len(ids)] = 1
        outputs = _read_batch(model, modules, tokens, mask, keys)
        for row, ids in enumerate(batch):
            yield {key: outputs[key][row, : len(ids)] for key in keys}


class _ReadEverythingError(Exception):
    """Leaves a forward pass early; never seen outside of this module."""


def _read_batch(
    model: Any, modules: ModelModules, tokens: Tensor, mask: Tensor, keys: Sequence[TensorKey]
) -> dict[TensorKey, FloatArray]:
    outputs: dict[TensorKey, FloatArray] = {}
    thread = threading.get_ident()
    rows, columns = tokens.shape

    def keep(key: TensorKey, output: Any) -> None:
        # Another thread may generate with the same modules.
        if threading.get_ident() != thread:
            return
        hidden = output_tensor(output, batch_size=rows, column_count=columns)
        outputs[key] = hidden.to("cpu", torch.float32, copy=True).numpy()
        if len(outputs) == len(handles):
            # What lies behind the last tensor that is read would be computed for nothing.
            raise _ReadEverythingError

    handles = [
        modules.find(key).register_forward_hook(lambda _module, _args, output, key=key: keep(key, output))
        for key in dict.fromkeys(keys)
    ]
    try:
        with suppress(_ReadEverythingError), torch.no_grad():
            # The decoder without its head: the head's product over the vocabulary is not needed here.
            model.get_decoder()(
                input_ids=tokens.to(model.device), attention_mask=mask.to(model.device), use_cache=False
            )
    finally:
        for handle in handles:
            handle.remove()
    return outputs
