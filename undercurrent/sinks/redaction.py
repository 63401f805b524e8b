"""Redaction: functions from a record to a record, or to None to drop it.

They are objects that can be pickled, because a sink travels to the workers with its redaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from undercurrent.errors import ProbingTypeError, ProbingValueError

__all__ = ["DEFAULT_PROMPT_TEXT_KEYS", "RedactFn", "chain", "drop_keys", "redact_keys"]

RedactFn: TypeAlias = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Gets a record of its own to change; returns what is to be written, None for nothing."""

DEFAULT_PROMPT_TEXT_KEYS: tuple[str, ...] = (
    "prompt",
    "prompts",
    "prompt_text",
    "text",
    "input_text",
    "output_text",
    "generated_text",
    "completion",
    "response",
    "messages",
    "input_ids",
    "output_ids",
    "token_ids",
    "query",
    "decoded",
    "error",
)
"""Keys under which text of the prompt or the answer is usually found; `error` because exceptions quote their input."""

_Path = tuple[str, ...]


def redact_keys(*keys: str, replacement: Any = "[REDACTED]", ignore_case: bool = False) -> RedactFn:
    """Returns a function that replaces the values of `keys`, at any depth and inside lists.

    A dotted key is the end of a path: `metadata.text` matches `text` directly inside any `metadata`.

    Raises:
        ProbingValueError: no key, or one with an empty segment.
        ProbingTypeError: a key that is no string.

    >>> redact_keys("prompt")({"metadata": {"prompt": "secret", "score": 1}})
    {'metadata': {'prompt': '[REDACTED]', 'score': 1}}
    """
    return _KeyRule(_paths("redact_keys", keys), replacement, is_dropping=False, is_case_ignored=ignore_case)


def drop_keys(*keys: str, ignore_case: bool = False) -> RedactFn:
    """Returns a function that removes `keys` and their values; keys are meant as for `redact_keys`.

    Raises:
        ProbingValueError: no key, or one with an empty segment.
        ProbingTypeError: a key that is no string.

    >>> drop_keys("metadata.prompt")({"prompt": 1, "metadata": {"prompt": 2}})
    {'prompt': 1, 'metadata': {}}
    """
    return _KeyRule(_paths("drop_keys", keys), None, is_dropping=True, is_case_ignored=ignore_case)


def chain(*redactions: RedactFn) -> RedactFn:
    """Returns a function that applies `redactions` in turn and stops at the first that drops the record.

    Raises:
        ProbingTypeError: one of them cannot be called.
    """
    for redaction in redactions:
        if not callable(redaction):
            raise ProbingTypeError(f"`chain` takes functions from a record to a record, got {redaction!r}")
    return _Chain(redactions)


class _KeyRule:
    """Replaces or removes the values under some keys. Immutable."""

    __slots__ = ("_is_case_ignored", "_is_dropping", "_last_segments", "_paths", "_replacement")

    def __init__(self, paths: tuple[_Path, ...], replacement: Any, *, is_dropping: bool, is_case_ignored: bool) -> None:
        self._paths = tuple(tuple(map(str.casefold, path)) for path in paths) if is_case_ignored else paths
        self._last_segments = frozenset(path[-1] for path in self._paths)
        self._replacement = replacement
        self._is_dropping = is_dropping
        self._is_case_ignored = is_case_ignored

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        self._clean(record, ())
        return record

    def _clean(self, value: Any, above: _Path) -> None:
        if isinstance(value, list):
            for item in value:
                self._clean(item, above)
        elif isinstance(value, dict):
            for key in list(value):
                path = (*above, key.casefold() if self._is_case_ignored else key)
                if not self._matches(path):
                    self._clean(value[key], path)
                elif self._is_dropping:
                    del value[key]
                else:
                    value[key] = self._replacement

    def _matches(self, path: _Path) -> bool:
        if path[-1] not in self._last_segments:
            return False
        return any(path[-len(wanted) :] == wanted for wanted in self._paths)


class _Chain:
    """Several redactions as one. Immutable."""

    __slots__ = ("_redactions",)

    def __init__(self, redactions: tuple[RedactFn, ...]) -> None:
        self._redactions = redactions

    def __call__(self, record: dict[str, Any]) -> dict[str, Any] | None:
        current: dict[str, Any] | None = record
        for redaction in self._redactions:
            if current is None:
                break
            current = redaction(current)
        return current


def _paths(function: str, keys: tuple[str, ...]) -> tuple[_Path, ...]:
    if not keys:
        raise ProbingValueError(f"`{function}` needs at least one key, got none")
    for key in keys:
        if not isinstance(key, str):
            raise ProbingTypeError(f"`{function}` takes keys as strings, got {key!r}")
        if "" in key.split("."):
            raise ProbingValueError(f"a key of `{function}` must have no empty segment, got {key!r}")
    return tuple(tuple(key.split(".")) for key in keys)
