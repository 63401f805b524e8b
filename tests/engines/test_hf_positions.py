"""Every record is, to the bit, the hidden state that transformers itself reports for that token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_points import make_point, make_router, positions

from undercurrent.engines.tiny import TINY_ARCHITECTURES
from undercurrent.spec import TensorType

_PROMPTS = ("Hello there, friend", "Hi", "A somewhat longer prompt than the two before it")
_REPETITIVE = "one two three one two three one two three one two"
_NEW_TOKENS = 7
_GREEDY = {"max_new_tokens": _NEW_TOKENS, "do_sample": False}

_MODES: dict[str, dict[str, Any]] = {
    "cached": {},
    "uncached": {"use_cache": False},
    "chunked prefill": {"prefill_chunk_size": 5},
    "sampled": {"do_sample": True, "top_k": 5},
}


def _register(engine: Any, names: list[str], *, also: tuple[Any, ...] = ()) -> None:
    layers = tuple(range(engine.num_layers))
    for name in names:
        engine.register_extraction(
            name,
            [
                make_point("generated", layers=layers),
                make_point("first", layers=layers, position=0),
                make_point("third", layers=layers, position="prompt[2]"),
                make_point("last", layers=layers, position="prompt[-1]"),
                make_point("norm", layers=(engine.num_layers,), tensor_type=TensorType.FINAL_NORM),
                *also,
            ],
        )


def _reference(engine: Any, prompts: tuple[str, ...], **arguments: Any) -> tuple[Any, int, list[list[torch.Tensor]]]:
    """What `generate` reports itself: tokens, prompt columns, and per layer one tensor `(rows, columns, hidden)`."""
    batch = engine.tokenizer(list(prompts), return_tensors="pt", padding=True)
    columns = batch["input_ids"].shape[1]
    output = engine.model.generate(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        output_hidden_states=True,
        return_dict_in_generate=True,
        pad_token_id=0,
        **arguments,
    )
    return output.sequences, columns, output.hidden_states


def _column(hidden_states: Any, layer: int, column: int, columns: int, *, is_cached: bool) -> torch.Tensor | None:
    """`(rows, hidden)` at a column, from the step that computed it first; None where none is reported."""
    step = max(0, column - columns + 1)
    states = hidden_states[step][layer]
    place = column if not is_cached else column - columns if step == 0 else -1
    # Only the last chunk of a chunked prefill is reported.
    return states[:, place] if -states.shape[1] <= place < states.shape[1] else None


def _check(
    engine: Any, generations: list[Any], sequences: Any, columns: int, hidden_states: Any, *, is_cached: bool
) -> int:
    compared = 0
    depth = engine.num_layers
    final_norm = engine._modules.final_norm
    for row, generation in enumerate(generations):
        assert generation.token_ids == tuple(sequences[row, columns : columns + len(generation.token_ids)].tolist())
        padding = columns - generation.prompt_len
        for name, result in generation.results.items():
            for layer, position, is_generated, tensor in result.verdict:
                assert is_generated == (position >= generation.prompt_len)
                index = min(layer + 1, depth)
                expected = _column(hidden_states, index, position + padding, columns, is_cached=is_cached)
                if expected is None:
                    continue
                if layer == depth - 1 and name != "norm":
                    # Its output is reported behind the final norm only.
                    tensor = final_norm(tensor[None])[0]
                assert torch.equal(tensor, expected[row]), (generation.request_id, name, layer, position)
                compared += 1
    return compared


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("architecture", TINY_ARCHITECTURES)
def test_records_equal_the_hidden_states_that_generate_reports(load: Any, architecture: str, mode: str) -> None:
    engine, names = load(architecture), ["a", "b", "c"]
    _register(engine, names)
    arguments = {**_GREEDY, **_MODES[mode]}
    torch.manual_seed(1)
    generations = engine.generate_batch(names, list(_PROMPTS), arguments, make_router())
    torch.manual_seed(1)
    sequences, columns, hidden_states = _reference(engine, _PROMPTS, **arguments)

    compared = _check(engine, generations, sequences, columns, hidden_states, is_cached=mode != "uncached")
    per_request = engine.num_layers * (_NEW_TOKENS - 1 + 3) + _NEW_TOKENS - 1
    assert sum(len(result.verdict) for g in generations for result in g.results.values()) == 3 * per_request
    assert compared == 3 * per_request if mode != "chunked prefill" else compared >= 3 * engine.num_layers * _NEW_TOKENS
    for generation in generations:
        assert positions(generation, "norm") == list(
            range(generation.prompt_len, generation.prompt_len + _NEW_TOKENS - 1)
        )


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
@pytest.mark.parametrize("drafts", ["prompt lookup", "assistant"])
def test_refused_drafts_leave_no_record(load: Any, architecture: str, drafts: str) -> None:
    engine, router = load(architecture), make_router()
    arguments: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
    found = {}
    for name, extra in (("plain", {}), ("drafted", _draft_arguments(drafts, architecture))):
        engine.register_extraction(name, [make_point("all", layers=(0, 2)), make_point("last", position="prompt[-1]")])
        [found[name]] = engine.generate_batch([name], [_REPETITIVE], {**arguments, **extra}, router)

    plain, drafted = found["plain"], found["drafted"]
    assert drafted.token_ids == plain.token_ids
    for name in ("all", "last"):
        expected, got = plain.results[name].verdict, drafted.results[name].verdict
        key = lambda row: (row[1], row[0])  # noqa: E731
        assert sorted(row[:3] for row in got) == sorted(row[:3] for row in expected)
        for (*_, mine), (*_, reference) in zip(sorted(got, key=key), sorted(expected, key=key), strict=True):
            # Drafts are computed several at once, and a product of another shape rounds otherwise.
            torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("drafts", ["prompt lookup", "assistant"])
def test_that_generation_has_accepted_and_refused_drafts(load: Any, drafts: str) -> None:
    engine = load()
    engine.register_extraction("r", [])
    steps: list[int] = []
    widths: list[int] = []
    counter = engine.model.register_forward_pre_hook(
        lambda _module, _args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        engine.generate_batch(
            ["r"],
            [_REPETITIVE],
            {"max_new_tokens": 24, "do_sample": False, **_draft_arguments(drafts, "llama")},
            make_router(),
            on_text=lambda _request, _text, tokens: steps.append(len(tokens)),
        )
    finally:
        counter.remove()
    assert sum(steps) == 24
    assert max(steps) > 1
    assert sum(widths[1:]) > sum(steps[1:])


def test_prompt_points_are_read_once_under_beams_and_several_sequences(load: Any) -> None:
    engine, router = load(), make_router()
    tensors = []
    for index, extra in enumerate(({}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2})):
        names = [f"a{index}", f"b{index}"]
        for name in names:
            engine.register_extraction(name, [make_point("last", position="prompt[-1]", layers=(0, 3))])
        generations = engine.generate_batch(names, list(_PROMPTS[:2]), {**_GREEDY, **extra}, router)
        for generation in generations:
            assert [row[:2] for row in generation.results["last"].verdict] == [
                (0, generation.prompt_len - 1),
                (3, generation.prompt_len - 1),
            ]
        tensors.append([row[3] for generation in generations for row in generation.results["last"].verdict])
    for other in tensors[1:]:
        for mine, plain in zip(other, tensors[0], strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5)
    assert len(generations[0].other_texts) == 1


def test_a_batch_of_one_equals_the_request_on_its_own(load: Any) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("alone", [make_point()])
    text = engine.generate("alone", _PROMPTS[0], _GREEDY, router)
    [generation] = engine.generate_batch(["alone"], [_PROMPTS[0]], _GREEDY, router)
    assert (generation.text, len(positions(generation))) == (text, _NEW_TOKENS - 1)


@pytest.mark.parametrize("architecture", TINY_ARCHITECTURES)
def test_the_parts_of_a_layer_add_up_to_the_stream(load: Any, architecture: str) -> None:
    engine, router = load(architecture), make_router()
    kinds = [TensorType.RESIDUAL_STREAM, TensorType.ATTN_OUT, TensorType.MLP_OUT]
    points = [make_point(kind.value, layers=(0, 1), tensor_type=kind) for kind in kinds]
    engine.register_extraction("r", points)
    [generation] = engine.generate_batch(["r"], [_PROMPTS[0]], _GREEDY, router)
    rows = {
        (kind.value, layer, position): tensor
        for kind in kinds
        for layer, position, _, tensor in generation.results[kind.value].verdict
    }
    for (kind, layer, position), stream in rows.items():
        if (kind, layer) != ("residual_stream", 1):
            continue
        before = rows["residual_stream", 0, position]
        attention, mlp = rows["attn_out", 1, position], rows["mlp_out", 1, position]
        if architecture == "gemma3_text":
            # There the parts pass a norm of their own before they are added.
            layer_module = engine._modules.layers[1]
            attention = layer_module.post_attention_layernorm(attention[None])[0]
            mlp = layer_module.post_feedforward_layernorm(mlp[None])[0]
        torch.testing.assert_close(before + attention + mlp, stream, rtol=1e-5, atol=1e-5)


def test_stop_token_and_count_end_capture_on_a_real_model(load: Any) -> None:
    from undercurrent.spec import Until, UntilKind

    engine, router = load(), make_router()
    engine.register_extraction("plain", [])
    [plain] = engine.generate_batch(["plain"], [_PROMPTS[0]], _GREEDY, router)
    token = plain.token_ids[3]
    stop = plain.token_ids.index(token)
    engine.register_extraction(
        "r",
        [
            make_point("stop", until=Until(UntilKind.STOP_TOKEN, token)),
            make_point("count", until=Until(UntilKind.FIXED_COUNT, 2), stride=2),
        ],
    )
    [generation] = engine.generate_batch(["r"], [_PROMPTS[0]], _GREEDY, router)
    first = generation.prompt_len
    assert positions(generation, "stop") == list(range(first, first + stop + 1))
    assert positions(generation, "count") == [first, first + 2]


def test_texts_are_read_as_generation_reads_them(load: Any) -> None:
    engine, router = load(), make_router()
    key = (2, TensorType.RESIDUAL_STREAM)
    read = list(engine.read_texts(list(_PROMPTS), [key, (0, TensorType.MLP_OUT)], batch_size=2))
    for index, prompt in enumerate(_PROMPTS):
        name = f"r{index}"
        engine.register_extraction(name, [make_point(layers=(2,), position="prompt[-1]")])
        [generation] = engine.generate_batch([name], [prompt], _GREEDY, router)
        [(_, position, _, tensor)] = generation.results["point"].verdict
        assert read[index][key].shape == (generation.prompt_len, engine.capabilities.hidden_size)
        torch.testing.assert_close(torch.from_numpy(read[index][key][position]), tensor, rtol=1e-5, atol=1e-5)


def _draft_arguments(drafts: str, architecture: str) -> dict[str, Any]:
    if drafts == "prompt lookup":
        return {"prompt_lookup_num_tokens": 3}
    from undercurrent.engines import build_tiny_model

    # A copy of the model whose last layers are gone agrees with it now and then.
    assistant, _ = build_tiny_model(architecture)
    layers = assistant.get_decoder().layers
    del layers[3]
    assistant.config.num_hidden_layers = 3
    return {"assistant_model": assistant}
