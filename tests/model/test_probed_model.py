"""`ProbedModel`: construction, texts, lists, errors, closing."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_points import PROBES, make_point

from undercurrent import GenerationOutput, ProbedModel
from undercurrent.core import ProbeAction, ProbeResult, ProbeSignal
from undercurrent.engines import EngineAdapter, EngineLimitationError, Recording, SyntheticEngine, replay
from undercurrent.errors import (
    MissingDependencyError,
    ProbedModelConfigError,
    ProbingRuntimeError,
    ProbingTypeError,
    ProbingValueError,
    RouterError,
    SpecValidationError,
)
from undercurrent.model import DEFAULT_MAX_NEW_TOKENS
from undercurrent.router import InMemoryMetricsRegistry, Router
from undercurrent.spec import ProbeKind, TensorType

ABORT = {"probe_type": "abort", "probe_args": {"count": 2}}
YAML = """
extraction_points:
  - {name: point, layers: 1, tensor_type: residual_stream, position: "generated[*]", probe_type: keep,
     probe_kind: trajectory}
"""


class Recorded(EngineAdapter):
    """An adapter with the four methods of 0.1.0: it opens and ends its requests at the router itself."""

    max_concurrency = 1

    def __init__(self) -> None:
        self.engine = SyntheticEngine(layer_count=4, hidden_size=8)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def load_model(self, name: Any, **options: Any) -> None:
        self.calls.append((name, options))

    def register_extraction(self, request_id: str, points: Sequence[Any]) -> None:
        self.engine.register_extraction(request_id, points)

    def generate(self, request_id: str, prompt: Any, generation_kwargs: Any, router: Any) -> str:
        self.calls.append((prompt, dict(generation_kwargs)))
        return self.engine.generate(request_id, prompt, {"max_new_tokens": 4}, router)

    def unregister_extraction(self, request_id: str) -> None:
        self.engine.unregister_extraction(request_id)


# ---- construction ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "text", "mapping", "points", "none"])
def test_a_spec_may_come_in_every_form(kind: str, engine: SyntheticEngine, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(YAML)
    specs = {"path": path, "text": YAML, "mapping": {"extraction_points": []}, "points": [make_point()], "none": None}
    with ProbedModel(backend=engine, spec=specs[kind], probes=PROBES) as model:
        assert model.spec.names == (() if kind in ("mapping", "none") else ("point",))
        assert model.adapter is engine


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"spec": [make_point(), 3]}, ProbingTypeError, "must hold `ExtractionPoint`s only, got 3"),
        ({"spec": [make_point(), make_point()]}, ProbedModelConfigError, "used twice: point"),
        ({"spec": 3}, ProbingTypeError, "a spec must be a path"),
        ({"spec": "extraction_points: 3"}, SpecValidationError, "extraction_points"),
        ({"spec": [make_point(probe_type="kep")]}, ProbedModelConfigError, "did you mean 'keep'"),
        ({"spec": [make_point(probe_kind=ProbeKind.SINGLE_SHOT)]}, ProbedModelConfigError, "a 'trajectory' probe"),
        ({"spec": [make_point(tensor_type=TensorType.KV)]}, ProbedModelConfigError, "no `tensor_type` 'kv'"),
        ({"spec": [make_point(layers=(9,))]}, ProbedModelConfigError, "must be 0 to 3, got 9"),
        ({"spec": [make_point(position="generated[-1]")]}, ProbedModelConfigError, "not known while it runs"),
        ({"router": Router(PROBES)}, ProbingValueError, "`router` cannot be combined"),
        ({"router": Router(PROBES), "probes": None, "router_kwargs": {}}, ProbingValueError, "cannot be combined"),
        (
            {"metrics_sink": InMemoryMetricsRegistry(), "router_kwargs": {"metrics_sink": InMemoryMetricsRegistry()}},
            ProbingValueError,
            "given twice",
        ),
        ({"router_kwargs": {"drain_timeout": -1}}, ProbingValueError, "drain_timeout"),
        ({"backend": "hff", "model": "x"}, ProbingValueError, "did you mean 'hf'"),
        ({"backend": 3}, ProbingTypeError, "or an `EngineAdapter` instance, got int"),
        ({"backend": "hf"}, ProbingValueError, "None needs a loaded engine"),
        ({"backend": "vllm", "model": "x"}, MissingDependencyError, "no vLLM engine"),
        ({"backend": "vllm", "model": "x", "device": "cpu"}, ProbedModelConfigError, "CUDA devices"),
        ({"backend": "vllm", "model": object()}, ProbingTypeError, "name or folder, got a object"),
        ({"max_concurrency": 0}, ProbingValueError, "`max_concurrency` must be an integer >= 1, got 0"),
        ({"max_concurrency": True}, ProbingValueError, "got True"),
        ({"backend": "hf", "model": "x", "max_concurrency": 2}, ProbedModelConfigError, "its size is `batch_size`"),
        ({"batch_size": 0}, ProbingValueError, "`batch_size` must be an integer >= 1, got 0"),
        ({"revision": "main"}, ProbingTypeError, "'revision' has no use"),
        ({"log_sink": object()}, ProbingTypeError, "write_signal"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    arguments: dict[str, Any], error: type[Exception], message: str, engine: SyntheticEngine
) -> None:
    with pytest.raises(error, match=message):
        ProbedModel(**{"backend": engine, "probes": PROBES, **arguments})


def test_a_spec_that_does_not_fit_fails_before_weights_are_read(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny["model"].config.save_pretrained(tmp_path)  # a model without weights
    for wrong in ({"layers": (4,)}, {"tensor_type": TensorType.KV}, {"probe_type": "nobody"}):
        with pytest.raises(ProbedModelConfigError):
            ProbedModel(str(tmp_path), spec=[make_point(**wrong)], probes=PROBES)
    with pytest.raises(OSError, match="no file named"):
        ProbedModel(str(tmp_path), spec=[make_point()], probes=PROBES)


def test_a_model_object_needs_its_tokenizer(tiny: dict[str, Any]) -> None:
    with pytest.raises(ProbedModelConfigError, match="needs its `tokenizer`"):
        ProbedModel(tiny["model"])


def test_a_router_that_was_passed_in_is_used_and_left_open(engine: SyntheticEngine) -> None:
    with Router(PROBES) as router:
        with ProbedModel(backend=engine, spec=[make_point()], router=router) as model:
            assert model.router is router
            model.generate("abc")
        router.register_request("later", [], _context("later"))


def test_from_pretrained_is_the_constructor(engine: SyntheticEngine) -> None:
    with ProbedModel.from_pretrained(backend=engine, spec=[make_point()], probes=PROBES) as model:
        assert model.generate("abc").probe_results["point"].verdict


# ---- texts -----------------------------------------------------------------------------------------------------------


def test_generate_gives_the_text_of_the_model_and_results_by_point(tiny: dict[str, Any]) -> None:
    with ProbedModel(**tiny, spec=[make_point()], probes=PROBES) as model:
        output = model.generate("some text")
    tokens = tiny["tokenizer"]("some text", return_tensors="pt")
    plain = tiny["model"].generate(**tokens, max_new_tokens=DEFAULT_MAX_NEW_TOKENS, do_sample=False)
    assert output.token_ids == tuple(plain[0, tokens["input_ids"].shape[1] :].tolist())
    assert (output.prompt, output.finish_reason, output.aborted) == ("some text", "length", False)
    assert [row[1] for row in output.probe_results["point"].verdict] == list(range(10, 10 + DEFAULT_MAX_NEW_TOKENS - 1))


def test_an_abort_is_known_with_the_text(tiny: dict[str, Any]) -> None:
    with ProbedModel(**tiny, spec=[make_point(**ABORT)], probes=PROBES) as model:
        output = model.generate("some text")
    assert (output.aborted, output.abort_point, output.finish_reason) == (True, "point", "abort")
    assert output.abort_signal is not None
    assert output.abort_signal.action is ProbeAction.ABORT
    assert output.abort_reason == "the probe of 'point' stopped the generation"
    assert len(output.token_ids) == 3


def test_a_stop_string_is_not_in_the_text(tiny: dict[str, Any]) -> None:
    with ProbedModel(**tiny) as model:
        whole = model.generate("some text").text
        letter = next(letter for letter in whole[2:] if letter.isascii() and letter not in whole[:2])
        cut = model.generate("some text", stop=[letter, "never"])
    assert cut.text == whole[: whole.index(letter)]
    assert cut.finish_reason == "stop"


def test_a_seed_gives_the_same_alone_and_in_a_list_and_moves_no_generator(tiny: dict[str, Any]) -> None:
    import torch

    with ProbedModel(**tiny) as model:
        state = torch.random.get_rng_state()
        alone = model.generate("b", temperature=1.0, top_p=0.9, seed=7)
        listed = model.generate(["aaa", "b"], temperature=1.0, top_p=0.9, seed=7)
        other = model.generate("b", temperature=1.0, top_p=0.9, seed=8)
    assert alone.token_ids == listed[1].token_ids != other.token_ids
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_new_tokens": 0}, ProbingValueError, "`max_new_tokens` must be >= 1, got 0"),
        ({"max_new_tokens": 2.0}, ProbingTypeError, "must be an integer"),
        ({"temperature": -1}, ProbingValueError, "0 is greedy"),
        ({"temperature": float("nan")}, ProbingValueError, "must be >= 0, got nan"),
        ({"temperature": "hot"}, ProbingTypeError, "must be a number"),
        ({"seed": "x"}, ProbingTypeError, "`seed` must be an integer"),
        ({"stop": [""]}, ProbingValueError, "no empty string"),
        ({"stop": [3]}, ProbingTypeError, "a list of strings, got 3"),
    ],
)
def test_arguments_out_of_range_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str, engine: SyntheticEngine
) -> None:
    with ProbedModel(backend=engine) as model, pytest.raises(error, match=message):
        model.generate("abc", **arguments)


# ---- lists -----------------------------------------------------------------------------------------------------------


def test_a_list_runs_as_batches_and_comes_back_in_order(engine: SyntheticEngine, monkeypatch: Any) -> None:
    sizes: list[int] = []
    generate_batch = engine.generate_batch

    def count(request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(request_ids))
        return generate_batch(request_ids, *args, **kwargs)

    monkeypatch.setattr(engine, "generate_batch", count)
    prompts = ["a", "bb", "ccc", "dddd", "e"]
    with ProbedModel(backend=engine, spec=[make_point()], probes=PROBES, batch_size=3) as model:
        outputs = model.generate(prompts, max_new_tokens=4)
        assert model.generate([]) == []
    assert sizes == [3, 2]
    assert [output.prompt for output in outputs] == prompts
    assert [output.probe_results["point"].verdict[0][1] for output in outputs] == [1, 2, 3, 4, 1]


def test_prompts_of_a_batch_give_what_they_give_alone(tiny: dict[str, Any]) -> None:
    prompts = ["some text", "another one, which is longer", "x"]
    with ProbedModel(**tiny, spec=[make_point()], probes=PROBES) as model:
        together = model.generate(prompts, max_new_tokens=6)
        alone = [model.generate(prompt, max_new_tokens=6) for prompt in prompts]
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        mine, reference = one.probe_results["point"].verdict, other.probe_results["point"].verdict
        assert [row[:3] for row in mine] == [row[:3] for row in reference]
        assert all(a[3].allclose(b[3], atol=1e-4) for a, b in zip(mine, reference, strict=True))


def test_a_prompt_that_fails_leaves_its_neighbours_alone(engine: SyntheticEngine) -> None:
    with ProbedModel(backend=engine, spec=[make_point()], probes=PROBES) as model:
        first, empty, last = model.generate(["abc", "", "de"], return_exceptions=True)
        assert isinstance(empty, EngineLimitationError)
        assert isinstance(first, GenerationOutput)
        assert isinstance(last, GenerationOutput)
        with pytest.raises(EngineLimitationError, match="no tokens"):
            model.generate(["abc", ""])


def test_a_probe_that_raises_fails_its_own_prompt(engine: SyntheticEngine) -> None:
    point = make_point(probe_type="broken", position=2)
    with ProbedModel(backend=engine, spec=[point], probes=PROBES) as model:
        outcomes = model.generate(["a", "bbb"], max_new_tokens=1, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == ["GenerationOutput", "RuntimeError"]
        with pytest.raises(RuntimeError, match="this probe is broken"):
            model.generate("bbb")


def test_the_first_failure_keeps_what_has_not_begun_from_running(engine: SyntheticEngine) -> None:
    told: list[str] = []
    with ProbedModel(backend=engine, batch_size=1, on_result=lambda output: told.append(output.prompt)) as model:
        with pytest.raises(EngineLimitationError):
            model.generate(["a", "", "c"])
        assert told == ["a"]
        model.generate(["a", "", "c"], return_exceptions=True)
        assert told == ["a", "a", "c"]


def test_on_result_is_called_before_generate_returns_and_its_errors_are_logged(
    engine: SyntheticEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(output: GenerationOutput) -> None:
        raise RuntimeError(output.prompt)

    with ProbedModel(backend=engine, on_result=fail) as model:
        assert model.generate("abc").prompt == "abc"
    assert "`on_result` raised" in caplog.text


@pytest.mark.parametrize("prompt", [3, b"abc", None, ["a", 3]])
def test_a_prompt_is_text(prompt: Any, engine: SyntheticEngine) -> None:
    with ProbedModel(backend=engine) as model, pytest.raises((ProbingTypeError, TypeError)):
        model.generate(prompt)


# ---- adapters of 0.1.0 as backend ------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [None, 3])
def test_an_adapter_with_four_methods_runs(concurrency: int | None) -> None:
    adapter = Recorded()
    spec = [make_point(**ABORT), make_point("other")]
    with ProbedModel(
        "name", backend=adapter, spec=spec, probes=PROBES, device="cpu", max_concurrency=concurrency, dtype="x"
    ) as model:
        assert model.max_concurrency == (concurrency or 1)
        outputs = model.generate(["abc", "de", "f"], temperature=0.5)
        with model.stream("abc") as stream, pytest.raises(EngineLimitationError, match="gives its text at the end"):
            list(stream)
    assert adapter.calls[0] == ("name", {"device": "cpu", "dtype": "x"})
    assert sorted(adapter.calls[1:]) == sorted((prompt, {"temperature": 0.5}) for prompt in ("abc", "de", "f"))
    assert [len(output.probe_results["other"].verdict) for output in outputs] == [2, 2, 2]


def test_an_abort_that_an_adapter_does_not_report_is_found_in_the_history() -> None:
    class Remember(PROBES["abort"].probe_cls):  # type: ignore[misc, name-defined]
        def on_activation(self, record: Any) -> Any:
            self.signal = super().on_activation(record)
            return self.signal

        def on_end(self, request_ctx: Any) -> ProbeResult:
            return ProbeResult(self.request_id, self.extraction_point_name, None, signal_history=[self.signal])

    adapter = Recorded()
    with ProbedModel(backend=adapter, spec=[make_point(**ABORT)], probes={"abort": Remember}) as model:
        output = model.generate("abc")
    assert (output.aborted, output.abort_point, len(output.text)) == (True, "point", 3)


# ---- outputs and closing ---------------------------------------------------------------------------------------------


def test_an_output_is_a_frozen_value_that_survives_pickling() -> None:
    signal = ProbeSignal(ProbeAction.ABORT, confidence=0.75)
    output = GenerationOutput("text", "prompt", "r", {"p": ProbeResult("r", "p", 1)}, True, "why", signal, "p")
    assert pickle.loads(pickle.dumps(output)) == output
    assert GenerationOutput("text", "prompt", "r").probe_results == {}
    assert repr(output) == "GenerationOutput(text='text', request_id='r', abort_point='p', probe_results=['p'])"
    with pytest.raises(AttributeError):
        output.text = "other"  # type: ignore[misc]


def test_close_is_idempotent_and_final(engine: SyntheticEngine) -> None:
    model = ProbedModel(backend=engine, spec=[make_point()], probes=PROBES)
    output = model.generate("abc")
    model.close()
    model.close()
    assert output.probe_results["point"].verdict
    for call in (lambda: model.generate("abc"), lambda: model.stream("abc"), lambda: model.adapter):
        with pytest.raises(ProbingRuntimeError, match="closed"):
            call()
    with pytest.raises(RouterError):
        model.router.register_request("r", [], _context("r"))


def test_close_within_on_result_waits_for_nobody(engine: SyntheticEngine) -> None:
    models: list[ProbedModel] = []
    model = ProbedModel(backend=engine, on_result=lambda _output: models[0].close())
    models.append(model)
    assert model.generate("abc").text


def _context(request_id: str) -> Any:
    from undercurrent.core import RequestContext

    return RequestContext(request_id, {}, None)


def test_recording_keeps_the_traffic_while_probes_watch(engine: SyntheticEngine, tmp_path: Path) -> None:
    with ProbedModel(backend=engine, spec=[make_point()], probes=PROBES) as model:
        model.generate("before")
        with model.record_to(tmp_path / "r") as recorder:
            outputs = model.generate(["abc", "de"], max_new_tokens=4)
            *_, streamed = model.stream("xyz", max_new_tokens=4)
            with pytest.raises(ProbingRuntimeError, match="one recording at a time"), model.record_to(tmp_path / "s"):
                pass
        model.generate("after")
        assert recorder.record_count == 9
        assert isinstance(streamed, GenerationOutput)
        with Router(PROBES) as router:
            outcomes = list(replay(Recording(tmp_path / "r"), model.spec, router))
    for output, outcome in zip([*outputs, streamed], outcomes, strict=True):
        assert outcome.request.request_id == output.request_id
        replayed, live = outcome.results["point"].verdict, output.probe_results["point"].verdict
        assert [(row[:3], row[3].tolist()) for row in replayed] == [(row[:3], row[3].tolist()) for row in live]
