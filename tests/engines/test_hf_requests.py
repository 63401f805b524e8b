"""The life of a request on a transformers model: aborts, errors, threads, streams, hooks, copies."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from engine_points import make_point, make_router, positions

from undercurrent.engines import CaptureAuditError, EngineLimitationError, FinishReason
from undercurrent.errors import ProbingRuntimeError
from undercurrent.spec import TensorType

_GREEDY = {"max_new_tokens": 8, "do_sample": False}
_ABORT = {"probe_type": "abort", "probe_args": {"count": 2}}


def test_an_abort_ends_one_row_of_a_batch_while_the_others_go_on(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    for name, fields in (("a", {}), ("b", _ABORT), ("c", {})):
        engine.register_extraction(name, [make_point(**fields)])
    prompts = ["first prompt", "2nd", "the third prompt"]
    undisturbed = [
        engine.generate_batch([name], [prompt], _GREEDY, router)[0]
        for name, prompt in zip("ac", prompts[::2], strict=True)
    ]
    a, b, c = engine.generate_batch(["a", "b", "c"], prompts, _GREEDY, router)

    assert (b.finish_reason, b.abort_point, len(b.token_ids)) == (FinishReason.ABORT, "point", 3)
    assert positions(b) == [b.prompt_len, b.prompt_len + 1]
    assert [a.text, c.text] == [generation.text for generation in undisturbed]
    assert [a.finish_reason, c.finish_reason] == [FinishReason.LENGTH] * 2
    assert len(positions(a)) == len(positions(c)) == 7


def test_an_abort_at_the_prompt_still_returns_one_token(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point(position="prompt[-1]", probe_type="abort", probe_args={"count": 1})])
    [generation] = engine.generate_batch(["r"], ["some text"], _GREEDY, router)
    assert (len(generation.token_ids), generation.finish_reason) == (1, FinishReason.ABORT)


def test_an_abort_works_under_beams(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point(position="prompt[-1]", probe_type="abort", probe_args={"count": 1})])
    [generation] = engine.generate_batch(["r"], ["some text"], {**_GREEDY, "num_beams": 3}, router)
    assert (len(generation.token_ids), generation.finish_reason) == (1, FinishReason.ABORT)


def test_a_probe_that_raises_ends_its_own_request_only(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("broken", [make_point(probe_type="broken", probe_args={"count": 3})])
    engine.register_extraction("other", [make_point()])
    broken, other = engine.generate_batch(["broken", "other"], ["one", "another"], _GREEDY, router)

    assert (broken.finish_reason, str(broken.error)) == (FinishReason.ERROR, "this probe is broken")
    assert len(broken.token_ids) == 4
    assert len(positions(broken)) == 3
    assert (other.finish_reason, len(positions(other))) == (FinishReason.LENGTH, 7)
    with pytest.raises(RuntimeError, match="this probe is broken"):
        engine.generate("broken", "one", _GREEDY, router)


def test_an_end_token_ends_a_row_and_what_is_padded_behind_it_is_not_read(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    names = ["a", "b"]
    for name in names:
        engine.register_extraction(name, [make_point()])
    plain = engine.generate_batch(names, ["one prompt", "two"], _GREEDY, router)
    end = next(token for token in plain[0].token_ids[2:] if token not in plain[1].token_ids)
    ended, other = engine.generate_batch(names, ["one prompt", "two"], {**_GREEDY, "eos_token_id": end}, router)

    length = plain[0].token_ids.index(end) + 1
    assert (ended.finish_reason, ended.token_ids) == (FinishReason.STOP, plain[0].token_ids[:length])
    assert positions(ended) == list(range(ended.prompt_len, ended.prompt_len + length - 1))
    assert (other.finish_reason, len(positions(other))) == (FinishReason.LENGTH, 7)


def test_stop_strings_and_own_criteria_end_a_row(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point()])
    plain = engine.generate("r", "one prompt", {**_GREEDY, "suppress_tokens": list(range(3))}, router)
    letter = plain[2]
    [by_string] = engine.generate_batch(["r"], ["one prompt"], {**_GREEDY, "stop_strings": [letter]}, router)
    [by_rule] = engine.generate_batch(
        ["r"], ["one prompt"], {**_GREEDY, "stopping_criteria": [lambda tokens, _scores: tokens[:, -1] == -1]}, router
    )
    assert by_string.finish_reason is FinishReason.STOP
    assert by_string.text == plain[: plain.index(letter) + 1]
    assert len(positions(by_string)) == len(by_string.token_ids) - 1
    assert by_rule.finish_reason is FinishReason.LENGTH


def test_threads_generate_at_once_and_each_request_gets_its_own_rows(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    prompts = {f"r{index}": f"prompt number {index} " * (1 + index % 3) for index in range(8)}
    points = [make_point(layers=(0, 3)), make_point("norm", layers=(4,), tensor_type=TensorType.FINAL_NORM)]
    alone = {}
    for name, prompt in prompts.items():
        engine.register_extraction(name, points)
        [alone[name]] = engine.generate_batch([name], [prompt], _GREEDY, router)
    barrier = threading.Barrier(4)

    def run(name: str) -> Any:
        if int(name[1:]) < 4:
            barrier.wait(30)
        return engine.generate_batch([name], [prompts[name]], _GREEDY, router)[0]

    with ThreadPoolExecutor(4) as pool:
        together = dict(zip(prompts, pool.map(run, prompts), strict=True))

    for name in prompts:
        assert together[name].text == alone[name].text
        for point in ("point", "norm"):
            mine, reference = together[name].results[point].verdict, alone[name].results[point].verdict
            assert [row[:3] for row in mine] == [row[:3] for row in reference]
            assert all(torch.equal(a[3], b[3]) for a, b in zip(mine, reference, strict=True))


def test_a_probe_that_overwrites_its_records_changes_nothing(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    layers = (0, 1, 2, 3)
    engine.register_extraction("plain", [make_point("a", layers=layers)])
    engine.register_extraction(
        "written", [make_point("w", layers=layers, probe_type="scribble"), make_point("a", layers=layers)]
    )
    [plain] = engine.generate_batch(["plain"], ["some text"], _GREEDY, router)
    [written] = engine.generate_batch(["written"], ["some text"], _GREEDY, router)

    assert written.token_ids == plain.token_ids
    for mine, reference in zip(written.results["a"].verdict, plain.results["a"].verdict, strict=True):
        assert torch.equal(mine[3], reference[3])


def test_a_kept_record_holds_no_more_memory_than_its_row(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point(position="prompt[-1]")])
    [generation] = engine.generate_batch(["r"], ["a long prompt " * 20], _GREEDY, router)
    [(_, _, _, tensor)] = generation.results["point"].verdict
    assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert not tensor.is_inference()


def test_records_of_inference_mode_can_be_written(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point()])
    with torch.inference_mode():
        [generation] = engine.generate_batch(["r"], ["some text"], _GREEDY, router)
    tensor = generation.results["point"].verdict[0][3]
    tensor += 1
    assert not tensor.is_inference()


def test_hooks_are_there_only_while_a_request_needs_them(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    counts: dict[str, list[int]] = {}
    points = {
        "none": [],
        "prompt only": [make_point(layers=(0, 1), position="prompt[-1]")],
        "generated": [make_point(layers=(0, 1))],
    }
    for name, kinds in points.items():
        engine.register_extraction(name, kinds)
        seen = counts.setdefault(name, [])
        engine.generate_batch(
            [name], ["text"], _GREEDY, router, on_text=lambda *_args, seen=seen: seen.append(engine.hook_count)
        )
    # The model and one module per layer.
    assert counts["none"] == [0] * 8
    assert counts["prompt only"] == [3] + [0] * 7
    assert counts["generated"] == [3] * 8


def test_a_stream_gives_the_text_as_it_is_generated(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point()])
    text = engine.generate("r", "some text", _GREEDY, router)
    with engine.stream("r", "some text", _GREEDY, router) as stream:
        pieces = list(stream)
        assert "".join(piece.text for piece in pieces) == stream.generation.text == text
        assert [token for piece in pieces for token in piece.token_ids] == list(stream.generation.token_ids)
        assert len(positions(stream.generation)) == 7
        assert list(stream) == []


def test_closing_a_stream_ends_the_generation(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point()])
    stream = engine.stream("r", "some text", {**_GREEDY, "max_new_tokens": 1500}, router)
    with stream:
        with pytest.raises(ProbingRuntimeError, match="has not ended"):
            _ = stream.generation
        first = next(stream)
    assert len(first.token_ids) == 1
    assert stream.generation.finish_reason is FinishReason.CANCELLED
    assert len(stream.generation.token_ids) < 1500
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("undercurrent-generate")]


def test_dropping_a_stream_ends_the_generation(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [])
    stream = engine.stream("r", "some text", {**_GREEDY, "max_new_tokens": 1500}, router)
    next(stream)
    run, thread = stream._run, stream._thread
    del stream
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    assert run.result.finish_reason is FinishReason.CANCELLED


def test_a_stream_raises_what_ended_it(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point(probe_type="broken", probe_args={"count": 2})])
    with engine.stream("r", "text", _GREEDY, router) as stream, pytest.raises(RuntimeError, match="broken"):
        list(stream)
    assert len(stream.generation.token_ids) == 3
    with engine.stream("r", "", {**_GREEDY, "num_beams": 2}, router) as stream:
        with pytest.raises(EngineLimitationError, match="has several"):
            list(stream)
        assert list(stream) == []


def test_cancel_ends_a_running_request_and_knows_no_other(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("a", [])
    engine.register_extraction("b", [])

    def cancel_a(request_id: str, _text: str, _tokens: tuple[int, ...]) -> None:
        if request_id == "a":
            assert engine.cancel("a")

    a, b = engine.generate_batch(["a", "b"], ["x", "y"], _GREEDY, router, on_text=cancel_a)
    assert (a.finish_reason, len(a.token_ids)) == (FinishReason.CANCELLED, 1)
    assert (b.finish_reason, len(b.token_ids)) == (FinishReason.LENGTH, 8)
    assert not engine.cancel("a")


def test_characters_of_several_tokens_are_streamed_whole(load: Callable[..., Any]) -> None:
    from undercurrent.engines.hf_text import TextPieces

    tokenizer = load().tokenizer
    text = "héllo 🌊 wörld"
    pieces = TextPieces(tokenizer)
    shown = [pieces.push([token]) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert "".join(shown) == text
    assert "�" not in "".join(shown)
    cut = TextPieces(tokenizer)
    assert cut.push(tokenizer("🌊", add_special_tokens=False)["input_ids"][:2]) == ""
    assert cut.finish() == "�"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 2}, "point 'point' reads generated tokens"),
        ({"do_sample": True, "num_return_sequences": 2}, "has several"),
        ({"guidance_scale": 2.0}, "a second time per token"),
        ({"penalty_alpha": 0.5, "top_k": 4}, "decoding loop of its own"),
        ({"num_beam_groups": 2, "num_beams": 2}, "`num_beam_groups`"),
        ({"custom_generate": "somewhere/else"}, "decoding loop of its own"),
        ({"assistant_early_exit": 2}, "drafts with the layers that are read"),
        ({"use_mtp": True}, "drafts with the layers that are read"),
        ({"cache_implementation": "paged"}, "packs the tokens of all requests"),
        ({"token_healing": True}, "changes the prompt"),
        ({"synced_gpus": True}, "no token of this call"),
        ({"past_key_values": object()}, "not computed again"),
        ({"cache": object()}, "not computed again"),
        ({"input_ids": [[1]]}, "builds it from the prompts"),
        ({"inputs_embeds": [[1]]}, "builds it from the prompts"),
    ],
)
def test_a_way_of_generating_that_would_misplace_rows_is_refused(
    load: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point()])
    with pytest.raises(EngineLimitationError, match=message):
        engine.generate("r", "text", {**_GREEDY, **arguments}, router)
    assert engine.generate("r", "text", _GREEDY, router)


def test_an_assistant_that_shares_layers_is_refused(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point()])
    with pytest.raises(EngineLimitationError, match="shares layers"):
        engine.generate("r", "text", {**_GREEDY, "assistant_model": engine.model}, router)


def test_drafts_for_a_batch_are_refused(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    for name in ("a", "b"):
        engine.register_extraction(name, [])
    with pytest.raises(EngineLimitationError, match="one prompt at a time"):
        engine.generate_batch(["a", "b"], ["x", "y"], {**_GREEDY, "prompt_lookup_num_tokens": 2}, router)


def test_a_stray_forward_pass_is_found_and_nothing_of_its_step_is_routed(load: Callable[..., Any]) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point()])

    def stray(tokens: Any, scores: Any) -> Any:
        # What a guided decoding of another library may do: one more pass of the same model within a step.
        engine.model(input_ids=tokens[:, -1:])
        return scores

    with pytest.raises(CaptureAuditError, match="something else than `generate` runs this model"):
        engine.generate("r", "text", {**_GREEDY, "logits_processor": [stray]}, router)
    assert engine.generate("r", "text", _GREEDY, router)


def test_a_compiled_layer_that_runs_without_its_hook_is_found(load: Callable[..., Any], monkeypatch: Any) -> None:
    engine, router = load(), make_router()
    engine.register_extraction("r", [make_point(layers=(1,))])
    layer = engine.model.get_decoder().layers[1]
    # A compiled graph calls what it traced, not the module.
    monkeypatch.setattr(layer, "_call_impl", layer.forward)
    monkeypatch.setattr(type(layer), "__call__", lambda self, *args, **kwargs: self.forward(*args, **kwargs))
    with pytest.raises(CaptureAuditError, match="did not run through its 'residual_stream' hook"):
        engine.generate("r", "text", _GREEDY, router)
