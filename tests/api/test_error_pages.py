"""docs/errors.md knows every error class, with the builtin it is, and every one keeps what all of them promise."""

from __future__ import annotations

import importlib
import pickle
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from source_tree import ROOT, module_name, product_files

from undercurrent.errors import ProbingError, UndercurrentError

PAGE = (ROOT / "docs" / "errors.md").read_text()
# Systems with roots and pages of their own, and programs that stand on the product.
ELSEWHERE = ("undercurrent.predict", "undercurrent.runtime", "undercurrent.benchmarks", "undercurrent.examples")
IMPLIED = {"FileNotFoundError": "OSError", "TimeoutError": "OSError", "KeyError": "LookupError"}


def error_classes() -> list[type[UndercurrentError]]:
    """Every deliberate error of the probe platform."""
    for path in product_files():
        name = module_name(path)
        if "Error(" in path.read_text() and not name.startswith(ELSEWHERE):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                importlib.import_module(name)
    found = {cls for cls in walk(UndercurrentError) if cls.__module__.startswith("undercurrent")}
    return sorted(
        (cls for cls in found if not cls.__module__.startswith(ELSEWHERE)),
        key=lambda cls: cls.__name__,
    )


def walk(cls: type[UndercurrentError]) -> Iterator[type[UndercurrentError]]:
    yield cls
    for below in cls.__subclasses__():
        yield from walk(below)


def builtins_of(cls: type[UndercurrentError]) -> set[str]:
    """The builtin errors a class is, without those that follow from another."""
    names = {base.__name__ for base in cls.__mro__ if base.__module__ == "builtins"}
    names -= {"object", "BaseException", "Exception"}
    return names - {IMPLIED[name] for name in names if name in IMPLIED}


ROWS = re.findall(r"^\| `(\w+)` \| (.*?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
CLASSES = error_classes()


def test_page_has_one_row_for_each_error_class() -> None:
    assert sorted(row[0] for row in ROWS) == [cls.__name__ for cls in CLASSES]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_row_says_which_builtin_an_error_is(cls: type[UndercurrentError]) -> None:
    (row,) = [row for row in ROWS if row[0] == cls.__name__]
    assert set(re.findall(r"`(\w+)`", row[1])) == builtins_of(cls)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_is_a_builtin_too_and_says_when_it_is_raised(cls: type[UndercurrentError]) -> None:
    assert cls.__doc__
    assert cls in (UndercurrentError, ProbingError) or cls.__module__.startswith("undercurrent.cli") or builtins_of(cls)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_survives_the_way_to_another_process(cls: type[UndercurrentError]) -> None:
    arguments: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "ProbeNotFoundError": (("linear", ["linear_probe"]), {}),
        "RowsError": (("one failed",), {"signals": [None], "errors": {0: ValueError("in a probe")}}),
    }
    positional, named = arguments.get(cls.__name__, (("what was expected",), {}))
    error = cls(*positional, **named)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), sorted(vars(copy))) == (cls, str(error), sorted(vars(error)))
