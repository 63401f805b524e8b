"""A tiny model that the tests of the front door share, and a check that nothing is left of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from undercurrent.engines import SyntheticEngine


@cache
def _build() -> tuple[Any, Any]:
    from undercurrent.engines import build_tiny_model

    return build_tiny_model()


@pytest.fixture
def tiny() -> Iterator[dict[str, Any]]:
    """The arguments that give a `ProbedModel` the tiny model; no hook may be left on it."""
    import torch

    model, tokenizer = _build()
    threads = torch.get_num_threads()
    # One thread: the sums of a product must not depend on how many CPUs are free.
    torch.set_num_threads(1)
    yield {"model": model, "tokenizer": tokenizer}
    torch.set_num_threads(threads)
    assert not [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]


@pytest.fixture
def engine() -> SyntheticEngine:
    """A small engine without a model."""
    return SyntheticEngine(layer_count=4, hidden_size=8)


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("undercurrent-generate")]
    assert not left
