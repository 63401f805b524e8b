"""Decision models of local folders: what is missing or altered is an error before anything runs."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from laya_folders import write_folder
from tiny_checkpoints import QUESTIONS, STATES, scores_of

from undercurrent.engines.checkpoint import load_directory
from undercurrent.predict import Agent, CallOptions, Router


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("written") / "model")


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


def change(folder: Path, **config: Any) -> None:
    """Writes other values into `rl_agent_config.json`; None takes a key out."""
    path = folder / "rl_agent_config.json"
    merged = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))


def test_a_path_is_loaded_by_agent_and_router(folder: Path) -> None:
    direct = Agent(str(folder)).predict(STATES[0], QUESTIONS)
    routed = Router({"own": str(folder)}).predict(STATES[0], QUESTIONS, model="own")
    assert routed["answers"] == direct["answers"]
    assert 0.0 <= direct["answers"]["topic"]["action"]["act_probability"] <= 1.0


@pytest.mark.parametrize(
    "name", ["rl_agent_config.json", "model.safetensors", "encoder/config.json", "tokenizer/tokenizer_config.json"]
)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks '{name}' of the files of a decision model"):
        Agent(str(folder))


def test_loading_writes_nothing_and_moves_no_generator(folder: Path) -> None:
    import torch

    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    state = torch.random.get_rng_state()
    load_directory(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_digests_are_compared_before_anything_is_read(folder: Path) -> None:
    digests = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("model.safetensors", "encoder/config.json")
    }
    Agent(str(folder), expected_sha256={name: digest.upper() for name, digest in digests.items()})
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    (folder / "rl_agent_config.json").write_text("no JSON")
    with pytest.raises(ValueError, match=r"model\.safetensors' must have the SHA-256 digest"):
        Agent(str(folder), expected_sha256=digests)
    with pytest.raises(FileNotFoundError, match="names 'weights'"):
        Agent(str(folder), expected_sha256={"weights": "00"})
    for outside in ("../model/model.safetensors", "/etc/hostname", "a/../../b"):
        with pytest.raises(ValueError, match="takes paths within the checkpoint's folder"):
            Agent(str(folder), expected_sha256={outside: "00"})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"encoder": None}, "missing required field `encoder`"),
        ({"head_layers": -1}, r"`int` >= 0 - at `\$\.head_layers`"),
        ({"temperature": [1.0, 2.0]}, r"`array` of length 3 - at `\$\.temperature`"),
        ({"temperature": [1.0, True, 1.0]}, r"Expected `float`, got `bool` - at `\$\.temperature\[1\]`"),
        ({"option_layout": "circular"}, r"Invalid enum value 'circular' - at `\$\.option_layout`"),
        ({"head_layers": 3}, r"differ: 'head\.layers\.2.*absent|must hold the \d+ tensors"),
        ({"act_costs": {}}, r"1 differ|2 differ: 'act_head\.2\.weight' \(1, 256\) \(got \(2, 256\)\)"),
    ],
)
def test_an_altered_configuration_is_refused(folder: Path, config: dict[str, Any], message: str) -> None:
    change(folder, **config)
    with pytest.raises(ValueError, match=message):
        load_directory(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rl_agent_config.json", b"{"),
        ("rl_agent_config.json", b"\xff\xfe"),
        ("rl_agent_config.json", b"[]"),
        ("model.safetensors", b"\x00" * 40),
        ("encoder/config.json", b"{}"),
        ("tokenizer/tokenizer.json", b"{}"),
        ("tokenizer/tokenizer.json", b"\xff"),
        ("encoder/config.json", b'{"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}}'),
    ],
)
def test_a_damaged_file_is_a_value_error_that_names_its_folder(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=folder.name):
        load_directory(folder)


def test_weights_that_hold_other_tensors_are_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["stray"] = weights.pop("temperature")
    save_file(weights, path)
    with pytest.raises(ValueError, match=r"2 differ: 'temperature' \(3,\) \(got none\), 'stray' absent \(got \(3,\)\)"):
        load_directory(folder)


def test_temperatures_out_of_reach_are_brought_back_with_a_warning(folder: Path) -> None:
    change(folder, temperature_by_options={"choice:3-5": 0.1, "noul:2": 9.0})
    with pytest.warns(RuntimeWarning, match=r"choice:3-5 0\.1 -> 0\.5, noul:2 9 -> 5"):
        load_directory(folder)


def test_a_language_may_have_temperatures_of_its_own(folder: Path) -> None:
    change(folder, temperature_by_options=None)
    checkpoint = load_directory(folder, lang_temperatures={"DE-at": {"temperature": [5.0, 5.0, 5.0]}})
    assert checkpoint.uses_lang
    plain, german, other = (
        scores_of(checkpoint, STATES[:1], QUESTIONS, CallOptions(lang=lang))[0] for lang in (None, "de", "fr")
    )
    assert other == plain
    for one, flatter in zip(plain, german, strict=True):
        assert max(flatter.probabilities) < max(one.probabilities)
    with pytest.raises(ValueError, match=r"`lang_temperatures\['de'\]` takes `temperature` as three numbers"):
        load_directory(folder, lang_temperatures={"de": {"temperature": [1.0]}})


def test_a_calibration_file_replaces_the_folders_temperatures(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(
        json.dumps(
            {
                "version": 2,
                "temperature": [2.0, 2.0, 2.0],
                "binning_map": {"noul:2": {"bins": 2, "values": [0.25, 0.75]}},
            }
        )
    )
    before = scores_of(load_directory(folder), STATES[:1], QUESTIONS)[0]
    after = scores_of(load_directory(folder, calibration=path), STATES[:1], QUESTIONS)[0]
    assert max(after[1].probabilities) < max(before[1].probabilities)
    assert [one.answer_confidence for one in after] == [None, None, 0.75]
    with pytest.raises(FileNotFoundError, match="a calibration file was expected"):
        load_directory(folder, calibration=tmp_path / "none.json")
    path.write_text('{"temperature": [1, 1, 1], "binning_map": {"noul:2": {"bins": 2, "values": [0.5]}}}')
    with pytest.raises(ValueError, match="must hold one number per bin, 2, got 1"):
        load_directory(folder, calibration=path)


def test_options_past_the_sequence_are_refused_and_cut_ones_are_told(folder: Path) -> None:
    agent = Agent(str(folder))
    labels = [f"card {at}" for at in range(30)]
    many = {"which": {"type": "choice", "instructions": "what", "criteria": labels}}
    with pytest.raises(ValueError, match=r"question 'which': \d+ of its 30 options fit `max_len` 40"):
        agent.predict("a card", many, max_len=40)
    long = {
        "which": {"type": "choice", "instructions": "what", "criteria": [f"a bill is paid twice {at}" for at in "123"]}
    }
    collapsed = agent.predict("a card", long, head_max_len=20)["usage"]["options"]
    assert collapsed == {"which": {"total": 3, "distinct": 1, "tokens_per_option": 4}}


def test_a_marker_within_a_state_is_no_option(folder: Path) -> None:
    agent = Agent(str(folder))
    assert agent.predict("a [MASK] card", QUESTIONS)["answers"] == agent.predict("a   card", QUESTIONS)["answers"]


@pytest.mark.parametrize("layout", ["sequential", "parallel"])
def test_only_the_parallel_layout_ignores_the_order(layout: str, tmp_path: Path) -> None:
    checkpoint = load_directory(write_folder(tmp_path / layout, option_layout=layout))
    straight = scores_of(checkpoint, STATES, {"q": QUESTIONS["topic"]})
    turned = scores_of(checkpoint, STATES, {"q": {**QUESTIONS["topic"], "option_order": [2, 0, 1]}})
    differences = [
        abs(one - other)
        for a, b in zip(straight, turned, strict=True)
        for one, other in zip(a[0].probabilities, b[0].probabilities, strict=True)
    ]
    assert (max(differences) < 1e-5) == (layout == "parallel")
