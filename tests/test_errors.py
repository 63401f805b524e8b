"""Errors are what a caller would catch, read as sentences, and survive the way back from a worker."""

from __future__ import annotations

import pickle

import pytest

from undercurrent import errors


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.ProbingValueError, ValueError),
        (errors.ProbingTypeError, TypeError),
        (errors.ProbingRuntimeError, RuntimeError),
        (errors.ProbingKeyError, KeyError),
        (errors.ProbeDefinitionError, TypeError),
        (errors.SpecValidationError, ValueError),
        (errors.PositionSyntaxError, ValueError),
        (errors.SpecFileNotFoundError, FileNotFoundError),
        (errors.RouterError, RuntimeError),
        (errors.ProbeNotFoundError, KeyError),
        (errors.MissingDependencyError, ImportError),
        (errors.ProbedModelConfigError, ValueError),
        (errors.ProbeTransferError, TypeError),
        (errors.UnsupportedPayloadError, TypeError),
        (errors.ValuePathError, TypeError),
    ],
)
def test_probing_error_is_also_the_builtin_a_caller_would_catch(error: type, builtin: type) -> None:
    assert issubclass(error, errors.ProbingError)
    assert issubclass(error, builtin)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.RingError, RuntimeError),
        (errors.RingCorruptError, errors.RingError),
        (errors.RingMemoryError, MemoryError),
        (errors.RingUnavailableError, OSError),
        (errors.WorkerError, RuntimeError),
    ],
)
def test_ring_and_worker_errors_are_not_probing_errors(error: type, builtin: type) -> None:
    assert issubclass(error, errors.UndercurrentError)
    assert issubclass(error, builtin)
    assert not issubclass(error, errors.ProbingError)


def test_every_public_error_derives_from_the_root() -> None:
    public = [getattr(errors, name) for name in errors.__all__]
    classes = [item for item in public if isinstance(item, type)]

    assert len(classes) >= 20
    assert all(issubclass(item, errors.UndercurrentError) for item in classes)


def test_key_error_shows_its_sentence_without_quotes() -> None:
    assert str(errors.ProbingKeyError("no point is named 'x'")) == "no point is named 'x'"


def test_probe_not_found_offers_near_names_and_the_way_to_register() -> None:
    error = errors.ProbeNotFoundError("runing_mean", ["running_mean", "toxicity"])

    assert error.name == "runing_mean"
    assert error.known == ["running_mean", "toxicity"]
    assert error.message == str(error)
    assert "did you mean 'running_mean'?" in str(error)
    assert "register_probe" in str(error)


def test_validation_error_without_issues_is_its_own_issue() -> None:
    assert errors.SpecValidationError("one problem").issues == ("one problem",)


@pytest.mark.parametrize(
    "error",
    [
        errors.ProbeNotFoundError("a", ["ab", "abc"]),
        errors.SpecValidationError("two problems", issues=["first", "second"]),
        errors.ProbingKeyError("no point is named 'x'"),
        errors.RingMemoryError("limit reached"),
        errors.RingUnavailableError("no memfd here"),
        errors.SpecFileNotFoundError("no such file"),
    ],
)
def test_error_survives_pickling_with_its_attributes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_nearest_name_ignores_case() -> None:
    assert errors.nearest_names("MLP_OUT", ["mlp_out", "kv"]) == ["mlp_out"]


def test_no_suggestion_is_made_where_nothing_is_near() -> None:
    assert errors.did_you_mean("zzz", ["inline", "async"]) == ""


def test_one_of_lists_the_allowed_values() -> None:
    assert errors.one_of(["inline", "async"]) == "one of 'inline', 'async'"
    assert errors.one_of(["1"]) == "'1'"
