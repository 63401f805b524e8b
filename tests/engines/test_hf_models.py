"""Which models and prompts the transformers engine takes, and which it refuses with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_points import make_point, make_router, positions

from undercurrent.engines import EngineLimitationError, HFEngine
from undercurrent.errors import ProbingRuntimeError, ProbingTypeError
from undercurrent.spec import TensorType

_GREEDY = {"max_new_tokens": 8, "do_sample": False}


def test_prompts_may_be_token_ids_and_must_not_be_empty(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [])
    ids = engine.tokenizer("some text")["input_ids"]
    assert engine.generate("r", ids, _GREEDY, router) == engine.generate("r", "some text", _GREEDY, router)
    with pytest.raises(EngineLimitationError, match="no tokens"):
        engine.generate("r", [], _GREEDY, router)
    with pytest.raises(ProbingTypeError, match="one prompt per request"):
        engine.generate_batch(["r"], ["a", "b"], _GREEDY, router)
    assert engine.generate_batch([], [], _GREEDY, router) == []


def test_a_model_without_a_tokenizer_takes_token_ids(load: Callable[..., Any]) -> None:
    engine, router = HFEngine(), make_router()
    with pytest.raises(ProbingRuntimeError, match="no model is loaded"):
        engine.register_extraction("r", [])
    engine.load_model(load().model)
    engine.register_extraction("r", [make_point()])
    [generation] = engine.generate_batch(["r"], [[5, 6, 7]], _GREEDY, router)
    assert (generation.text, len(positions(generation))) == ("", 7)
    with pytest.raises(EngineLimitationError, match="without a tokenizer"):
        engine.generate("r", "text", _GREEDY, router)
    with pytest.raises(ProbingTypeError, match="no loading options"):
        engine.load_model(load().model, dtype="float16")


def test_a_model_is_loaded_from_a_folder(load: Callable[..., Any], tmp_path: Any) -> None:
    tiny = load()
    tiny.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    engine, router = HFEngine(), make_router()
    engine.load_model(tmp_path, shows_progress=False)
    for each in (tiny, engine):
        each.register_extraction("r", [])
    assert engine.generate("r", "some text", _GREEDY, router) == tiny.generate("r", "some text", _GREEDY, router)


def test_a_model_without_one_list_of_layers_is_refused() -> None:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    config = AutoConfig.for_model(
        "t5", d_model=16, d_kv=4, d_ff=16, num_layers=1, num_decoder_layers=1, num_heads=2, vocab_size=32
    )
    models: Any = AutoModelForSeq2SeqLM
    with pytest.raises(EngineLimitationError, match="encoder-decoder"):
        HFEngine().load_model(models.from_config(config))


def _from_config(model_type: str, **settings: Any) -> HFEngine:
    from transformers import AutoConfig, AutoModelForCausalLM

    models: Any = AutoModelForCausalLM
    config = AutoConfig.for_model(
        model_type, vocab_size=64, hidden_size=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, **settings
    )
    engine = HFEngine()
    engine.load_model(models.from_config(config).eval())
    return engine


def test_parts_that_add_the_stream_themselves_are_not_offered() -> None:
    engine = _from_config("bloom", n_layer=2, n_head=4)
    assert engine.capabilities.tensor_types == {TensorType.RESIDUAL_STREAM, TensorType.FINAL_NORM}
    with pytest.raises(EngineLimitationError, match="gives no `tensor_type` 'mlp_out'"):
        engine.register_extraction("r", [make_point(tensor_type=TensorType.MLP_OUT)])


def test_a_cache_that_does_not_tell_its_length_is_refused_and_generation_without_it_is_read() -> None:
    engine, router = _from_config("mamba", num_hidden_layers=2, state_size=4), make_router()
    engine.register_extraction("r", [make_point()])
    with pytest.raises(EngineLimitationError, match="does not tell how many tokens it holds"):
        engine.generate("r", [5, 6, 7], _GREEDY, router)
    [generation] = engine.generate_batch(
        ["r"], [[5, 6, 7]], {**_GREEDY, "min_new_tokens": 8, "use_cache": False}, router
    )
    assert positions(generation) == list(range(3, 10))


def test_ambiguous_layers_are_refused(load: Callable[..., Any]) -> None:
    from undercurrent.engines import build_tiny_model

    model, _ = build_tiny_model("llama")
    model.get_decoder().more_layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(4))
    with pytest.raises(EngineLimitationError, match=r"found 2.*layers \(4\), more_layers \(4\)"):
        HFEngine().load_model(model)
