"""Replaces what identifies a person or opens a door, before anything else sees it.

Policy: withhold. Where redaction raises or is over its deadline the call fails, also under `hooks_raise=False`, and the
hooks behind it, error and end hooks included, see a placeholder in the place of the text.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from undercurrent.predict import FailurePolicy, PredictContext

__all__ = ["PATTERNS", "RedactionHook"]

_DEPTH_MAX = 64


class RedactionHook:
    """Redacts the states of each call; a dict's keys and values, however deep, and a list's turns.

    `more` adds patterns by name. `counts` says how many of each were replaced.
    """

    failure_policy: ClassVar[FailurePolicy] = "withhold"

    def __init__(self, more: dict[str, re.Pattern[str]] | None = None, *, deadline_s: float | None = None) -> None:
        self.deadline_s = deadline_s
        self._patterns = [*PATTERNS.items(), *((name, (pattern, None)) for name, pattern in (more or {}).items())]
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def on_predict_start(self, ctx: PredictContext) -> None:
        """Assigns new states: those of the caller stay what they were."""
        found: Counter[str] = Counter()
        ctx.states = [self._redacted(state, found, _DEPTH_MAX) for state in ctx.states]
        if found:
            with self._lock:
                self.counts.update(found)

    def _redacted(self, value: Any, found: Counter[str], depth_left: int) -> Any:
        if isinstance(value, str):
            return self._text(value, found)
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            # A card or a phone number may be a number.
            text = self._text(str(value), found)
            return value if text == str(value) else text
        if depth_left and isinstance(value, dict):
            return {
                self._redacted(key, found, 0): self._redacted(item, found, depth_left - 1)
                for key, item in value.items()
            }
        if depth_left and isinstance(value, list | tuple):
            return [self._redacted(item, found, depth_left - 1) for item in value]
        raise TypeError(f"redaction knows texts, numbers, dicts and lists, got {type(value).__name__}, or is too deep")

    def _text(self, text: str, found: Counter[str]) -> str:
        for name, (pattern, is_meant) in self._patterns:
            text = pattern.sub(_replacer(name, is_meant, found), text)
        return text


def _replacer(name: str, is_meant: Callable[[str], bool] | None, found: Counter[str]) -> Callable[[re.Match[str]], str]:
    def replace(match: re.Match[str]) -> str:
        if is_meant is not None and not is_meant(match.group()):
            return match.group()
        found[name] += 1
        return f"[{name}]"

    return replace


def _is_card(text: str) -> bool:
    """Whether digits pass the check of Luhn, which every payment card does (ISO/IEC 7812-1, annex B)."""
    digits = [int(char) for char in text if char.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return 12 <= len(digits) <= 19 and (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def _is_phone(text: str) -> bool:
    """Whether there are as many digits as telephone numbers have (ITU-T E.164: fifteen at most)."""
    return 8 <= sum(char.isdigit() for char in text) <= 15


# Repetitions are bounded, so that no text makes a pattern slow. Keys come first: they may hold what looks like the
# rest.
PATTERNS: dict[str, tuple[re.Pattern[str], Callable[[str], bool] | None]] = {
    "KEY": (
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:(?!-----)[\s\S]){0,16384}-----END [A-Z ]{0,40}PRIVATE KEY-----"
            r"|\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]{1,16}[-_]){0,3}[A-Za-z0-9]{16,256}\b"
            r"|\bgh[pousr]_[A-Za-z0-9]{20,255}\b|\bgithub_pat_[A-Za-z0-9_]{20,255}\b|\bglpat-[\w-]{20,64}\b"
            r"|\bxox[abprs]-[A-Za-z0-9-]{10,255}\b|\bA(?:KI|SI)A[A-Z0-9]{16}\b|\bAIza[\w-]{35}\b"
            r"|\beyJ[\w-]{8,4096}\.[\w-]{8,4096}\.[\w-]{8,4096}"
            r"|(?<=[Bb]earer )[\w.~+/=-]{16,4096}"
        ),
        None,
    ),
    "EMAIL": (re.compile(r"[\w.+%'-]{1,64}@(?:[\w-]{1,63}\.){1,8}\w{2,63}"), None),
    "CARD": (re.compile(r"(?<![\d.])\d(?:[ -]?\d){11,18}(?!\d)"), _is_card),
    "PHONE": (
        re.compile(
            r"(?<![\w.])(?:(?:\+|\()\d|0)(?:[ ./()-]{0,3}\d){7,14}(?!\w)|(?<![\w.-])\d{3}[ .-]\d{3}[ .-]\d{4}(?![\w-])"
        ),
        _is_phone,
    ),
}
"""What is replaced, by the word that stands for it: a pattern, and what tells whether a match is meant."""
