"""Each documented call of `undercurrent.spec` 0.1.0, as its users wrote it. The file passes on 0.1.0 too."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import pytest
from published_pieces import TEXT, make_point

import undercurrent
from undercurrent import (
    ActivationRecord,
    ExecutionMode,
    InterventionMode,
    InterventionPolicy,
    ProbeSpec,
    ProbingError,
    SpecValidationError,
    TimeoutAction,
    load_spec,
    parse_position,
)
from undercurrent.spec import (
    FrozenArgs,
    PositionKind,
    UntilKind,
    extraction_point_to_dict,
    json_schema,
    load_yaml_file,
    parse_dict,
    parse_yaml,
    probe_spec_to_dict,
    to_yaml,
)


def test_spec_loads_from_whatever_holds_one(tmp_path: Path) -> None:
    spec = load_spec(TEXT)
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT)
    assert load_spec(spec) is spec
    assert load_spec(path) == load_spec(str(path)) == load_yaml_file(path) == parse_yaml(TEXT) == spec
    assert load_spec(probe_spec_to_dict(spec)) == parse_dict(probe_spec_to_dict(spec)) == spec
    assert parse_yaml(to_yaml(spec)) == spec
    assert load_spec(json.dumps(probe_spec_to_dict(spec))) == spec
    with pytest.raises(FileNotFoundError):
        load_spec("nowhere.yaml")
    with pytest.raises(TypeError):
        load_spec(3)  # type: ignore[arg-type]


def test_spec_gives_its_points() -> None:
    spec = load_spec(TEXT)
    assert (spec.version, len(spec), spec.names) == ("1", 3, ("guard", "gate", "monitor"))
    assert [point.name for point in spec] == list(spec.names)
    assert ProbeSpec("1", tuple(spec)).get("gate") is spec.get("gate")
    with pytest.raises(KeyError):
        spec.get("gat")
    guard, gate, monitor = spec
    assert (guard.layers, guard.stride, guard.probe_args) == ((4,), 2, {"threshold": 0.5})
    assert gate.intervention == InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, 50, TimeoutAction.ABORT)
    assert (monitor.execution_mode, monitor.queue_depth) == (ExecutionMode.ASYNC, 16)
    assert extraction_point_to_dict(guard) == {
        "name": "guard",
        "layers": 4,
        "tensor_type": "mlp_out",
        "position": "generated[*]",
        "probe_type": "running_mean",
        "probe_kind": "trajectory",
        "execution_mode": "inline",
        "stride": 2,
        "probe_args": {"threshold": 0.5},
    }


def test_old_keys_are_read_with_one_warning() -> None:
    old = TEXT.replace("layers:", "layer:").replace("tensor_type:", "tensor:")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert load_spec(old) == load_spec(TEXT)
    assert [warning.category for warning in caught] == [DeprecationWarning]
    assert caught[0].filename == __file__
    every = load_spec(TEXT.replace("stride: 2", "every_n: 2"))
    assert every == load_spec(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: guard", "name: ' '"),
        ("name: monitor", "name: guard"),
        ("layers: [4, 8]", "layers: []"),
        ("layers: [4, 8]", "layers: -1"),
        ("mlp_out", "mlp_outt"),
        ('"generated[*]"', '"prompt[*]"'),
        ("probe_kind: single_shot", "probe_kind: both"),
        ("stride: 2", "stride: 0"),
        ("stride: 2", "strides: 2"),
        ('"prompt[-1]"', '"prompt[-1]"\n    until: generation_end'),
        ('"prompt[-1]"', '"prompt[-1]"\n    stride: 2'),
        ("queue_depth: 16", "queue_depth: 0"),
        ("    execution_mode: async\n", ""),
        ("execution_mode: async", "execution_mode: async\n    intervention: {mode: block_until_signal, timeout_ms: 5}"),
        ("timeout_ms: 50, ", ""),
        ("timeout_ms: 50", "timeout_ms: 0"),
        ("mode: block_until_signal", "mode: reject"),
        ("probe_type: classifier", "probe_type: ''"),
        ("probe_kind: trajectory\n    execution_mode: async", "probe_kind: single_shot\n    execution_mode: async"),
        ("extraction_points", "points"),
        ("  - name: guard", "  - 3\n  - name: guard"),
        ("layers: 4\n    tensor_type: mlp_out", "layers: 4\n    layer: 4\n    tensor_type: mlp_out"),
    ],
)
def test_bad_spec_is_refused_with_its_issues(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(SpecValidationError) as refused:
        load_spec(TEXT.replace(old, new))
    assert refused.value.issues
    assert all(isinstance(issue, str) for issue in refused.value.issues)


def test_position_is_read_and_asked() -> None:
    last = parse_position("prompt[-1]+1")
    assert (last.kind, last.index, last.offset, last.is_continuous) == (PositionKind.PROMPT_INDEX, -1, 1, False)
    assert last.resolve_absolute(10) == 10
    assert last.matches(10, True, 10)
    assert last.to_raw() == "prompt[-1]+1"
    piece = parse_position("generated[2:5]")
    assert (piece.kind, piece.slice_start, piece.slice_stop) == (PositionKind.GENERATED_SLICE, 2, 5)
    assert [i for i in range(8) if piece.matches(10 + i, True, 10, generated_index=i)] == [2, 3, 4]
    assert parse_position(5).index == parse_position("5").index == 5
    for bad in ("prompt[*]", "generated[:3]", "5+1", "Generated[0]", "generated[3:3]", "generated[ 0 ]"):
        with pytest.raises(undercurrent.spec.PositionSyntaxError):
            parse_position(bad)


def test_point_matches_by_position_and_stride() -> None:
    point = make_point(stride=2, position=parse_position("generated[1:]"))
    assert [i for i in range(6) if point.matches(10 + i, True, 10, generated_index=i)] == [1, 3, 5]
    assert point == make_point(stride=2, position=parse_position("generated[1:]"))
    assert hash(point) == hash(make_point(stride=2, position=parse_position("generated[1:]"), probe_args={"a": [1]}))
    assert pickle.loads(pickle.dumps(point)) == point
    assert UntilKind("fixed_count") is UntilKind.FIXED_COUNT


def test_frozen_arguments_and_policies() -> None:
    arguments = FrozenArgs({"a": 1})
    assert (dict(arguments), len(arguments), arguments["a"], arguments == {"a": 1}) == ({"a": 1}, 1, 1, True)
    assert pickle.loads(pickle.dumps(arguments)) == arguments
    with pytest.raises(TypeError):
        arguments["a"] = 2  # type: ignore[index]
    assert InterventionPolicy() == InterventionPolicy(InterventionMode.REJECT, None, TimeoutAction.CONTINUE)
    with pytest.raises(ValueError):
        InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL)


@pytest.mark.parametrize(
    ("field", "value"),
    [("request_id", ""), ("extraction_point_name", ""), ("layer", -1), ("token_pos", -1), ("tensor", None)],
)
def test_record_refuses_what_it_refused(field: str, value: object) -> None:
    fields = {
        "request_id": "req-1",
        "extraction_point_name": "guard",
        "layer": 4,
        "token_pos": 10,
        "tensor_type": "mlp_out",
        "tensor": [1.0],
        "is_generated": True,
    }
    record = ActivationRecord(**fields)  # type: ignore[arg-type]
    assert set(record.metadata()) == (set(fields) | {"timestamp"}) - {"tensor"}
    with pytest.raises(ValueError) as refused:
        ActivationRecord(**{**fields, field: value})  # type: ignore[arg-type]
    assert isinstance(refused.value, ProbingError)


def test_schema_is_of_the_draft_that_was_promised() -> None:
    assert json_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
