"""Saved probes as files: what comes back, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from saved_probes import HIDDEN, PLACE, draw, make_saved

from undercurrent.core import SavedProbe, load_probe, save_probe
from undercurrent.core.aggregation import KOfN
from undercurrent.core.calibration import Isotonic, Platt, Raw, Temperature
from undercurrent.errors import ProbeFileError, ProbeFileNotFoundError, ProbingTypeError, ProbingValueError

KINDS = ("linear", "softmax", "mlp", "mean_difference", "sae_feature")


def header_of(path: Path) -> dict[str, Any]:
    """The JSON document in a file's metadata, read without our code."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return dict(json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["undercurrent_probe"]))


def write(path: Path, arrays: dict[str, Any], **changes: Any) -> Path:
    """A file with the header of a linear probe, changed; `None` removes a field."""
    save_probe(path, make_saved())
    header = {**header_of(path), **changes}
    kept = {name: value for name, value in header.items() if value != "remove"}
    save_file(arrays, path, metadata={"undercurrent_probe": json.dumps(kept)})
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_probe_comes_back_from_its_file_as_it_was(kind: str, tmp_path: Path) -> None:
    saved = make_saved(kind, threshold=0.75, aggregation={"kind": "k_of_n", "k": 2, "n": 3}, training={"texts": [1, 2]})
    save_probe(tmp_path / "p.safetensors", saved)
    loaded = load_probe(tmp_path / "p.safetensors")

    for name in ("kind", "layer", "tensor_type", "model", "labels", "threshold", "calibration", "aggregation"):
        assert getattr(loaded, name) == getattr(saved, name), name
    assert (dict(loaded.training), dict(loaded.settings)) == (dict(saved.training), dict(saved.settings))
    assert loaded.aggregation == KOfN(2, 3)
    assert {name: array.tolist() for name, array in loaded.weights.items()} == {
        name: array.tolist() for name, array in saved.weights.items()
    }
    rows = draw(7, HIDDEN, seed=9)
    assert (loaded.score(rows) == saved.score(rows)).all()


@pytest.mark.parametrize("calibration", [Temperature(2.0), Platt(1.5, -0.5), Raw(), Isotonic()])
def test_calibration_comes_back(calibration: Any, tmp_path: Path) -> None:
    knots = {"calibration_x": [-1.0, 0.0, 1.0], "calibration_y": [0.0, 0.25, 1.0]}
    saved = make_saved(calibration=calibration, weights=knots if isinstance(calibration, Isotonic) else {})
    save_probe(tmp_path / "p.safetensors", saved)

    assert load_probe(tmp_path / "p.safetensors").calibration == calibration


def test_infinite_threshold_that_flags_nothing_is_refused_by_json(tmp_path: Path) -> None:
    with pytest.raises(ProbingValueError, match="`threshold` must be finite"):
        make_saved(threshold=float("inf"))


def test_saved_probe_crosses_to_a_worker_as_it_is() -> None:
    saved = make_saved("mlp", threshold=0.5)
    again = pickle.loads(pickle.dumps(saved))

    assert again.labels == saved.labels
    assert (again.score(draw(3, HIDDEN)) == saved.score(draw(3, HIDDEN))).all()


def test_weights_are_float32_read_only_and_apart_from_the_callers(tmp_path: Path) -> None:
    weight = np.ones(HIDDEN)
    saved = SavedProbe("linear", {"weight": weight, "bias": 0}, **PLACE)
    weight[0] = 5.0

    assert saved.weights["weight"].dtype == np.float32
    assert saved.weights["weight"][0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        saved.weights["weight"][0] = 2.0
    with pytest.raises(TypeError):
        saved.weights["weight"] = weight  # type: ignore[index]


def test_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ProbeFileNotFoundError, match=r"no probe file at .*none\.safetensors.* looked for from"
    ) as caught:
        load_probe(tmp_path / "none.safetensors")
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_file_that_is_cut_off_is_refused(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    save_probe(path, make_saved())
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(ProbeFileError, match="no safetensors file, or is cut off"):
        load_probe(path)


def test_file_with_any_bytes_changed_is_refused_or_still_a_probe(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    save_probe(path, make_saved("mlp", threshold=0.5, aggregation="mean"))
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            found = load_probe(path)
        except ProbeFileError:
            refused += 1
        else:
            assert isinstance(found, SavedProbe)
    assert 0 < refused < 400


def test_pickle_is_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "boom"),)

    (tmp_path / "p.pkl").write_bytes(pickle.dumps(Bomb()))

    with pytest.raises(ProbeFileError, match=r"Pickles .* are never loaded"):
        load_probe(tmp_path / "p.pkl")
    assert not (tmp_path / "boom").exists()


