"""Spec text into plain data, with the line of every key and everything YAML itself would let pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from undercurrent.spec.check import Path, Problem

if TYPE_CHECKING:
    import yaml

__all__ = ["TEXT_LENGTH_MAX", "Source", "read_text"]

# Any escape of a JSON string; with groups where it is a surrogate pair.
_ESCAPE = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)", re.DOTALL)

TEXT_LENGTH_MAX = 4 * 1024 * 1024
"""Characters. A spec of a thousand points is a tenth of it."""


@dataclass(slots=True)
class Source:
    """What a text says and where it says it; owned by the call that reads it."""

    document: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    """Line of each key and list item, from 1."""
    problems: list[Problem] = field(default_factory=list)
    """What is wrong with the text itself: syntax, size, duplicate keys. After a syntax error there is no document."""


def read_text(text: str) -> Source:
    """Reads YAML, of which JSON is a part. Never raises for the content of `text`."""
    if len(text) > TEXT_LENGTH_MAX:
        return Source(problems=[Problem((), f"a spec must be <= {TEXT_LENGTH_MAX} characters, got {len(text)}")])
    try:
        return _read(text)
    except RecursionError:
        return Source(problems=[Problem((), "the text is nested too deeply to be a spec")])


def _read(text: str) -> Source:
    import yaml

    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = msgspec.json.decode(text)
        is_json = True
        text = _as_yaml(text)
    except msgspec.DecodeError:
        is_json = False
    source = Source()
    loader = loader_class(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return source
        _walk(node, (), source)
        # JSON keeps what JSON says: YAML 1.1 reads 1e5 as a string.
        source.document = document if is_json else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        return Source(problems=[_syntax_problem(error)], lines=_error_line(error))
    except (yaml.YAMLError, ValueError) as error:
        return Source(problems=[Problem((), f"invalid YAML: {error}")])
    finally:
        loader.dispose()
    return source


def _as_yaml(json_text: str) -> str:
    """Valid JSON as YAML of the same lines: YAML refuses tabs as indentation and characters in two escaped halves."""
    # Inside JSON strings there are no tabs, so those that are there are indentation.
    return _ESCAPE.sub(_join_halves, json_text.replace("\t", " "))


def _join_halves(escape: re.Match[str]) -> str:
    if escape[1] is None:
        return escape[0]
    return bytes.fromhex(escape[1] + escape[2]).decode("utf-16-be")


def _walk(root: yaml.Node, root_path: Path, source: Source) -> None:
    """Notes the line of every node once; an alias keeps the line of the first place it is used at."""
    pending: list[tuple[yaml.Node, Path]] = [(root, root_path)]
    seen: set[int] = set()
    while pending:
        node, path = pending.pop()
        source.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in seen:
            continue
        seen.add(id(node))
        pending.extend(_children(node, path, source))


def _children(node: yaml.Node, path: Path, source: Source) -> Iterator[tuple[yaml.Node, Path]]:
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield item, (*path, index)
    if not isinstance(node, yaml.MappingNode):
        return
    first_line: dict[tuple[str, str], int] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            continue
        key, line = key_node.value, key_node.start_mark.line + 1
        # The tag tells the string "1" from the number, and a merge may stand several times.
        identity = (key_node.tag, key)
        if identity in first_line and key_node.tag != "tag:yaml.org,2002:merge":
            source.lines[(*path, key)] = line
            text = f"duplicate key {key!r}, first on line {first_line[identity]}; keep one of them"
            source.problems.append(Problem((*path, key), text))
        first_line.setdefault(identity, line)
        source.lines.setdefault((*path, key), line)
        yield value_node, (*path, key)


def _syntax_problem(error: Any) -> Problem:
    mark = error.problem_mark or error.context_mark
    where = f" (column {mark.column + 1})" if mark is not None else ""
    problem = error.problem or error.context or "cannot be read"
    return Problem((), f"invalid YAML: {problem}{where}; check the indentation and the quotes around it")


def _error_line(error: Any) -> dict[Path, int]:
    mark = error.problem_mark or error.context_mark
    return {} if mark is None else {(): mark.line + 1}
