"""What the demo runs on: the real model, or a tiny one with random weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undercurrent.engines import HFEngine, build_tiny_model, find_packaged_model
from undercurrent.engines.tiny import readable_generation

__all__ = ["Stage", "set_up"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A loaded engine and what suits it."""

    engine: HFEngine
    title: str
    deep_layer: int
    """Read by the guard and the quick monitor."""
    shallow_layer: int
    """Read by the slow monitor."""
    harmless_prompt: str
    stopped_prompt: str
    watched_tokens: int
    measured_tokens: int
    generation_kwargs: Mapping[str, Any]
    """How the watched prompts are continued."""
    is_trained: bool


def set_up(*, is_tiny: bool, cache: Path, on_progress: Callable[[str], None]) -> Stage:
    """Loads the model; the real one is unpacked below `cache` on the first run.

    Raises:
        MissingDependencyError: a package is missing; the message says what to install.
    """
    # One CPU is left to the workers: torch threads that wait for a busy CPU cost more than they give.
    thread_count = max(1, len(os.sched_getaffinity(0)) - 1)
    prompts = {
        "harmless_prompt": "To make a good onion soup for the family, first",
        "stopped_prompt": "The doctor looked at her test results, wrote a prescription and told her to take",
    }
    engine = HFEngine()
    if is_tiny:
        on_progress("building a tiny model")
        model, tokenizer = build_tiny_model("llama", layer_count=6, hidden_size=128)
        engine.load_model(model, tokenizer=tokenizer, thread_count=thread_count)
        title = "a tiny Llama with random weights"
        return Stage(
            engine,
            title,
            **prompts,
            deep_layer=4,
            shallow_layer=2,
            watched_tokens=60,
            measured_tokens=120,
            generation_kwargs={"do_sample": False, **readable_generation(tokenizer)},
            is_trained=False,
        )
    on_progress("looking for the packaged model")
    folder = find_packaged_model(cache / "models", on_progress=on_progress)
    on_progress("loading the model")
    engine.load_model(folder, dtype="bfloat16", thread_count=thread_count, shows_progress=False)
    return Stage(
        engine,
        "Gemma 3 270M",
        **prompts,
        deep_layer=12,
        shallow_layer=6,
        watched_tokens=40,
        measured_tokens=24,
        generation_kwargs={"do_sample": False, "repetition_penalty": 1.15},
        is_trained=True,
    )
