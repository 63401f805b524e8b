"""Every public name of 0.1.0 is where it was, is what it was, and takes the arguments it took."""

from __future__ import annotations

import enum
import importlib
import inspect
import warnings
from typing import Any

import pytest
from published_names import Name, argument_problems, read_names, read_parameters

import undercurrent

NAMES = read_names()
CLASSES = [name for name in NAMES if name.attributes]


def load(name: Name) -> Any:
    """The object of ours that has a published name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(importlib.import_module(name.module), name.name)


def label(name: Name) -> str:
    return f"{name.module}.{name.name}"


@pytest.mark.parametrize("name", NAMES, ids=label)
def test_published_name_is_where_it_was(name: Name) -> None:
    found = load(name)
    assert name.name in importlib.import_module(name.module).__all__
    if name.members:
        assert issubclass(found, enum.Enum)
        assert {member.name: member.value for member in found} == name.members
        assert all(member == member.value for member in found)
    if name.number is not None:
        assert found == name.number


@pytest.mark.parametrize("name", [name for name in NAMES if name.bases or name.name.endswith("Error")], ids=label)
def test_published_class_is_still_what_it_was(name: Name) -> None:
    found = load(name)
    ancestors = {cls.__name__ for cls in inspect.getmro(found)}
    assert set(name.bases) <= ancestors
    if issubclass(found, Exception):
        assert issubclass(found, undercurrent.UndercurrentError)


@pytest.mark.parametrize("name", [name for name in NAMES if name.parameters is not None], ids=label)
def test_published_arguments_are_taken(name: Name) -> None:
    assert name.parameters is not None
    ours = list(inspect.signature(load(name)).parameters.values())
    assert not argument_problems(name.parameters, ours)


@pytest.mark.parametrize("name", CLASSES, ids=label)
def test_published_methods_and_attributes_are_there(name: Name) -> None:
    found = load(name)
    problems = []
    for attribute, parameters in name.attributes.items():
        annotated = {key for cls in inspect.getmro(found) for key in inspect.get_annotations(cls)}
        if attribute not in annotated and not hasattr(found, attribute):
            problems.append(f"{attribute} is missing")
        elif parameters is not None:
            ours = list(inspect.signature(getattr(found, attribute)).parameters.values())
            problems += [f"{attribute}: {text}" for text in argument_problems(parameters, ours)]
    assert not problems


def test_root_exports_what_it_exported_and_the_root_of_errors() -> None:
    published = {name.name for name in NAMES if name.module == "undercurrent"}
    assert set(undercurrent.__all__) == published | {"UndercurrentError"}
    assert published <= set(dir(undercurrent))


@pytest.mark.parametrize(
    ("ours", "problem"),
    [
        ("a, b=1, *, c=2", None),
        ("a, b=1, *, c=2, d=3", None),
        ("a, b=1, c=2", None),
        ("a, b=2, *, c=2", "b is 2 by default, was 1"),
        ("b=1, a=None, *, c=2", "a is not argument 0"),
        ("a, *, b=1, c=2", "b is not argument 1"),
        ("a, b=1", "lacks c"),
        ("a, b=1, *, c=2, d", "d must be given"),
        ("a, /, b=1, *, c=2", "a cannot be given by name"),
    ],
)
def test_comparison_sees_a_planted_difference(ours: str, problem: str | None) -> None:
    problems = argument_problems(read_parameters("a, b=1, *, c=2"), read_parameters(ours))
    assert problem in problems if problem else not problems
