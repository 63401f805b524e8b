"""The packaged Gemma 3 270M: unpacked, generated from, and read to the bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_points import make_point, make_router

from undercurrent.engines import HFEngine, find_packaged_model
from undercurrent.engines.cache_folder import cache_folder
from undercurrent.spec import TensorType

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def engine() -> Iterator[HFEngine]:
    steps: list[str] = []
    folder = find_packaged_model(cache_folder() / "models", on_progress=steps.append)
    threads = torch.get_num_threads()
    loaded = HFEngine()
    loaded.load_model(folder, dtype="bfloat16", thread_count=1, shows_progress=False)
    yield loaded
    torch.set_num_threads(threads)


def test_it_continues_a_sentence_in_english(engine: HFEngine) -> None:
    engine.register_extraction("r", [])
    text = engine.generate("r", "The capital of France is", {"max_new_tokens": 8, "do_sample": False}, make_router())
    engine.unregister_extraction("r")
    assert text.startswith(" the capital of the country")


def test_its_records_equal_its_hidden_states(engine: HFEngine) -> None:
    prompts = ["The capital of France is", "Add two spoons of"]
    arguments = {"max_new_tokens": 6, "do_sample": False}
    points = [
        make_point(layers=(0, 8, 16)),
        make_point("norm", layers=(18,), tensor_type=TensorType.FINAL_NORM),
    ]
    for name in ("a", "b"):
        engine.register_extraction(name, points)
    generations = engine.generate_batch(["a", "b"], prompts, arguments, make_router())
    batch: Any = engine.tokenizer(prompts, return_tensors="pt", padding=True)
    reference = engine.model.generate(**batch, **arguments, output_hidden_states=True, return_dict_in_generate=True)
    columns = batch["input_ids"].shape[1]
    compared = 0
    for row, generation in enumerate(generations):
        padding = columns - generation.prompt_len
        for result in generation.results.values():
            for layer, position, _, tensor in result.verdict:
                step = position + padding - columns + 1
                assert torch.equal(tensor, reference.hidden_states[step][min(layer + 1, 18)][row, -1])
                compared += 1
    assert compared == 2 * (3 + 1) * 5


def test_the_unpacked_folder_is_complete_and_found_again(engine: HFEngine) -> None:
    folder = find_packaged_model(cache_folder() / "models")
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert engine.capabilities.layer_count == 18
    assert os.access(folder / "model.safetensors", os.R_OK)
    assert Path(engine.model.config.name_or_path) == folder
