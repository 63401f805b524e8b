"""Loads a spec from a file, YAML or JSON text, or a dict."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from undercurrent.errors import ProbingTypeError, SpecFileNotFoundError, SpecValidationError
from undercurrent.spec.check import Path, Problem, check_spec, find_deprecated_keys
from undercurrent.spec.point import ExtractionPoint, ProbeSpec
from undercurrent.spec.schema import VERSION
from undercurrent.spec.source import TEXT_LENGTH_MAX, Source, read_text

__all__ = ["SpecSource", "load_spec", "load_yaml_file", "parse_dict", "parse_yaml"]

SpecSource = str | os.PathLike[str] | Mapping[str, Any] | ProbeSpec

_FILE_SUFFIXES = (".yaml", ".yml", ".json")
_UTF8_BYTES_MAX = 4


def load_spec(spec: SpecSource) -> ProbeSpec:
    """A spec from whatever holds one.

    A `ProbeSpec` is returned as it is, a mapping is the document itself, a path names a file. A string is a path if it
    is one line and either names a file or ends in .yaml, .yml or .json; else it is YAML or JSON text.

    >>> load_spec({"extraction_points": []}).names
    ()

    Raises:
        SpecValidationError: the spec has problems; all of them are listed.
        SpecFileNotFoundError: the path leads nowhere.
        ProbingTypeError: `spec` is none of these.
    """
    if isinstance(spec, ProbeSpec):
        return spec
    if isinstance(spec, os.PathLike):
        return load_yaml_file(spec)
    if isinstance(spec, str):
        return load_yaml_file(spec) if _is_path(spec) else parse_yaml(spec)
    if isinstance(spec, Mapping):
        return parse_dict(spec)
    raise ProbingTypeError(f"a spec must be a path, YAML text, a mapping or a ProbeSpec, got {type(spec).__name__}")


def load_yaml_file(path: str | os.PathLike[str]) -> ProbeSpec:
    """A spec from a YAML or JSON file in UTF-8.

    Raises:
        SpecValidationError: the spec has problems; all of them are listed, with file and line.
        SpecFileNotFoundError: there is no such file.
        OSError: the file cannot be read.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            content = file.read(TEXT_LENGTH_MAX * _UTF8_BYTES_MAX + 1)
    except FileNotFoundError:
        raise SpecFileNotFoundError(
            f"spec file {name!r} does not exist, seen from {os.getcwd()!r}; check the path, or pass the spec as YAML"
            " text or a dict"
        ) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refusal(
            [Problem((), f"a spec must be UTF-8, got byte {content[error.start]:#04x}")], {(): line}, name
        ) from None
    return _finish(read_text(text), name)


def parse_yaml(text: str) -> ProbeSpec:
    """A spec from YAML or JSON text.

    Raises:
        SpecValidationError: the spec has problems; all of them are listed, with their line.
    """
    if not isinstance(text, str):
        raise ProbingTypeError(f"`text` must be a string, got {type(text).__name__}")
    return _finish(read_text(text), None)


def parse_dict(data: Mapping[str, Any]) -> ProbeSpec:
    """A spec from its document as plain data.

    Raises:
        SpecValidationError: the spec has problems; all of them are listed.
    """
    return _finish(Source(document=data), None)


def _is_path(text: str) -> bool:
    if "\n" in text or not text.strip():
        return False
    if text.lower().endswith(_FILE_SUFFIXES):
        return True
    try:
        return FilePath(text).is_file()
    except (OSError, ValueError):
        return False


def _finish(source: Source, file_name: str | None) -> ProbeSpec:
    problems = list(source.problems)
    points: tuple[ExtractionPoint, ...] = ()
    # After a syntax error there is nothing to check, and what is missing then is no news.
    if source.document is not None or not problems:
        points, found = check_spec(source.document)
        problems += found
    if problems:
        raise _refusal(problems, source.lines, file_name, source.document)
    deprecated = find_deprecated_keys(source.document)
    if deprecated:
        message = f"deprecated spec keys: {'; '.join(deprecated)}"
        warnings.warn(message, DeprecationWarning, stacklevel=_caller_level())
    return ProbeSpec(VERSION, points)


def _refusal(
    problems: Sequence[Problem], lines: Mapping[Path, int], file_name: str | None, document: object = None
) -> SpecValidationError:
    placed = [(_find_line(problem.path, lines), problem) for problem in problems]
    placed.sort(key=lambda item: item[0] or 0)
    issues = [f"{_show_place(line, file_name)}{_show_path(item.path, document)}{item.text}" for line, item in placed]
    if len(issues) == 1:
        return SpecValidationError(issues[0], issues=issues)
    listing = "".join(f"\n  - {issue}" for issue in issues)
    return SpecValidationError(f"{len(issues)} problems in the spec:{listing}", issues=issues)


def _find_line(path: Path, lines: Mapping[Path, int]) -> int | None:
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def _show_place(line: int | None, file_name: str | None) -> str:
    if file_name is None:
        return "" if line is None else f"line {line}: "
    return f"{file_name}: " if line is None else f"{file_name}:{line}: "


def _show_path(path: Path, document: object) -> str:
    """`extraction_points[2] 'name'.field`, as people say it."""
    if not path:
        return ""
    shown = ""
    value: Any = document
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
            value = value[step] if isinstance(value, (list, tuple)) and step < len(value) else None
            name = value.get("name") if isinstance(value, Mapping) else None
            shown += f" {name!r}" if isinstance(name, str) else ""
        else:
            shown += f".{step}" if shown else step
            value = value.get(step) if isinstance(value, Mapping) else None
    return f"{shown}: "


def _caller_level() -> int:
    """The `stacklevel` of the first frame outside this package, where the deprecated spec was loaded from."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "undercurrent":
        frame = frame.f_back
        level += 1
    return level
