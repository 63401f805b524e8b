"""The engine without a model feeds a real router with rows that say whose they are."""

from __future__ import annotations

import time

import numpy as np
import pytest
from engine_points import make_point, make_router, positions

from undercurrent.engines import EngineLimitationError, FinishReason, SyntheticEngine
from undercurrent.errors import ProbingRuntimeError, ProbingTypeError, ProbingValueError
from undercurrent.spec import TensorType

_ATTN = TensorType.ATTN_OUT


def _engine(**fields: object) -> SyntheticEngine:
    return SyntheticEngine(**{"layer_count": 4, "hidden_size": 16, **fields})


def test_every_record_is_the_row_of_its_request_layer_and_position() -> None:
    engine, router = _engine(), make_router()
    names = ["a", "b", "c"]
    for name in names:
        engine.register_extraction(
            name, [make_point(layers=(0, 3)), make_point("last", position="prompt[-1]", tensor_type=_ATTN)]
        )
    generations = engine.generate_batch(names, ["hello", "hi", "a longer one"], {"max_new_tokens": 5}, router)

    for name, generation in zip(names, generations, strict=True):
        seen = generation.results["point"].verdict
        assert len(seen) == 2 * 4
        for layer, position, is_generated, tensor in seen:
            assert is_generated
            assert np.array_equal(tensor, engine.activation(name, layer, TensorType.RESIDUAL_STREAM, position))
        [(_, position, is_generated, tensor)] = generation.results["last"].verdict
        assert (position, is_generated) == (generation.prompt_len - 1, False)
        assert np.array_equal(tensor, engine.activation(name, 1, _ATTN, position))
        assert tensor[:2].tolist() == [position, engine.marker(name)]


def test_equal_requests_give_equal_text_and_records() -> None:
    texts = []
    for _ in range(2):
        engine = _engine(seed=3)
        engine.register_extraction("r", [make_point()])
        texts.append(engine.generate("r", "prompt", {"max_new_tokens": 12}, make_router()))
    assert texts[0] == texts[1]
    assert len(texts[0]) == 12
    assert texts[0] == "".join(chr(engine.token("r", index)) for index in range(12))


def test_an_abort_ends_its_row_while_the_others_go_on() -> None:
    engine, router = _engine(), make_router()
    engine.register_extraction("stopped", [make_point(probe_type="abort", probe_args={"count": 2})])
    engine.register_extraction("other", [make_point()])
    stopped, other = engine.generate_batch(["stopped", "other"], ["abc", "de"], {"max_new_tokens": 9}, router)

    assert (stopped.finish_reason, stopped.abort_point) == (FinishReason.ABORT, "point")
    assert stopped.abort_signal.metadata == {"why": "enough"}
    assert positions(stopped) == [3, 4]
    assert len(stopped.token_ids) == 3
    assert (other.finish_reason, len(positions(other)), len(other.token_ids)) == (FinishReason.LENGTH, 8, 9)


def test_a_probe_that_raises_ends_its_own_request_only() -> None:
    engine, router = _engine(), make_router()
    engine.register_extraction("broken", [make_point(probe_type="broken"), make_point("beside")])
    engine.register_extraction("other", [make_point()])
    broken, other = engine.generate_batch(["broken", "other"], ["abc", "de"], {"max_new_tokens": 6}, router)

    assert broken.finish_reason is FinishReason.ERROR
    assert str(broken.error) == "this probe is broken"
    assert len(positions(broken)) == 1
    assert len(positions(other)) == 5


def test_generate_raises_what_the_probe_raised_and_ends_the_request() -> None:
    engine, router = _engine(), make_router()
    engine.register_extraction("r", [make_point(probe_type="broken")])
    with pytest.raises(RuntimeError, match="this probe is broken"):
        engine.generate("r", "abc", {}, router)
    assert len(engine.generate_batch(["r"], ["abc"], {"max_new_tokens": 1}, router)) == 1


def test_a_refused_registration_leaves_no_request_open() -> None:
    engine, router = _engine(), make_router()
    engine.register_extraction("a", [make_point()])
    engine.register_extraction("b", [make_point(probe_type="unknown")])
    with pytest.raises(Exception, match="unknown"):
        engine.generate_batch(["a", "b"], ["x", "y"], {}, router)
    assert engine.generate("a", "x", {"max_new_tokens": 2}, router)


def test_the_caller_may_take_the_text_before_the_verdicts() -> None:
    engine, router = _engine(), make_router()
    engine.register_extraction("r", [make_point()])
    [generation] = engine.generate_batch(["r"], ["abc"], {"max_new_tokens": 4}, router, ends_requests=False)
    assert generation.results == {}
    assert len(router.end_request("r")["point"].verdict) == 3


def test_busy_steps_cost_cpu_time_and_waiting_steps_do_not() -> None:
    busy, waiting = _engine(step_busy_s=0.01), _engine(step_wait_s=0.01)
    spent = []
    for engine in (busy, waiting):
        engine.register_extraction("r", [])
        begin = time.thread_time()
        engine.generate("r", "abc", {"max_new_tokens": 20}, make_router())
        spent.append(time.thread_time() - begin)
    assert spent[0] > 4 * spent[1]


@pytest.mark.parametrize("fields", [{"layer_count": 0}, {"hidden_size": 1}, {"step_busy_s": -1}, {"step_wait_s": -1}])
def test_impossible_sizes_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ProbingValueError):
        _engine(**fields)


def test_what_it_does_not_know_is_refused() -> None:
    engine = _engine()
    with pytest.raises(ProbingTypeError, match="takes no options"):
        engine.load_model("any", device="cuda")
    engine.register_extraction("r", [])
    with pytest.raises(EngineLimitationError, match="temperature"):
        engine.generate("r", "abc", {"temperature": 1}, make_router())
    with pytest.raises(EngineLimitationError, match="no tokens"):
        engine.generate("r", "", {}, make_router())
    with pytest.raises(ProbingRuntimeError, match="not registered"):
        engine.generate("other", "abc", {}, make_router())
