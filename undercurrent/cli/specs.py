"""Reads specs for verbs: from a file or standard input, with deprecations collected instead of shown."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from undercurrent.cli.verbs import CLIError, UsageError, describe_foreign, read_standard_input, say
from undercurrent.errors import ProbingSpecError, SpecFileNotFoundError, SpecValidationError, UndercurrentError

if TYPE_CHECKING:
    from undercurrent.spec import ProbeSpec

__all__ = ["STANDARD_INPUT", "ReadSpec", "import_modules", "read_spec", "require_spec"]

STANDARD_INPUT = "-"
POINTS = "extraction_points"
# How an issue without a file begins.
_LINE = re.compile(r"^line (\d+): ")


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """What reading one spec came to: the spec, or why there is none."""

    spec: ProbeSpec | None
    problems: tuple[str, ...] = ()
    deprecations: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    """File and line of each point of the spec."""


def read_spec(path: str) -> ReadSpec:
    """Reads a spec; `-` is standard input. Never raises for what the file holds, or that it cannot be read."""
    from undercurrent.spec import load_yaml_file, parse_yaml

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        try:
            text = read_standard_input() if path == STANDARD_INPUT else None
            spec = load_yaml_file(path) if text is None else parse_yaml(text)
            places = _places(path, text, len(spec))
        except SpecValidationError as error:
            return ReadSpec(None, tuple(_LINE.sub(r"<stdin>:\1: ", issue) for issue in error.issues))
        except SpecFileNotFoundError:
            return ReadSpec(None, (f"{path}: no such file; relative paths are seen from {str(Path.cwd())!r}",))
        except (ProbingSpecError, CLIError) as error:
            return ReadSpec(None, (str(error),))
        except OSError as error:
            return ReadSpec(None, (f"{path}: {(error.strerror or str(error)).lower()}",))
    deprecations = tuple(str(item.message) for item in caught if issubclass(item.category, DeprecationWarning))
    return ReadSpec(spec, deprecations=deprecations, places=places)


def _places(path: str, text: str | None, point_count: int) -> tuple[str, ...]:
    from undercurrent.spec.source import read_text

    lines = read_text(Path(path).read_text(encoding="utf-8-sig") if text is None else text).lines
    name = path if text is None else "<stdin>"
    return tuple(f"{name}:{lines[POINTS, index]}" for index in range(point_count))


def require_spec(path: str) -> ProbeSpec:
    """The spec of a file or of standard input; deprecations are said on standard error.

    Raises:
        SpecValidationError: with every problem.
    """
    read = read_spec(path)
    if read.spec is None:
        listing = "".join(f"\n  - {problem}" for problem in read.problems)
        message = (
            read.problems[0] if len(read.problems) == 1 else f"{len(read.problems)} problems in the spec:{listing}"
        )
        raise SpecValidationError(message, issues=read.problems)
    for deprecation in read.deprecations:
        say(f"warning: {deprecation}")
    return read.spec


def import_modules(names: Iterable[str]) -> None:
    """Imports modules whose probes register themselves: dotted names, or paths of `.py` files.

    The current folder, and the folder of a file, are searched first; workers get the same search path.

    Raises:
        UsageError: there is no such module, or one that it imports.
        CLIError: its code raised.
    """
    for name in names:
        path = Path(name)
        is_file = path.suffix == ".py"
        if is_file and not path.is_file():
            raise UsageError(f"--import {name}: no such file; relative paths are seen from {str(Path.cwd())!r}")
        folder = str(path.resolve().parent if is_file else Path.cwd())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            importlib.import_module(path.stem if is_file else name)
        except ImportError as error:
            raise UsageError(
                f"--import {name}: {error}; give a dotted name such as my_package.probes, or a file such as probes.py"
            ) from error
        except UndercurrentError as error:
            raise CLIError(f"--import {name}: {error}") from error
        except Exception as error:
            hint = "--debug shows the traceback"
            raise CLIError(f"--import {name}: it raised {describe_foreign(error)}", hint=hint) from error
