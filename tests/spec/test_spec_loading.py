"""Specs are loaded from files, text and dicts, whatever form they come in."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from undercurrent.errors import ProbingTypeError, SpecFileNotFoundError, SpecValidationError
from undercurrent.spec import (
    ExecutionMode,
    FrozenArgs,
    InterventionMode,
    OnError,
    OverflowPolicy,
    Sample,
    SampleBy,
    TensorType,
    TimeoutAction,
    Until,
    UntilKind,
    load_spec,
    load_yaml_file,
    parse_dict,
    parse_yaml,
)

SEED_SPEC = """
extraction_points:
  - name: guard
    layers: 4
    tensor_type: mlp_out
    position: "generated[*]"
    probe_type: running_mean
    probe_kind: trajectory
    execution_mode: inline
  - name: monitor
    layers: 4
    tensor_type: mlp_out
    position: "generated[*]"
    probe_type: running_mean
    probe_kind: trajectory
    execution_mode: async
    queue_depth: 16
"""

POINT = {
    "name": "guard",
    "layers": 4,
    "tensor_type": "mlp_out",
    "position": "generated[*]",
    "probe_type": "running_mean",
    "probe_kind": "trajectory",
}


def make_document(**changes: Any) -> dict[str, Any]:
    return {"extraction_points": [{**POINT, **changes}]}


def test_seed_spec_loads_with_its_defaults() -> None:
    spec = load_spec(SEED_SPEC)

    assert spec.version == "1"
    assert spec.names == ("guard", "monitor")
    guard, monitor = spec
    assert guard.layers == (4,)
    assert guard.tensor_type is TensorType.MLP_OUT
    assert guard.position.is_continuous
    assert (guard.stride, guard.until, guard.queue_depth, guard.intervention) == (None, None, None, None)
    assert guard.probe_args == FrozenArgs()
    assert monitor.execution_mode is ExecutionMode.ASYNC
    assert monitor.queue_depth == 16


def test_every_new_key_reaches_its_field() -> None:
    point = parse_dict(
        make_document(
            execution_mode="async",
            queue_depth=64,
            overflow_policy="block",
            block_timeout_s=1.5,
            probe_timeout_s=30,
            workers=2,
            batch=8,
            threads=4,
            gpu=True,
            sample={"rate": 0.1, "by": "record"},
            until={"fixed_count": 100},
        )
    ).get("guard")

    assert point.overflow_policy is OverflowPolicy.BLOCK
    assert (point.block_timeout_s, point.probe_timeout_s) == (1.5, 30.0)
    assert (point.workers, point.batch, point.threads, point.gpu) == (2, 8, 4, True)
    assert point.sample == Sample(0.1, SampleBy.RECORD)
    assert point.until == Until(UntilKind.FIXED_COUNT, 100)


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        ("generation_end", UntilKind.GENERATION_END),
        ({"stop_token": 2}, Until(UntilKind.STOP_TOKEN, 2)),
        ({"stop_token": "</think>"}, Until(UntilKind.STOP_TOKEN, "</think>")),
        (None, None),
    ],
)
def test_until_takes_its_three_forms(until: object, expected: object) -> None:
    assert parse_dict(make_document(until=until)).get("guard").until == expected


def test_bounded_intervention_is_read() -> None:
    policy = (
        parse_dict(make_document(intervention={"mode": "block_until_signal", "timeout_ms": 50, "on_timeout": "abort"}))
        .get("guard")
        .intervention
    )

    assert policy is not None
    assert (policy.mode, policy.timeout_ms) == (InterventionMode.BLOCK_UNTIL_SIGNAL, 50)
    assert policy.on_timeout is TimeoutAction.ABORT


def test_empty_intervention_means_reject() -> None:
    policy = parse_dict(make_document(intervention={})).get("guard").intervention

    assert policy is not None
    assert policy.mode is InterventionMode.REJECT


def test_on_error_is_read() -> None:
    assert parse_dict(make_document(on_error="abort")).get("guard").on_error is OnError.ABORT


@pytest.mark.parametrize("version", ["1", 1])
def test_version_one_may_be_a_number_or_a_string(version: object) -> None:
    assert parse_dict({**make_document(), "version": version}).version == "1"


def test_spec_without_points_is_a_spec() -> None:
    assert len(parse_yaml("extraction_points: []")) == 0


def test_stride_may_be_called_every_n() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_dict(make_document(every_n=3)).get("guard").stride == 3


def test_deprecated_keys_warn_once_where_the_spec_was_loaded() -> None:
    text = SEED_SPEC.replace("layers:", "layer:").replace("tensor_type:", "tensor:")
    with pytest.warns(DeprecationWarning, match="'guard' uses 'layer', rename it to 'layers'") as caught:
        spec = load_spec(text)

    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert spec.get("monitor").layers == (4,)


def test_spec_passes_through_unchanged() -> None:
    spec = load_spec(SEED_SPEC)

    assert load_spec(spec) is spec


def test_file_is_loaded_by_path_object_and_by_name(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SEED_SPEC)

    assert load_spec(path) == load_spec(str(path)) == load_yaml_file(path) == load_spec(SEED_SPEC)


def test_file_of_any_name_is_loaded_where_it_exists(tmp_path: Path) -> None:
    path = tmp_path / "points"
    path.write_text(SEED_SPEC)

    assert load_spec(str(path)).names == ("guard", "monitor")


def test_json_file_may_be_indented_with_tabs(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(make_document(probe_args={"note": "\U0001f600", "rate": 1e5}), indent="\t"))

    assert load_spec(path).get("guard").probe_args == {"note": "\U0001f600", "rate": 1e5}


def test_byte_order_mark_is_no_part_of_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SEED_SPEC, encoding="utf-8-sig")

    assert load_spec(path).names == ("guard", "monitor")


def test_yaml_anchors_and_merges_are_read() -> None:
    spec = parse_yaml(
        """
extraction_points:
  - &first {name: a, layers: [1, 2], tensor_type: kv, position: 3, probe_type: p, probe_kind: single_shot}
  - <<: *first
    name: b
"""
    )

    assert spec.get("b").layers == (1, 2)


def test_missing_file_says_where_it_was_looked_for() -> None:
    with pytest.raises(SpecFileNotFoundError, match=r"nowhere\.yaml") as caught:
        load_spec("nowhere.yaml")

    assert os.getcwd() in str(caught.value)


def test_what_holds_no_spec_is_a_type_error() -> None:
    with pytest.raises(ProbingTypeError, match="got int"):
        load_spec(3)  # type: ignore[arg-type]


def test_binary_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"# fine\n\xff\n")

    with pytest.raises(SpecValidationError, match=r"spec\.yaml:2: a spec must be UTF-8"):
        load_spec(path)
