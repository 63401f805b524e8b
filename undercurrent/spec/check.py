"""Checks a spec and builds its values; every problem is found, not only the first."""

from __future__ import annotations

import reprlib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from undercurrent.errors import PositionSyntaxError, did_you_mean
from undercurrent.spec.dump import extraction_point_to_dict
from undercurrent.spec.point import ExtractionPoint, InterventionPolicy, Sample, Until
from undercurrent.spec.position import PositionSelector, parse_position
from undercurrent.spec.rules import RULES
from undercurrent.spec.schema import DEPRECATED_KEYS, PointSchema, SpecSchema, allowed_words, describe
from undercurrent.spec.words import (
    ExecutionMode,
    InterventionMode,
    PositionKind,
    ProbeKind,
    TensorType,
    TimeoutAction,
    UntilKind,
)

__all__ = ["Path", "Problem", "check_spec", "find_deprecated_keys", "find_point_problems"]

Path = tuple[str | int, ...]

# A plain repr of nested YAML aliases can be longer than memory.
_short = reprlib.Repr()
_short.maxlevel = 3
_short.maxstring = _short.maxother = 80

# Stand for fields that are missing or wrong, so that the rules for the others can still be asked; none objects to them.
_PLACEHOLDERS: dict[str, Any] = {
    "name": "",
    "layers": (),
    "tensor_type": TensorType.RESIDUAL_STREAM,
    "position": PositionSelector(PositionKind.GENERATED_WILDCARD),
    "stride": None,
    "until": None,
    "probe_type": "",
    "probe_kind": ProbeKind.TRAJECTORY,
    "execution_mode": ExecutionMode.INLINE,
    "queue_depth": None,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    path: Path
    text: str


def check_spec(document: object) -> tuple[tuple[ExtractionPoint, ...], list[Problem]]:
    """The points of a document, and everything that is wrong with it; the points are complete if nothing is."""
    problems: list[Problem] = []
    if not isinstance(document, Mapping):
        text = f"expected a mapping with the key 'extraction_points', got {_show_kind(document)}"
        return (), [Problem((), f"{text}; begin with `extraction_points:` and a list of points")]
    _check_keys(document, SpecSchema, (), problems)
    if "version" in document:
        _check_value(document["version"], _annotation(SpecSchema, "version"), ("version",), problems)
    entries = document.get("extraction_points", [])
    if not isinstance(entries, (list, tuple)):
        text = f"`extraction_points` must be a list of mappings, got {_show(entries)}"
        return (), [*problems, Problem(("extraction_points",), text)]
    points = [_check_point(entry, ("extraction_points", index), problems) for index, entry in enumerate(entries)]
    problems.extend(_find_duplicate_names(entries))
    return tuple(point for point in points if point is not None), problems


def find_point_problems(point: ExtractionPoint) -> tuple[str, ...]:
    """Everything that is wrong with a point that was built by hand, one sentence each; empty for a sound point.

    >>> from undercurrent.spec import parse_position
    >>> find_point_problems(
    ...     ExtractionPoint("a", (), "kv", parse_position(3), None, None, "p", "trajectory", "inline", None))
    ('`layers` must be an int >= 0 or a non-empty list of such, got []',)
    """
    position: object = point.position
    if not isinstance(position, PositionSelector):
        return (f"`position` must be made with `parse_position`, got {_show(position)}",)
    problems: list[Problem] = []
    _check_point(extraction_point_to_dict(point), (), problems)
    return tuple(problem.text for problem in problems)


def find_deprecated_keys(document: object) -> list[str]:
    """A clause for each deprecated key of a document, for one warning."""
    entries = document.get("extraction_points") if isinstance(document, Mapping) else None
    clauses = []
    for index, entry in enumerate(entries if isinstance(entries, (list, tuple)) else []):
        for old, (new, warns) in DEPRECATED_KEYS.items():
            if warns and isinstance(entry, Mapping) and old in entry:
                clauses.append(f"extraction point {entry.get('name', index)!r} uses {old!r}, rename it to {new!r}")
    return clauses


def _check_point(entry: object, path: Path, problems: list[Problem]) -> ExtractionPoint | None:
    if not isinstance(entry, Mapping):
        text = f"expected a mapping with name, layers, tensor_type, position and so on, got {_show(entry)}"
        problems.append(Problem(path, text))
        return None
    before = len(problems)
    given = _check_struct(_rename_deprecated(entry, path, problems), PointSchema, path, problems)
    point = ExtractionPoint(**{**_PLACEHOLDERS, **dict(_build_fields(given, path, problems))})
    broken = {problem.path[len(path)] for problem in problems[before:] if len(problem.path) > len(path)}
    asked = [(rule.blames, rule.find(point)) for rule in RULES if broken.isdisjoint(rule.reads)]
    problems.extend(Problem((*path, key), text) for key, text in asked if text is not None)
    return point if len(problems) == before else None


def _rename_deprecated(entry: Mapping[Any, Any], path: Path, problems: list[Problem]) -> dict[Any, Any]:
    renamed = dict(entry)
    for old, (new, _) in DEPRECATED_KEYS.items():
        if old not in renamed:
            continue
        value = renamed.pop(old)
        if new in renamed:
            problems.append(Problem((*path, old), f"both {old!r} and {new!r} are set; keep only {new!r}"))
        else:
            renamed[new] = value
    return renamed


def _build_fields(given: dict[str, Any], path: Path, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    """The fields of an `ExtractionPoint` from the sound values of an entry; reports those that do not build."""
    for key, value in given.items():
        try:
            yield key, _build_field(key, value)
        except _Unbuildable as refusal:
            problems.append(Problem((*path, key), str(refusal)))


class _Unbuildable(Exception):
    """A value has the right type and no meaning."""


def _build_field(key: str, value: Any) -> Any:
    if key == "position":
        try:
            return parse_position(value)
        except PositionSyntaxError as error:
            raise _Unbuildable(str(error)) from None
    if key == "layers":
        return (value,) if isinstance(value, int) else tuple(value)
    if key == "until" and isinstance(value, dict):
        if len(value) != 1:
            raise _Unbuildable(f"`until` must have one of the keys 'fixed_count' and 'stop_token', got {value!r}")
        kind, bound = next(iter(value.items()))
        return Until(UntilKind(kind), bound)
    if key == "intervention" and isinstance(value, dict):
        return _build_intervention(value)
    if key == "sample" and isinstance(value, dict):
        return Sample(**value) if "rate" in value else None
    return value


def _build_intervention(value: dict[str, Any]) -> InterventionPolicy:
    mode = value.get("mode", InterventionMode.REJECT)
    timeout_ms = value.get("timeout_ms")
    if mode is InterventionMode.BLOCK_UNTIL_SIGNAL and timeout_ms is None:
        raise _Unbuildable("`timeout_ms` must be set with mode 'block_until_signal'; add e.g. timeout_ms: 50")
    for key in ("timeout_ms", "on_timeout"):
        if mode is InterventionMode.REJECT and value.get(key) is not None:
            raise _Unbuildable(
                f"`{key}` goes with mode 'block_until_signal', got mode 'reject'; remove `{key}`, or set that mode"
            )
    return InterventionPolicy(mode, timeout_ms, value.get("on_timeout", TimeoutAction.CONTINUE))


def _find_duplicate_names(entries: list[Any] | tuple[Any, ...]) -> Iterator[Problem]:
    first_index: dict[str, int] = {}
    for index, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str):
            continue
        if first_index.setdefault(name, index) != index:
            yield Problem(
                ("extraction_points", index, "name"),
                f"the name {name!r} is taken by extraction_points[{first_index[name]}]; rename one of them",
            )


def _check_struct(
    value: Mapping[Any, Any], struct: type[msgspec.Struct], path: Path, problems: list[Problem]
) -> dict[str, Any]:
    """The sound values of a mapping, converted; reports all others."""
    try:
        whole = msgspec.convert(value, struct)
    except msgspec.ValidationError:
        # msgspec stops at the first problem; below, each key is asked by itself, which costs a hundred times as much.
        return _check_fields(value, struct, path, problems)
    return {name: part for name, part in _given(whole).items() if name in value}


def _given(whole: msgspec.Struct) -> dict[str, Any]:
    """The fields of a struct that have a value, structs in it as dicts too."""
    return {
        name: _given(part) if isinstance(part, msgspec.Struct) else part
        for name, part in msgspec.structs.asdict(whole).items()
        if part is not msgspec.UNSET
    }


def _check_fields(
    value: Mapping[Any, Any], struct: type[msgspec.Struct], path: Path, problems: list[Problem]
) -> dict[str, Any]:
    _check_keys(value, struct, path, problems)
    sound = {}
    for field in msgspec.structs.fields(struct):
        if field.name in value:
            before = len(problems)
            converted = _check_value(value[field.name], field.type, (*path, field.name), problems)
            if len(problems) == before:
                sound[field.name] = converted
    return sound


def _inner_place(key: str, fields: tuple[msgspec.structs.FieldInfo, ...]) -> str:
    """Says where a key belongs that is one of a mapping inside; else nothing."""
    for field in fields:
        # Annotated[InnerStruct | None, …]
        kinds = [kind for part in typing.get_args(field.type) for kind in typing.get_args(part) or (part,)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and key in kind.__struct_fields__:
                return f"; it belongs in `{field.name}`;"
    return ""


def _check_keys(value: Mapping[Any, Any], struct: type[msgspec.Struct], path: Path, problems: list[Problem]) -> None:
    fields = msgspec.structs.fields(struct)
    known = [field.name for field in fields]
    for key in value:
        if key not in known:
            suggestion = _inner_place(str(key), fields) or did_you_mean(str(key), known) or ";"
            problems.append(
                Problem((*path, str(key)), f"unknown key {key!r}{suggestion} known keys: {', '.join(known)}")
            )
    problems.extend(
        Problem(path, f"missing key {field.name!r}; set it to {describe(field.type)}")
        for field in fields
        if field.required and field.name not in value
    )


def _check_value(value: Any, annotation: Any, path: Path, problems: list[Problem]) -> Any:
    """`value` as its annotation wants it; reports what is wrong with it, or with the parts it is made of."""
    members = _members(annotation)
    for member in members:
        if isinstance(member, type) and issubclass(member, msgspec.Struct) and isinstance(value, Mapping):
            return _check_struct(value, member, path, problems)
        if typing.get_origin(member) is list and isinstance(value, (list, tuple)) and value:
            item = typing.get_args(member)[0]
            return [_check_value(part, item, (*path, index), problems) for index, part in enumerate(value)]
        if typing.get_origin(member) is dict and isinstance(value, Mapping):
            wrong = [key for key in value if not isinstance(key, str)]
            problems.extend(Problem(path, f"`{path[-1]}` must have strings as keys, got {_show(key)}") for key in wrong)
            return value
    try:
        return msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        problems.append(Problem(path, _expectation(value, annotation, path)))
        return None


def _expectation(value: object, annotation: Any, path: Path) -> str:
    key = path[-1] if isinstance(path[-1], str) else f"{path[-2]}[{path[-1]}]"
    text = f"`{key}` must be {describe(annotation)}, got {_show(value)}"
    if key == "until" and value in ("fixed_count", "stop_token"):
        return (
            f"{text}; {value!r} needs its value, as in until: {{{value}: {'100' if value == 'fixed_count' else '2'}}}"
        )
    if isinstance(value, str):
        return text + did_you_mean(value, allowed_words(annotation))
    return text


def _members(annotation: Any) -> list[Any]:
    """The alternatives of an annotation, without their constraints."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in _UNIONS:
        return [member for part in typing.get_args(annotation) for member in _members(part)]
    return [annotation]


_UNIONS = (typing.Union, type(int | str))


def _annotation(struct: type[msgspec.Struct], name: str) -> Any:
    return next(field.type for field in msgspec.structs.fields(struct) if field.name == name)


def _show(value: object) -> str:
    return _short.repr(value)


def _show_kind(value: object) -> str:
    return "an empty document" if value is None else f"a {type(value).__name__}"
