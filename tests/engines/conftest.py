"""Tiny models, built once: one per architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest


@cache
def _build(architecture: str) -> tuple[Any, Any]:
    from undercurrent.engines import build_tiny_model

    return build_tiny_model(architecture)


@pytest.fixture
def load() -> Iterator[Callable[..., Any]]:
    """Loads a fresh engine over a tiny model that the tests share; no hook may be left on it."""
    import torch

    from undercurrent.engines import HFEngine

    engines: list[Any] = []
    threads = torch.get_num_threads()

    def load_engine(architecture: str = "llama") -> Any:
        model, tokenizer = _build(architecture)
        engine = HFEngine()
        # One thread: the sums of a product must not depend on how many CPUs are free.
        engine.load_model(model, tokenizer=tokenizer, thread_count=1)
        engines.append(engine)
        return engine

    yield load_engine
    torch.set_num_threads(threads)
    assert [engine.hook_count for engine in engines] == [0] * len(engines)
