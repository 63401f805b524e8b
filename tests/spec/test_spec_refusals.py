"""A bad spec is refused with every problem at once: where it is, what was expected, and the nearest name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercurrent.errors import SpecValidationError
from undercurrent.spec import load_spec, parse_dict, parse_yaml

POINT = {
    "name": "guard",
    "layers": 4,
    "tensor_type": "mlp_out",
    "position": "generated[*]",
    "probe_type": "running_mean",
    "probe_kind": "trajectory",
}

BAD_FILE = """version: "1"
extraction_points:
  - name: guard
    layers: 4
    tensor_type: mlp_outt
    position: 4
    stride: 2
    probe_type: p
    probe_kind: trajectory
    layrs: 3
  - name: guard
    layers: [1, true, -2]
    execution_mode: async
    probe_kind: single_shot
"""


def issues_of(changes: dict[Any, Any]) -> tuple[str, ...]:
    entry = {key: value for key, value in {**POINT, **changes}.items() if value is not ...}
    with pytest.raises(SpecValidationError) as caught:
        parse_dict({"extraction_points": [entry]})
    return caught.value.issues


def test_all_problems_of_a_file_come_at_once_with_file_line_and_path(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD_FILE)
    with pytest.raises(SpecValidationError) as caught:
        load_spec(path)

    places = [issue.removeprefix(f"{tmp_path}{os.sep}").split(": ")[:2] for issue in caught.value.issues]
    assert places == [
        ["bad.yaml:5", "extraction_points[0] 'guard'.tensor_type"],
        ["bad.yaml:7", "extraction_points[0] 'guard'.stride"],
        ["bad.yaml:10", "extraction_points[0] 'guard'.layrs"],
        ["bad.yaml:11", "extraction_points[1] 'guard'"],
        ["bad.yaml:11", "extraction_points[1] 'guard'"],
        ["bad.yaml:11", "extraction_points[1] 'guard'"],
        ["bad.yaml:11", "extraction_points[1] 'guard'.name"],
        ["bad.yaml:12", "extraction_points[1] 'guard'.layers[1]"],
        ["bad.yaml:12", "extraction_points[1] 'guard'.layers[2]"],
        ["bad.yaml:14", "extraction_points[1] 'guard'.probe_kind"],
    ]
    assert str(caught.value).startswith("10 problems in the spec:\n  - ")


def test_single_problem_is_the_message() -> None:
    with pytest.raises(SpecValidationError) as caught:
        parse_dict({"extraction_points": [{**POINT, "stride": 0}]})

    assert str(caught.value) == "extraction_points[0] 'guard'.stride: `stride` must be an int >= 1, got 0"
    assert caught.value.issues == (str(caught.value),)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"layers": True}, "`layers` must be an int >= 0 or a non-empty list of such, got True"),
        ({"layers": 6.0}, "got 6.0"),
        ({"layers": "6"}, "got '6'"),
        ({"layers": []}, "non-empty list"),
        ({"layers": ...}, "missing key 'layers'"),
        ({"tensor_type": "mlp_outt"}, "did you mean 'mlp_out'?"),
        ({"position": True}, "`position` must be an int or a non-blank string, got True"),
        ({"position": 5.0}, "got 5.0"),
        ({"position": -1}, "absolute index -1 never matches; write 'prompt[-1]'"),
        ({"position": "prompt[*]"}, "invalid position 'prompt[*]'"),
        ({"name": " "}, "`name` must be a non-blank string"),
        ({"stride": 2, "position": 3}, "`stride` goes with a continuous position"),
        ({"until": "generation_end", "position": 3}, "`until` goes with a continuous position"),
        ({"until": "fixed_count"}, "'fixed_count' needs its value, as in until: {fixed_count: 100}"),
        ({"until": "stop_token"}, "'stop_token' needs its value, as in until: {stop_token: 2}"),
        ({"until": "fixed_coun"}, "did you mean 'fixed_count'?"),
        ({"until": {}}, "`until` must have one of the keys"),
        ({"until": {"fixed_count": 1, "stop_token": 2}}, "`until` must have one of the keys"),
        ({"until": {"fixed_count": True}}, "`fixed_count` must be an int >= 1, got True"),
        ({"queue_depth": 4}, "`queue_depth` goes with execution_mode 'async'"),
        ({"execution_mode": "async", "queue_depth": 0}, "`queue_depth` must be an int >= 1"),
        ({"execution_mode": "async", "probe_kind": "single_shot"}, "an async point needs probe_kind 'trajectory'"),
        ({"overflow_policy": "block"}, "`overflow_policy` goes with execution_mode 'async'"),
        ({"workers": 2}, "`workers` goes with execution_mode 'async'"),
        ({"batch": 2}, "`batch` goes with execution_mode 'async'"),
        ({"execution_mode": "async", "batch": 17}, "`batch` must be an int >= 1 and <= 16, got 17"),
        ({"execution_mode": "async", "batch": 9, "queue_depth": 8}, "`batch` must be <= 8"),
        (
            {"execution_mode": "async", "overflow_policy": "drop_newest", "block_timeout_s": 1},
            "`block_timeout_s` goes with overflow_policy 'block', got 'drop_newest'",
        ),
        ({"probe_timeout_s": 1}, "`probe_timeout_s` goes with a probe in a process of its own"),
        ({"threads": 2}, "`threads` goes with a probe in a process of its own"),
        ({"gpu": True}, "`gpu` goes with a probe in a process of its own"),
        ({"gpu": 1}, "`gpu` must be true or false, got 1"),
        ({"execution_mode": "async", "on_error": "abort"}, "`on_error` goes with an inline point"),
        ({"sample": {"by": "request"}}, "missing key 'rate'"),
        ({"sample": {"rate": 1.5}}, "`rate` must be a number > 0 and <= 1, got 1.5"),
        ({"sample": 0.5}, "`sample` must be a mapping of rate, by"),
        ({"probe_args": None}, "`probe_args` must be a mapping, got None"),
        ({"probe_args": {3: 4}}, "`probe_args` must have strings as keys, got 3"),
        ({"intervention": {"mode": "block_until_signal"}}, "`timeout_ms` must be set"),
        ({"intervention": {"timeout_ms": 5}}, "`timeout_ms` goes with mode 'block_until_signal'"),
        ({"intervention": {"on_timeout": "continue"}}, "`on_timeout` goes with mode 'block_until_signal'"),
        ({"intervention": {"mode": "block_until_signa"}}, "did you mean 'block_until_signal'?"),
        (
            {"intervention": {"mode": "block_until_signal", "timeout_ms": 5}, "on_error": "abort"},
            "`on_timeout` answers for errors",
        ),
        (
            {"execution_mode": "async", "intervention": {"mode": "block_until_signal", "timeout_ms": 5}},
            "an async point cannot use block_until_signal",
        ),
        ({"layer": 3}, "both 'layer' and 'layers' are set"),
        ({"stride": 2, "every_n": 2}, "both 'every_n' and 'stride' are set"),
        ({"layrs": 3}, "unknown key 'layrs'; did you mean 'layers'?"),
        ({3: 4}, "unknown key 3"),
    ],
)
def test_bad_point_is_refused_for_its_one_problem(changes: dict[Any, Any], problem: str) -> None:
    issues = issues_of(changes)

    assert len(issues) == 1
    assert problem in issues[0]


def test_problem_of_one_key_does_not_hide_that_of_another() -> None:
    issues = issues_of({"stride": 0, "tensor_type": "nope", "queue_depth": 4, "layers": ...})

    assert len(issues) == 4


def test_broken_key_draws_no_second_problem_from_a_rule_that_reads_it() -> None:
    assert len(issues_of({"execution_mode": "asynk", "queue_depth": 4, "overflow_policy": "block"})) == 1


def test_duplicate_name_names_the_first_holder() -> None:
    with pytest.raises(SpecValidationError, match=r"the name 'guard' is taken by extraction_points\[0\]"):
        parse_dict({"extraction_points": [POINT, POINT]})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "got an empty document"),
        ("[1]", "line 1: expected a mapping with the key 'extraction_points', got a list"),
        ("hello", "got a str"),
        ("{}", "missing key 'extraction_points'"),
        ("extraction_points: 3", "`extraction_points` must be a list of mappings, got 3"),
        ("extraction_points: [3]", "extraction_points[0]: expected a mapping"),
        ("extraction_points: []\nversion: '2'", "line 2: version: `version` must be '1', got '2'"),
        ("extraction_points: []\nversion: 1.0", "`version` must be '1', got 1.0"),
        ("extraction_points: []\nversion: true", "`version` must be '1', got True"),
        ("extraction_points: []\npoints: []", "unknown key 'points'"),
        ("a: b: c", "line 1: invalid YAML"),
        ("extraction_points: [", "invalid YAML"),
        ("extraction_points: !!python/name:os.system x", "could not determine a constructor"),
        ("extraction_points: 2020-99-99", "invalid YAML: month must be in 1..12"),
        ("extraction_points: \x00", "invalid YAML"),
    ],
)
def test_text_that_is_no_spec_is_refused_in_words(text: str, problem: str) -> None:
    with pytest.raises(SpecValidationError) as caught:
        parse_yaml(text)

    assert problem in str(caught.value)


@pytest.mark.parametrize("document", [[], None, 3])
def test_document_that_is_no_mapping_is_refused(document: object) -> None:
    with pytest.raises(SpecValidationError, match="expected a mapping"):
        parse_dict(document)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "extraction_points: []\nextraction_points: []\n",
        '{"extraction_points": [], "extraction_points": []}',
        "extraction_points:\n  - {name: a, name: b}\n",
    ],
)
def test_duplicate_key_is_refused_and_not_the_last_one_taken(text: str) -> None:
    with pytest.raises(SpecValidationError, match="duplicate key"):
        parse_yaml(text)


def test_duplicate_key_names_both_lines() -> None:
    with pytest.raises(SpecValidationError) as caught:
        parse_yaml("extraction_points: []\n\nextraction_points: []\n")

    assert caught.value.issues == (
        "line 3: extraction_points: duplicate key 'extraction_points', first on line 1; keep one of them",
    )


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, '{"a":' * 100_000])
def test_deep_nesting_is_refused_and_not_followed(text: str) -> None:
    with pytest.raises(SpecValidationError):
        parse_yaml(text)


def test_text_beyond_the_limit_is_refused_unread() -> None:
    with pytest.raises(SpecValidationError, match="a spec must be <= 4194304 characters"):
        parse_yaml("#" * (4 * 1024 * 1024 + 1))


def test_value_that_unfolds_beyond_memory_is_shown_short() -> None:
    bomb = "x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * 8)}]\n" for level in range(1, 30)
    )
    with pytest.raises(SpecValidationError) as caught:
        parse_yaml(f"{bomb}extraction_points: {{a: *x29}}\n")

    assert len(str(caught.value)) < 10_000


def test_list_that_holds_itself_is_refused() -> None:
    with pytest.raises(SpecValidationError, match="expected a mapping"):
        parse_yaml("extraction_points: &all [*all]")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from([*POINT, "stride", "until", "queue_depth", "intervention", "sample", "batch", "gpu", "workers"])


@given(
    st.dictionaries(
        keys, plain | st.sampled_from(["async", "trajectory", "fixed_count", "generated[*]", 1]), max_size=6
    )
)
def test_any_entry_is_loaded_or_refused_in_words(changes: dict[str, Any]) -> None:
    try:
        spec = parse_dict({"extraction_points": [{**POINT, **changes}]})
    except SpecValidationError as error:
        problems = error.issues
        spec = None
    else:
        problems = ()

    assert bool(problems) == (spec is None)


@given(st.text(max_size=60) | st.text("{}[]:,-&*!'\"\n abe1", max_size=60))
def test_any_text_is_loaded_or_refused_in_words(text: str) -> None:
    with pytest.raises(SpecValidationError):
        parse_yaml(text)
