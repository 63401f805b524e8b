"""Prompts of a verb: given one by one, or in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from undercurrent.cli.verbs import CLIError, UsageError, read_text

__all__ = ["read_conversation", "read_prompts"]

PROMPT_KEYS = ("prompt", "text")
_FILE_BYTES_MAX = 64 << 20


def read_prompts(given: Sequence[str], path: str | None) -> list[str]:
    """The prompts of `--prompt`, then those of `--prompts-file`.

    A file has one prompt a line; with the ending `.jsonl`, one object a line with the key `prompt` or `text`. `-` is
    standard input. Empty lines are passed over.

    Raises:
        UsageError: there is no prompt.
        CLIError: a line of a `.jsonl` file holds none.
    """
    prompts = list(given)
    if path is not None:
        is_jsonl = path.endswith(".jsonl")
        for number, line in enumerate(read_text(path, _FILE_BYTES_MAX).splitlines(), start=1):
            if line.strip():
                prompts.append(_from_json(line, f"{path}:{number}") if is_jsonl else line)
    if not prompts:
        raise UsageError("no prompt; give --prompt TEXT, or --prompts-file FILE with one a line")
    return prompts


def read_conversation(given: str | None, path: str | None) -> object:
    """The prompt of `--prompt` or `--prompt-file`: a text, or what a `.json` file holds. `-` is standard input.

    Raises:
        UsageError: neither or both are given.
        CLIError: the file is no JSON.
    """
    if (given is None) == (path is None):
        raise UsageError("either --prompt TEXT or --prompt-file FILE is needed, not both")
    if path is None:
        return given
    text = read_text(path, _FILE_BYTES_MAX)
    if not path.endswith(".json"):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise CLIError(f"{path}:{error.lineno}:{error.colno}: expected JSON: {error.msg}") from error


def _from_json(line: str, place: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise CLIError(f"{place}: expected a JSON object: {error.msg} at column {error.colno}") from error
    for key in PROMPT_KEYS:
        if isinstance(entry, dict) and isinstance(entry.get(key), str):
            return str(entry[key])
    raise CLIError(f"{place}: expected an object with the key 'prompt' or 'text', got {line[:80]!r}")
