"""Adapters as 0.1.0 had them: importable with one warning, and code written for them runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from engine_points import make_point, make_router

from undercurrent import EngineAdapter
from undercurrent.core import ProbeAction
from undercurrent.engines import build_tiny_model
from undercurrent.errors import MissingDependencyError, ProbingError, RouterError
from undercurrent.spec import TensorType

pytestmark = pytest.mark.filterwarnings("ignore:`undercurrent.adapters` is now")

_GREEDY = {"max_new_tokens": 6, "do_sample": False}


@pytest.fixture(scope="module")
def adapter() -> Iterator[Any]:
    from undercurrent.adapters.hf import HFEngineAdapter

    adapter = HFEngineAdapter()
    model, tokenizer = build_tiny_model()
    adapter.load_model(model, tokenizer=tokenizer, device="cpu")
    yield adapter
    adapter.close()
    assert adapter.hook_count == 0


def test_importing_adapters_warns_once_and_loads_neither_torch_nor_vllm(tmp_path: Any) -> None:
    program = (
        "import sys, warnings\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    import undercurrent.adapters, undercurrent.adapters.vllm, undercurrent.adapters\n"
        "print([(w.category.__name__, w.filename == __file__) for w in seen if 'undercurrent' in str(w.message)])\n"
        "print({'torch', 'vllm'} & set(sys.modules))\n"
    )
    script = tmp_path / "imports.py"
    script.write_text(program)
    answer = subprocess.run([sys.executable, "-P", str(script)], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["[('DeprecationWarning', True)]", "set()"]


def test_every_name_of_the_old_adapters_is_there() -> None:
    import undercurrent.adapters as adapters
    import undercurrent.adapters.hf as hf
    import undercurrent.adapters.vllm as vllm

    assert sorted(adapters.__all__) == ["EngineAdapter", "MissingDependencyError"]
    assert sorted(hf.__all__) == ["HFAdapterLimitationError", "HFEngineAdapter"]
    assert sorted(vllm.__all__) == ["VLLMAdapterLimitationError", "VLLMEngineAdapter"]
    assert adapters.EngineAdapter is EngineAdapter
    assert issubclass(hf.HFEngineAdapter, EngineAdapter)
    assert issubclass(vllm.VLLMAdapterLimitationError, ProbingError)


def test_a_request_runs_as_it_did(adapter: Any) -> None:
    with make_router() as router:
        ended: dict[str, Any] = {}
        router.on_request_end(ended.__setitem__)
        adapter.register_extraction("r", [make_point()])
        text = adapter.generate("r", "some text", _GREEDY, router)
        adapter.unregister_extraction("r")
        assert len(text) > 0
        assert len(ended["r"]["point"].verdict) == 5
        assert adapter.last_stop("r") is None
        with pytest.raises(RouterError):
            router.end_request("r")


def test_last_stop_names_the_point_and_the_signal_of_the_last_request(adapter: Any) -> None:
    with make_router() as router:
        adapter.register_extraction("r", [make_point(probe_type="abort", probe_args={"count": 2})])
        adapter.generate("r", "some text", _GREEDY, router)
        name, signal = adapter.last_stop("r")
        assert (name, signal.action) == ("point", ProbeAction.ABORT)
        assert adapter.last_stop("another") is None
        adapter.register_extraction("r", [make_point()])
        adapter.generate("r", "some text", _GREEDY, router)
        assert adapter.last_stop("r") is None


def test_the_limits_of_an_adapter_have_the_error_they_had(adapter: Any) -> None:
    from undercurrent.adapters.hf import HFAdapterLimitationError, HFEngineAdapter

    with pytest.raises(HFAdapterLimitationError, match="load_model"):
        print(HFEngineAdapter().num_layers)
    with pytest.raises(HFAdapterLimitationError, match="load_model"):
        HFEngineAdapter().generate_batch(["r"], ["text"], {}, make_router())
    with pytest.raises(HFAdapterLimitationError, match="tokenizer="):
        HFEngineAdapter().load_model(adapter.model)
    with pytest.raises(HFAdapterLimitationError, match="kv"):
        adapter.register_extraction("r", [make_point(tensor_type=TensorType.KV)])
    adapter.register_extraction("r", [make_point()])
    with pytest.raises(HFAdapterLimitationError, match="already registered"):
        adapter.register_extraction("r", [make_point()])
    with make_router() as router, pytest.raises(HFAdapterLimitationError, match="has several"):
        adapter.generate("r", "text", {**_GREEDY, "num_beams": 2}, router)


def test_the_vllm_adapter_refuses_with_the_way_out() -> None:
    from undercurrent.adapters.vllm import VLLMEngineAdapter

    adapter = VLLMEngineAdapter()
    for call in (
        lambda: adapter.load_model("some/model"),
        lambda: adapter.register_extraction("r", []),
        lambda: adapter.generate("r", "text", {}, make_router()),
    ):
        with pytest.raises(MissingDependencyError, match=r"no vLLM engine; use `undercurrent\.engines\.HFEngine`"):
            call()
    adapter.unregister_extraction("r")
    adapter.shutdown()


def test_an_adapter_with_the_four_methods_of_0_1_0_can_be_made() -> None:
    class Mine(EngineAdapter):
        def load_model(self, model_name_or_path: str, **kwargs: Any) -> None: ...
        def register_extraction(self, request_id: str, extraction_points: Any) -> None: ...
        def generate(self, request_id: str, prompt: str, generation_kwargs: Any, router: Any) -> str:
            return "text"

        def unregister_extraction(self, request_id: str) -> None: ...

    with pytest.raises(ProbingError, match="does not say what its model gives"):
        print(Mine().capabilities)
