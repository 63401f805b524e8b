"""Which script and language a state is in, read from a bounded sample of it.

The language comes from CLD2 (package `pycld2`, in the extra `predict`), which reads 13 words in 4 us and says how sure
it is. Without the package a Latin text has no language, and routing uses its default.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

__all__ = ["SAMPLE_CHARS", "Detection", "detect", "sample_of"]

SAMPLE_CHARS = 512
"""Characters of a state that are looked at, at most."""
_LEAF_COUNT_MAX = 64
_LEAF_CHARS = 96
_VISIT_COUNT_MAX = 1024
_DEPTH_MAX = 64
_NAMED_CHARS = 16
_FOREIGN_PERCENT_MIN = 20

_LETTER = re.compile(r"[^\W\d_]")
# Letters outside the blocks of the Latin script, its extensions and its full-width forms.
_OTHER_LETTER = re.compile(
    "[^\\W\\d_A-Za-z\u00aa\u00b5\u00ba\u00c0-\u02ff\u1d00-\u1dbf\u1e00-\u1eff\u2c60-\u2c7f\ua720-\ua7ff\ufb00-\ufb06"
    "\uff21-\uff3a\uff41-\uff5a]"
)
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")

Languages = tuple[bool, tuple[tuple[str, int], ...]]
"""Whether it is sure, and codes with their share in percent."""


class Detection(msgspec.Struct, frozen=True, gc=False):
    """What a sample of a state was found to be."""

    script: str
    """"latin", "unknown" where there are no letters, else the name Unicode gives the letters, such as "cyrillic"."""
    language: str | None
    """ISO 639-1 code; None where nothing identifies one."""
    foreign: str | None = None
    """A language other than `language` that a good part of the state is in."""
    is_available: bool = True
    """Whether the language was looked for."""

    @property
    def is_english(self) -> bool:
        """Whether all of it is English."""
        return self.script == "latin" and self.language == "en" and self.foreign is None


def detect(state: Any, *, wants_language: bool = False) -> Detection:
    """Says what a state is written in; costs the same for every state longer than `SAMPLE_CHARS`.

    `wants_language` looks for the language of other scripts too, which routing does not need.
    """
    sample = state if type(state) is str and len(state) <= SAMPLE_CHARS else sample_of(state)
    script = "latin"
    if not sample.isascii():
        script = _script(sample)
    elif not _LETTER.search(sample):
        script = "unknown"
    if script == "unknown" or (script != "latin" and not wants_language):
        return Detection(script, None)
    languages = _reader()
    if languages is None:
        return Detection(script, None, is_available=False)
    is_sure, found = languages(sample)
    if not is_sure or not found:
        return Detection(script, None)
    language = found[0][0]
    foreign = next((code for code, percent in found[1:] if percent >= _FOREIGN_PERCENT_MIN and code != language), None)
    return Detection(script, language, foreign)


def sample_of(state: Any) -> str:
    """Returns at most `SAMPLE_CHARS` characters: beginning, middle and end of a text, and some of each text in a dict
    or list, so that one field in another language is seen among others."""
    if isinstance(state, str):
        if len(state) <= SAMPLE_CHARS:
            return state
        part = SAMPLE_CHARS // 4
        middle = len(state) // 2
        return f"{state[: SAMPLE_CHARS - 2 * part - 2]}\n{state[middle : middle + part]}\n{state[-part:]}"
    parts: list[str] = []
    _collect(state, parts, itertools.count(), _DEPTH_MAX)
    if not parts:
        return ""
    share = max(8, min(SAMPLE_CHARS // len(parts) - 1, SAMPLE_CHARS if len(parts) == 1 else 4 * _LEAF_CHARS))
    return "\n".join(part[:share] for part in parts)[:SAMPLE_CHARS]


def _collect(state: Any, parts: list[str], visits: Iterator[int], depth_left: int) -> None:
    """Adds the first texts of a state, in their order."""
    if isinstance(state, str):
        if state:
            parts.append(state)
    elif depth_left and isinstance(state, (dict, list, tuple)):
        for value in state.values() if isinstance(state, dict) else state:
            if len(parts) >= _LEAF_COUNT_MAX or next(visits) >= _VISIT_COUNT_MAX:
                return
            _collect(value, parts, visits, depth_left - 1)


def _script(sample: str) -> str:
    """Reads a text that has characters beyond ASCII. A fifth of other letters, or ten that are a tenth, make it
    theirs."""
    others = _OTHER_LETTER.findall(sample)
    letter_count = len(_LETTER.findall(sample))
    if not letter_count:
        return "unknown"
    share = len(others) / letter_count
    if share < 0.2 and (share < 0.1 or len(others) < 10):
        return "latin"
    names = Counter(unicodedata.name(letter, "unnamed").split()[0].lower() for letter in others[:_NAMED_CHARS])
    return names.most_common(1)[0][0]


@functools.cache
def _reader() -> Callable[[str], Languages] | None:
    """Returns what reads languages, or None where the package is not installed; looked up once per process."""
    try:
        import pycld2
    except ImportError:
        return None

    def read(sample: str) -> Languages:
        try:
            is_sure, _, found = pycld2.detect(sample, isPlainText=True, bestEffort=True)
        except (pycld2.error, UnicodeEncodeError):
            # CLD2 refuses control characters and lone surrogates, which say nothing about the language.
            try:
                is_sure, _, found = pycld2.detect(_UNREADABLE.sub(" ", sample), isPlainText=True, bestEffort=True)
            except (pycld2.error, UnicodeEncodeError):
                return False, ()
        return is_sure, tuple((code.partition("-")[0], percent) for _, code, percent, _ in found if code != "un")

    return read