def test_foreign_safetensors_file_is_named_with_its_tensors(tmp_path: Path) -> None:
    save_file({"model.embed.weight": draw(2, 2)}, tmp_path / "m.safetensors", metadata={"format": "pt"})

    with pytest.raises(ProbeFileError, match=r"without the 'undercurrent_probe' header.*'model.embed.weight'"):
        load_probe(tmp_path / "m.safetensors")


GOOD = {"weight": draw(HIDDEN), "bias": np.zeros((), np.float32)}


@pytest.mark.parametrize(
    ("arrays", "changes", "message"),
    [
        ({"weight": GOOD["weight"]}, {}, "needs the tensor 'bias'"),
        ({**GOOD, "wieght": draw(2)}, {}, "has no tensor 'wieght'; did you mean 'weight'"),
        ({**GOOD, "bias": draw(2)}, {}, r"'bias' must have the shape \(\), got \(2,\)"),
        ({**GOOD, "weight": draw(1, HIDDEN)}, {}, r"'weight' must have the shape \(hidden,\), or"),
        ({**GOOD, "weight": GOOD["weight"].astype(np.float64)}, {}, "'weight' must be of dtype F32, got F64"),
        ({**GOOD, "weight": GOOD["weight"].astype(np.int32)}, {}, "'weight' must be of dtype F32, got I32"),
        ({**GOOD, "weight": np.full(HIDDEN, np.nan, np.float32)}, {}, "'weight' holds NaN or infinity"),
        ({**GOOD, "weight": draw(0)}, {}, "hidden size must be >= 1"),
        (GOOD, {"kind": "liner"}, "`kind` must be one of .*did you mean 'linear'"),
        (GOOD, {"kind": "mlp"}, "needs the tensor 'layers.0.weight'"),
        (GOOD, {"layer": -1}, "`layer` must be an int >= 0"),
        (GOOD, {"layer": "4"}, "damaged 'undercurrent_probe' header: Expected `int`"),
        (GOOD, {"tensor_type": "residual"}, "did you mean 'residual_stream'"),
        (GOOD, {"labels": ["one"]}, "`labels` must be 2 different names"),
        (GOOD, {"format_version": 2}, "format version 2; this release reads version 1"),
        (GOOD, {"format_version": "remove"}, "format version None"),
        (GOOD, {"model": "remove"}, "missing required field `model`"),
        (GOOD, {"code": "import os"}, "unknown field `code`"),
        (GOOD, {"calibration": {"kind": "temperature", "temperature": 0}}, "`temperature` must be a number above 0"),
        (GOOD, {"calibration": {"kind": "isotonic"}}, "go with isotonic calibration only"),
        (GOOD, {"aggregation": {"kind": "k_of_n", "k": 3, "n": 2}}, "expected 1 <= `k` <= `n`"),
    ],
)
def test_file_that_does_not_fit_together_is_refused(
    arrays: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "p.safetensors", arrays, **changes)

    with pytest.raises(ProbeFileError, match=message) as caught:
        load_probe(path)
    assert str(path) in str(caught.value)


def test_damaged_header_is_refused(tmp_path: Path) -> None:
    save_file(GOOD, tmp_path / "p.safetensors", metadata={"undercurrent_probe": "{"})
    with pytest.raises(ProbeFileError, match="damaged"):
        load_probe(tmp_path / "p.safetensors")
    with pytest.raises(ProbeFileError, match="must be a file, got a folder"):
        load_probe(tmp_path)


def test_failed_save_leaves_the_earlier_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.safetensors"
    save_probe(path, make_saved(threshold=0.25))

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        save_probe(path, make_saved(threshold=0.75))

    assert load_probe(path).threshold == 0.25
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_probe_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ProbingTypeError, match="must be a SavedProbe, got dict"):
        save_probe(tmp_path / "p.safetensors", {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"threshold": float("nan")}, "`threshold` must be comparable"),
        ({"threshold": True}, "`threshold` must be a number"),
        ({"labels": "ab"}, "`labels` must be a list"),
        ({"model": 3}, "`model` must be a name"),
        ({"training": {"x": object()}}, "`training` must hold what JSON holds"),
        ({"aggregation": "meen"}, "did you mean 'mean'"),
        ({"calibration": 3}, "must be a calibration"),
        ({"weights": {"weight": ["a"]}}, "must be an array of numbers"),
    ],
)
def test_probe_that_cannot_be_used_is_not_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ProbingTypeError, ProbingValueError), match=message):
        make_saved(**fields)


def test_loading_a_probe_loads_no_torch(tmp_path: Path) -> None:
    save_probe(tmp_path / "p.safetensors", make_saved())
    program = (
        "import sys; from undercurrent.core import get_probe_factory; "
        "get_probe_factory('linear').spawn('r', 'p', file=sys.argv[1]); "
        "assert not {'torch', 'sklearn', 'scipy', 'pickle5'} & set(sys.modules)"
    )
    command = [sys.executable, "-P", "-c", program, str(tmp_path / "p.safetensors")]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
