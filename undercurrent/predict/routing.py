"""Which checkpoint answers a request, and why; nothing is loaded here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from undercurrent.predict.errors import PredictTypeError, PredictValueError
from undercurrent.predict.language import detect

__all__ = ["ENGLISH", "MULTILINGUAL", "LanguageGuess", "RouteDecision", "decide", "model_of"]

ENGLISH = "english"
MULTILINGUAL = "multilingual"

LanguageGuess = str | Callable[[Any], str | None] | None
"""A language code, or a function of the state that returns one, or None where it does not know."""

# Codes a locale or a standard uses to say that no language is meant.
_NO_LANGUAGE = frozenset({"", "c", "posix", "und", "zxx", "mul"})


class RouteDecision(dict[str, Any]):
    """Where a request goes: `model`, `repo` (where it is loaded from, if that is text), `reason`, `detection`."""

    @property
    def model(self) -> str:
        """The checkpoint's name."""
        return str(self["model"])

    @property
    def reason(self) -> str:
        """Why it goes there, in words."""
        return str(self["reason"])

    def __repr__(self) -> str:
        return f"RouteDecision(model={self.get('model')!r}, reason={self.get('reason')!r})"


def decide(
    state: Any,
    *,
    lang: str | None,
    guesses: tuple[LanguageGuess, ...],
    default: str,
    wants_language: bool = False,
) -> tuple[str, str, dict[str, Any] | None]:
    """Returns checkpoint, reason and what was detected. First what the caller says, then guesses, then the text
    itself."""
    named = _language(lang)
    if named is not None:
        return _reader_of(named), f"the call says that the language is {named!r}", None
    for guess in guesses:
        if guess is not None:
            named = _language(guess(state) if callable(guess) else guess)
            if named is not None:
                return _reader_of(named), f"`lang_guess` says that the language is {named!r}", None
    found = detect(state, wants_language=wants_language)
    detection = {"script": found.script, "language": found.language, "foreign": found.foreign}
    if found.script == "unknown":
        return default, f"no letters; the default is {default!r}", detection
    if found.script != "latin":
        return MULTILINGUAL, f"the script is {found.script}, which the English checkpoint cannot read", detection
    if found.language is None:
        why = "no language recognised" if found.is_available else _NOT_AVAILABLE
        return default, f"Latin script, {why}; the default is {default!r}", detection
    if found.is_english:
        return ENGLISH, "English", detection
    return MULTILINGUAL, f"the language is {found.foreign or found.language!r}, not English alone", detection


_NOT_AVAILABLE = "languages are not looked for (pip install 'undercurrent[predict]')"


def model_of(decision: object) -> str:
    """Returns the checkpoint that a decision names.

    Raises:
        PredictTypeError, PredictValueError: a hook has left something that names none.
    """
    if not isinstance(decision, Mapping):
        raise PredictTypeError(f"`ctx.decision` must be a dict with `model`, a hook left {type(decision).__name__}")
    model = decision.get("model")
    if not isinstance(model, str):
        raise PredictValueError(f"`ctx.decision` must name a checkpoint as `model`, a hook left {model!r}")
    return model


def _language(code: object) -> str | None:
    """Returns the language of a code such as "en", "en-GB" or "en_US.UTF-8"; None where it names none."""
    if code is None:
        return None
    if not isinstance(code, str):
        raise PredictTypeError(f"a language must be a code such as 'en' or 'pt-BR', got {code!r}")
    primary = code.strip().lower().partition(".")[0].replace("_", "-").partition("-")[0]
    return None if primary in _NO_LANGUAGE else primary


def _reader_of(language: str) -> str:
    return ENGLISH if language in ("en", "eng", "english") else MULTILINGUAL
