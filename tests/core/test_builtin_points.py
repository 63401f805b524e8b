"""Built-in probes by file and name: arguments, the registry, and every kind of point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saved_probes import LAYER, TENSOR_TYPE, batch_of, make_line, make_saved, record, tokens

from undercurrent.core import Probe, ProbeAction, ProbeRegistry, RequestContext, default_registry, save_probe
from undercurrent.core.builtin import LinearProbe, SingleShotLinearProbe
from undercurrent.errors import ProbeFileError, ProbeFileNotFoundError, ProbingTypeError, ProbingValueError, RouterError
from undercurrent.router import Router
from undercurrent.spec import load_spec


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ProbingTypeError, "needs either `file`"),
        ({"file": "x", "probe": make_line()}, ProbingTypeError, "needs either `file`"),
        ({"probe": 3}, ProbingTypeError, "must be a SavedProbe, got int"),
        ({"probe": make_saved("mlp")}, ProbingValueError, "is of kind 'mlp'; write `probe_type: mlp`"),
        ({"probe": make_line(), "threshold": "high"}, ProbingTypeError, "`threshold` must be a number or None"),
        ({"probe": make_line(), "threshold": float("nan")}, ProbingValueError, "must be comparable"),
        ({"probe": make_line(), "action": "stop"}, ProbingValueError, "`action` must be one of 'abort', 'flag'"),
        ({"probe": make_line(), "signals": "some"}, ProbingValueError, "`signals` must be one of"),
        ({"probe": make_line(), "aggregate": "averge"}, ProbingValueError, "`kind` must be one of"),
        ({"probe": make_line(), "aggregate": {"kind": "ema"}}, ProbingValueError, "missing required field `alpha`"),
        ({"probe": make_line(), "aggregate": {"kind": "mean", "windw": 3}}, ProbingValueError, "unknown field `windw`"),
        (
            {"probe": make_line(), "aggregate": {"kind": "ema", "alpha": 2.0}},
            ProbingValueError,
            "above 0 and at most 1",
        ),
        ({"probe": make_line(), "aggregate": {"kind": "cusum", "limit": 0.0}}, ProbingValueError, "`limit` must be"),
        ({"probe": make_line(), "aggregate": 3}, ProbingTypeError, "or a mapping with `kind`"),
        ({"probe": make_line(), "target": "positve"}, ProbingValueError, "did you mean 'positive'"),
        ({"file": "nowhere.safetensors"}, ProbeFileNotFoundError, "no probe file at 'nowhere.safetensors'"),
    ],
)
def test_wrong_argument_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LinearProbe.spawn("req-1", "guard", **arguments)


def test_k_of_n_without_a_threshold_is_refused() -> None:
    factory = make_saved("sae_feature").factory(aggregate={"kind": "k_of_n", "k": 1, "n": 2})
    with pytest.raises(ProbingValueError, match="'k_of_n' counts records that reach the threshold"):
        factory.spawn("req-1", "guard")


def test_file_is_read_once_and_again_when_it_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.safetensors"
    save_probe(path, make_line(threshold=0.25))
    first = LinearProbe.spawn("req-1", "guard", file=str(path))
    assert LinearProbe.spawn("req-2", "guard", file=path)._saved is first._saved
    save_probe(path, make_line(threshold=0.75))
    assert LinearProbe.spawn("req-3", "guard", file=str(path))._threshold == 0.75
    monkeypatch.chdir(tmp_path)
    assert LinearProbe.spawn("req-4", "guard", file="p.safetensors")._threshold == 0.75
    os.unlink(path)
    with pytest.raises(ProbeFileError):
        LinearProbe.spawn("req-5", "guard", file=str(path))


# ---- points --------------------------------------------------------------------------------------------------------


def test_names_are_in_the_default_registry_and_can_be_taken_over() -> None:
    assert {"linear", "mlp", "mean_difference", "sae_feature"} <= set(default_registry.list())
    assert default_registry.get("linear").probe_cls is LinearProbe
    single_shot = default_registry.of_kind(default_registry.get("linear"), "single_shot")
    assert single_shot.probe_cls is SingleShotLinearProbe
    assert default_registry.of_kind(default_registry.get("linear"), "single_shot") is single_shot
    assert "linear" not in ProbeRegistry(load_entry_points=False)

    class Mine(Probe):
        probe_kind = "single_shot"

        def on_start(self, request_ctx: Any) -> None: ...
        def on_activation(self, record: Any) -> None: ...
        def on_end(self, request_ctx: Any) -> Any: ...

    registry = ProbeRegistry()
    registry._offer({"linear": "undercurrent.core.builtin:LinearProbe"})
    assert registry.register("linear", Mine).probe_cls is Mine
    assert registry.of_kind(registry.get("linear"), "trajectory").probe_cls is Mine


def point(path: Path, **fields: Any) -> Any:
    """One point over the probe in `path`."""
    values = {"name": "guard", "layers": LAYER, "tensor_type": TENSOR_TYPE, "probe_type": "linear"}
    values |= {"position": "generated[*]", "probe_kind": "trajectory", "probe_args": {"file": str(path)}}
    return load_spec({"extraction_points": [{**values, **fields}]}).extraction_points


@pytest.mark.parametrize(
    ("kind", "mode"), [("single_shot", "inline"), ("trajectory", "inline"), ("trajectory", "async")]
)
@pytest.mark.parametrize("form", ["float32", "bfloat16"])
def test_saved_probe_runs_at_every_kind_of_point(kind: str, mode: str, form: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save_probe(tmp_path / "p.safetensors", make_line(threshold=0.7))
    points = point(tmp_path / "p.safetensors", probe_kind=kind, execution_mode=mode, position="generated[*]")
    rows = tokens(1.0, -1.0, 0.5, 2.0)
    # In a thread the ring is the same, and no second process takes seconds to import torch.
    worker_mode = "thread" if form == "bfloat16" else "process"
    with Router(default_overflow_policy="block", worker_mode=worker_mode) as router:
        router.register_request("req-1", points, RequestContext("req-1", {"model": "small-model"}, None))
        for position, row in enumerate(rows):
            tensor = torch.tensor(row, dtype=torch.bfloat16) if form == "bfloat16" else row
            router.route(record(tensor, position))
        result = router.end_request("req-1")["guard"]

    assert result.metadata["coverage"]["complete"]
    assert result.verdict["n"] == 4
    assert result.verdict["score"] == pytest.approx(1 / (1 + np.exp(-2.0)))
    assert (result.verdict["flagged"], result.verdict["first_flagged"]) == (True, 0)


def test_trajectory_aggregate_at_a_single_shot_point_is_refused(tmp_path: Path) -> None:
    save_probe(tmp_path / "p.safetensors", make_line(aggregation="max"))
    args = {"file": str(tmp_path / "p.safetensors"), "aggregate": "mean"}
    points = point(tmp_path, probe_kind="single_shot", probe_args=args)
    with Router() as router, pytest.raises(ProbingValueError, match="a 'single_shot' point judges each record"):
        router.register_request("req-1", points, RequestContext("req-1", {}, None))
    saved_only = SingleShotLinearProbe.spawn("r", "p", file=args["file"])
    actions = [signal.action for signal in saved_only.on_activations(batch_of(tokens(3, -3)))]
    assert actions == [ProbeAction.FLAG, ProbeAction.CONTINUE]


def test_wrong_file_at_an_inline_point_is_an_error_at_registration(tmp_path: Path) -> None:
    with Router() as router, pytest.raises((ProbeFileNotFoundError, RouterError), match="no probe file"):
        router.register_request("req-1", point(tmp_path / "none"), RequestContext("req-1", {}, None))
