"""Labelled texts: one JSON object a line, `{"text": …, "label": …, "group"?: …}`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undercurrent.cli.verbs import CLIError, UsageError
from undercurrent.errors import did_you_mean

__all__ = ["LabelledTexts", "read_labelled"]

TEXTS_MAX = 200_000
_LINE_BYTES_MAX = 1 << 20
_PROBLEMS_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class LabelledTexts:
    """The texts of one file, in its order."""

    path: Path
    texts: list[str]
    labels: list[str]
    groups: list[str]
    """Texts that resemble each other share one; a text without is a group of its own."""
    has_groups: bool
    digest: str
    """SHA-256 of the file."""

    def choose_positive(self, wanted: str | None) -> tuple[str, str]:
        """The names of what is not looked for and of what is; with more than two labels, the rest is one.

        Raises:
            UsageError: `wanted` is no label of the file, or it has to be named.
        """
        names = sorted(set(self.labels))
        listed = ", ".join(map(repr, names[:20]))
        if len(names) < 2:
            raise CLIError(f"{self.path}: a probe tells labels apart, and every text is {names[0]!r}")
        if wanted is not None and wanted not in names:
            raise UsageError(f"no text is labelled {wanted!r}{did_you_mean(wanted, names) or ';'} labels: {listed}")
        if wanted is None and len(names) > 2:
            raise UsageError(f"{self.path} has {len(names)} labels ({listed}); say which to look for with --positive")
        positive = names[1] if wanted is None else wanted
        others = [name for name in names if name != positive]
        return others[0] if len(others) == 1 else f"not {positive}", positive


def read_labelled(path: Path) -> LabelledTexts:
    """Reads a file of labelled texts.

    Raises:
        CLIError: lines that are none; the message has the first of them, with file and line.
    """
    content = path.read_bytes()
    rows: list[tuple[str, str, str | None]] = []
    problems: list[str] = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        row = _read_line(line)
        if isinstance(row, str):
            problems.append(f"{path}:{number}: {row}")
        elif len(rows) == TEXTS_MAX:
            raise CLIError(f"{path}:{number}: at most {TEXTS_MAX} texts are read; make the file smaller")
        else:
            rows.append(row)
    if problems:
        more = len(problems) - _PROBLEMS_SHOWN_MAX
        lines = [*problems[:_PROBLEMS_SHOWN_MAX], *([f"and {more} more lines"] if more > 0 else [])]
        raise CLIError("\n".join(lines), hint='each line is {"text": "…", "label": "…"}, with "group" if you like')
    if not rows:
        raise CLIError(f"{path} has no texts", hint='each line is {"text": "…", "label": "…"}')
    repeated = [text for text, count in Counter(text for text, _, _ in rows).items() if count > 1]
    # One text on both sides of the split would be held out in name only.
    same = {text: f"same text {index}" for index, text in enumerate(repeated)}
    groups = [
        group if group is not None else same.get(text, f"line {index}") for index, (text, _, group) in enumerate(rows)
    ]
    return LabelledTexts(
        path=path,
        texts=[text for text, _, _ in rows],
        labels=[label for _, label, _ in rows],
        groups=groups,
        has_groups=any(group is not None for _, _, group in rows),
        digest=hashlib.sha256(content).hexdigest(),
    )


def _read_line(line: bytes) -> tuple[str, str, str | None] | str:
    """Text, label and group; or what is wrong with the line."""
    if len(line) > _LINE_BYTES_MAX:
        return f"a line has at most {_LINE_BYTES_MAX} bytes, got {len(line)}"
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"expected one JSON object, got {line[:40].decode(errors='replace')!r} ({error})"
    if not isinstance(row, dict):
        return f"expected a JSON object with 'text' and 'label', got {type(row).__name__}"
    for key in ("text", "label"):
        if key not in row:
            found = ", ".join(map(repr, row)) or "no keys"
            return f"{key!r} is missing{did_you_mean(key, row) or ';'} the line has {found}"
    if not isinstance(row["text"], str) or not row["text"].strip():
        return f"'text' must be a text that is not empty, got {row['text']!r}"
    for key in ("label", "group"):
        if key in row and not isinstance(row[key], (str, int, bool)):
            return f"{key!r} must be a name, a number or a truth value, got {row[key]!r}"
    label, group = row["label"], row.get("group")
    # As YAML and JSON write truth values.
    words = [str(value).lower() if isinstance(value, bool) else str(value) for value in (label, group)]
    if not words[0]:
        return "'label' must not be empty"
    return row["text"], words[0], None if "group" not in row else words[1]
