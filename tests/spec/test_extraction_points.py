"""Points built by hand: published order and defaults, words become enums, and problems are found on request."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from undercurrent.errors import ProbingKeyError, ProbingValueError
from undercurrent.spec import (
    ExecutionMode,
    ExtractionPoint,
    FrozenArgs,
    InterventionMode,
    InterventionPolicy,
    OnError,
    OverflowPolicy,
    ProbeKind,
    ProbeSpec,
    Sample,
    SampleBy,
    TensorType,
    TimeoutAction,
    Until,
    UntilKind,
    find_point_problems,
    parse_position,
)


def make_point(**changes: Any) -> ExtractionPoint:
    fields: dict[str, Any] = {
        "name": "guard",
        "layers": (4,),
        "tensor_type": TensorType.MLP_OUT,
        "position": parse_position("generated[*]"),
        "stride": None,
        "until": None,
        "probe_type": "running_mean",
        "probe_kind": ProbeKind.TRAJECTORY,
        "execution_mode": ExecutionMode.INLINE,
        "queue_depth": None,
    }
    return ExtractionPoint(**{**fields, **changes})


def test_published_fields_come_first_and_the_rest_have_defaults() -> None:
    names = [field.name for field in dataclasses.fields(ExtractionPoint)]

    assert names[:12] == [
        "name",
        "layers",
        "tensor_type",
        "position",
        "stride",
        "until",
        "probe_type",
        "probe_kind",
        "execution_mode",
        "queue_depth",
        "intervention",
        "probe_args",
    ]
    assert make_point().overflow_policy is None
    assert make_point().on_error is OnError.RAISE
    assert make_point().workers == 1


def test_point_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_point().name = "other"  # type: ignore[misc]


def test_points_of_equal_fields_are_equal_and_hash_alike() -> None:
    assert make_point(probe_args={"a": 1}) == make_point(probe_args={"a": 1})
    assert make_point(probe_args={"a": 1}) != make_point(probe_args={"a": 2})
    assert hash(make_point(probe_args={"a": 1})) == hash(make_point(probe_args={"a": 2}))


def test_point_survives_pickling() -> None:
    point = make_point(probe_args={"threshold": 0.5}, sample=Sample(0.5))

    assert pickle.loads(pickle.dumps(point)) == point


def test_words_become_members_of_their_enum() -> None:
    point = make_point(
        tensor_type="mlp_out",
        probe_kind="trajectory",
        execution_mode="async",
        overflow_policy="block",
        until="generation_end",
        sample=Sample(0.5, "record"),  # type: ignore[arg-type]
        intervention=InterventionPolicy("reject", None, "abort"),  # type: ignore[arg-type]
    )

    assert point.tensor_type is TensorType.MLP_OUT
    assert point.execution_mode is ExecutionMode.ASYNC
    assert point.overflow_policy is OverflowPolicy.BLOCK
    assert point.until is UntilKind.GENERATION_END
    assert point.sample is not None
    assert point.sample.by is SampleBy.RECORD
    assert point.intervention is not None
    assert point.intervention.on_timeout is TimeoutAction.ABORT


def test_list_of_layers_becomes_a_tuple_so_that_the_point_hashes() -> None:
    point = make_point(layers=[1, 2])

    assert point.layers == (1, 2)
    assert hash(point) == hash(make_point(layers=(1, 2)))


def test_probe_args_are_frozen_and_equal_to_a_dict() -> None:
    point = make_point(probe_args={"threshold": 0.5})

    assert isinstance(point.probe_args, FrozenArgs)
    assert point.probe_args == {"threshold": 0.5}
    with pytest.raises(TypeError):
        point.probe_args["threshold"] = 1.0  # type: ignore[index]


def test_frozen_args_do_not_follow_the_mapping_they_were_made_of() -> None:
    original = {"threshold": 0.5}
    frozen = FrozenArgs(original)
    original["threshold"] = 0.9

    assert frozen == {"threshold": 0.5}
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    assert repr(frozen) == "FrozenArgs({'threshold': 0.5})"


def test_bounded_policy_needs_its_bound() -> None:
    assert InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, 50).on_timeout is TimeoutAction.CONTINUE
    for timeout_ms in (None, 0, True, 1.5):
        with pytest.raises(ProbingValueError, match="timeout_ms"):
            InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, timeout_ms)  # type: ignore[arg-type]


def test_stride_counts_from_the_start_of_the_slice() -> None:
    point = make_point(position=parse_position("generated[2:9]"), stride=3)

    assert [index for index in range(12) if point.matches(10 + index, True, prompt_len=10)] == [2, 5, 8]
    assert [index for index in range(12) if point.matches(99, True, 10, index)] == [2, 5, 8]


def test_until_rule_is_the_full_form_of_either_spelling() -> None:
    assert make_point().until_rule == Until(UntilKind.GENERATION_END)
    assert make_point(until=UntilKind.GENERATION_END).until_rule == Until(UntilKind.GENERATION_END)
    assert make_point(until=Until(UntilKind.FIXED_COUNT, 3)).until_rule.value == 3


def test_sampling_by_request_keeps_or_skips_all_of_it() -> None:
    sample = Sample(0.5)
    kept = [sample.keeps_request(f"req-{number}") for number in range(2000)]

    assert 850 < sum(kept) < 1150
    assert all(sample.keeps_record("req-1", position) for position in range(10))
    assert kept == [sample.keeps_request(f"req-{number}") for number in range(2000)]


def test_sampling_by_record_picks_positions_of_every_request() -> None:
    sample = Sample(0.25, SampleBy.RECORD)
    kept = [sample.keeps_record("req-1", position) for position in range(2000)]

    assert sample.keeps_request("req-1")
    assert 400 < sum(kept) < 600


def test_full_rate_keeps_everything() -> None:
    assert all(Sample(1.0, SampleBy.RECORD).keeps_record("req-1", position) for position in range(1000))


def test_sound_point_has_no_problems() -> None:
    assert find_point_problems(make_point()) == ()
    assert find_point_problems(make_point(execution_mode=ExecutionMode.ASYNC, queue_depth=16, batch=8)) == ()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": " "}, "`name` must be a non-blank string"),
        ({"layers": ()}, "`layers` must be an int >= 0 or a non-empty list"),
        ({"layers": (True,)}, "`layers` must be an int >= 0"),
        ({"layers": (1, -2)}, r"`layers\[1\]` must be an int >= 0, got -2"),
        ({"tensor_type": "mlp_ouy"}, "did you mean 'mlp_out'"),
        ({"position": "generated[*]"}, "parse_position"),
        ({"position": parse_position(-3)}, "never matches"),
        ({"position": parse_position(3), "stride": 2}, "`stride` goes with a continuous position"),
        ({"stride": 0}, "`stride` must be an int >= 1"),
        ({"until": UntilKind.FIXED_COUNT}, "'fixed_count' needs its value"),
        ({"until": Until(UntilKind.FIXED_COUNT, 0)}, "`fixed_count` must be an int >= 1"),
        ({"probe_type": ""}, "`probe_type`"),
        ({"queue_depth": 8}, "`queue_depth` goes with execution_mode 'async'"),
        ({"sample": Sample(0.0)}, "`rate` must be a number > 0"),
        ({"sample": Sample(float("nan"))}, "`rate` must be a number > 0"),
        ({"intervention": InterventionPolicy("polite")}, "`mode` must be one of"),
    ],
)
def test_problem_of_a_point_is_said_in_words(changes: dict[str, Any], problem: str) -> None:
    problems = find_point_problems(make_point(**changes))

    assert len(problems) == 1
    with pytest.raises(ProbingValueError, match=problem):
        raise ProbingValueError(problems[0])


def test_spec_gives_points_by_name_and_in_order() -> None:
    spec = ProbeSpec("1", (make_point(), make_point(name="monitor")))

    assert spec.names == ("guard", "monitor")
    assert spec.get("monitor").name == "monitor"
    assert [point.name for point in spec] == ["guard", "monitor"]
    assert len(spec) == 2


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ProbingKeyError, match="did you mean 'guard'"):
        ProbeSpec("1", (make_point(),)).get("gaurd")
