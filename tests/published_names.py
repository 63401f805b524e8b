"""Reads `api/published.txt`: what 0.1.0 offered, as modules of names with their arguments, bases and members."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path

TABLE = Path(__file__).parent / "api" / "published.txt"


@dataclass
class Name:
    """One public name; `parameters` is None for what is not called."""

    module: str
    name: str
    parameters: list[inspect.Parameter] | None = None
    bases: list[str] = field(default_factory=list)
    members: dict[str, str] = field(default_factory=dict)
    number: float | None = None
    attributes: dict[str, list[inspect.Parameter] | None] = field(default_factory=dict)


def read_names() -> list[Name]:
    """Every public name of every module, in the order of the table."""
    names: list[Name] = []
    module = ""
    for line in TABLE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            module = line.strip("[]")
        elif line.startswith("    "):
            attribute, parameters = _read_call(line.strip())
            names[-1].attributes[attribute] = parameters
        else:
            names.append(_read_name(module, line))
    return names


def _read_name(module: str, line: str) -> Name:
    rest, _, value = line.partition(" = ") if "(" not in line else (line, "", "")
    call, _, bases = rest.partition(" < ")
    name, parameters = _read_call(call)
    entry = Name(module, name, parameters, bases.split(", ") if bases else [])
    if ":" in value:
        entry.members = dict(member.split(":") for member in value.split(", "))
    elif value:
        entry.number = float(value)
    return entry


def _read_call(text: str) -> tuple[str, list[inspect.Parameter] | None]:
    found = re.fullmatch(r"(\w+)\((.*)\)", text)
    return (text, None) if found is None else (found[1], read_parameters(found[2]))


def read_parameters(text: str) -> list[inspect.Parameter]:
    """The parameters of `def f(text)`; a default of `...` stays that."""
    function = ast.parse(f"def f({text}): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    kinds = [inspect.Parameter.POSITIONAL_ONLY] * len(arguments.posonlyargs)
    kinds += [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(arguments.args)
    found = [_parameter(a, k, d) for a, k, d in zip(positional, kinds, defaults, strict=True)]
    if arguments.vararg:
        found.append(_parameter(arguments.vararg, inspect.Parameter.VAR_POSITIONAL, None))
    found += [
        _parameter(argument, inspect.Parameter.KEYWORD_ONLY, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        found.append(_parameter(arguments.kwarg, inspect.Parameter.VAR_KEYWORD, None))
    return found


def _parameter(argument: ast.arg, kind: inspect._ParameterKind, default: ast.expr | None) -> inspect.Parameter:
    value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
    return inspect.Parameter(argument.arg, kind, default=value)


def argument_problems(published: list[inspect.Parameter], ours: list[inspect.Parameter]) -> list[str]:
    """What a call written for `published` could meet in `ours`; more arguments than were published must be optional."""
    problems = []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    by_name = {parameter.name: parameter for parameter in ours}
    for index, wanted in enumerate(published):
        if wanted.kind in variadic:
            if not any(parameter.kind is wanted.kind for parameter in ours):
                problems.append(f"takes no {wanted}")
            continue
        found = ours[index] if wanted.kind is inspect.Parameter.POSITIONAL_ONLY and index < len(ours) else None
        found = found or by_name.get(wanted.name)
        if found is None:
            problems.append(f"lacks {wanted.name}")
            continue
        if wanted.kind is not inspect.Parameter.KEYWORD_ONLY and (
            index >= len(ours) or ours[index] is not found or found.kind is inspect.Parameter.KEYWORD_ONLY
        ):
            problems.append(f"{wanted.name} is not argument {index}")
        if wanted.kind is not inspect.Parameter.POSITIONAL_ONLY and found.kind is inspect.Parameter.POSITIONAL_ONLY:
            problems.append(f"{wanted.name} cannot be given by name")
        if wanted.default is not inspect.Parameter.empty and found.default is inspect.Parameter.empty:
            problems.append(f"{wanted.name} has no default")
        elif wanted.default not in (..., inspect.Parameter.empty, found.default):
            problems.append(f"{wanted.name} is {found.default!r} by default, was {wanted.default!r}")
    known = {parameter.name for parameter in published}
    problems += [
        f"{parameter.name} must be given"
        for parameter in ours
        if parameter.name not in known
        and parameter.kind not in variadic
        and parameter.default is inspect.Parameter.empty
        and not any(wanted.kind is inspect.Parameter.POSITIONAL_ONLY for wanted in published)
    ]
    return problems
