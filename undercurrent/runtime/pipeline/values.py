"""What a coalition is worth: a number from its generation, beside that of the whole prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from undercurrent.errors import did_you_mean
from undercurrent.runtime.domain.generation import GenerationRecord, ProbeValue
from undercurrent.runtime.errors import RuntimeStateError, RuntimeValueError

__all__ = [
    "ANSWER_VALUE",
    "FIRED_SUFFIX",
    "VALUE_NAMES",
    "AnswerScorer",
    "ExactMatch",
    "Measured",
    "Similarity",
    "ValueFunction",
    "value_function",
]

FIRED_SUFFIX = ":fired"
"""`<point>:fired` is 1 where the point's probe flagged or aborted, else 0."""
ANSWER_VALUE = "answer_log_likelihood"
"""The name under which a generator stores the log-likelihood of the whole prompt's answer."""


@runtime_checkable
class ValueFunction(Protocol):
    """Scores a generation. Pure: it is asked again when an archive is reanalysed, without the model."""

    @property
    def name(self) -> str:
        """Goes into the manifest."""

    def score(self, base: GenerationRecord, candidate: GenerationRecord) -> float:
        """The value of `candidate`; `base` is the generation of the whole prompt."""


@runtime_checkable
class AnswerScorer(Protocol):
    """A generator that can say how likely a given answer is under each prompt."""

    def score_answer(self, answer: str | None) -> None:
        """From now on each generation also measures `ANSWER_VALUE`: the summed log-probability of `answer`'s tokens."""


class Measured(msgspec.Struct, frozen=True):
    """A number that came with the generation: a probe's verdict, or the likelihood of the answer."""

    value_name: str
    """A key of `GenerationRecord.values`."""

    @property
    def name(self) -> str:
        """Of the value function."""
        return self.value_name

    def score(self, base: GenerationRecord, candidate: GenerationRecord) -> float:
        """The stored number.

        Raises:
            RuntimeValueError: the generation has no such number.
        """
        known: dict[str, ProbeValue] = dict(candidate.values or {})
        if self.value_name not in known:
            suggestion = did_you_mean(self.value_name, known) or ";"
            raise RuntimeValueError(
                f"a generation with the value {self.value_name!r} was expected, it has "
                f"{', '.join(map(repr, sorted(known))) or 'none'}{suggestion}"
                " name one of these, or generate with that probe attached"
            )
        return known[self.value_name].value


class ExactMatch(msgspec.Struct, frozen=True):
    """1 where the text is that of the whole prompt, white space aside, else 0."""

    @property
    def name(self) -> str:
        """Of the value function."""
        return "exact_match"

    def score(self, base: GenerationRecord, candidate: GenerationRecord) -> float:
        """1.0 or 0.0."""
        return float(base.text.split() == candidate.text.split())


class Similarity(msgspec.Struct, frozen=True):
    """Cosine of the two texts' word counts, 0 to 1: how much of the wording stays. Two empty texts are alike."""

    @property
    def name(self) -> str:
        """Of the value function."""
        return "similarity"

    def score(self, base: GenerationRecord, candidate: GenerationRecord) -> float:
        """The cosine, by scikit-learn's own cutting into words.

        Raises:
            RuntimeStateError: scikit-learn is not installed.
        """
        if not base.text.strip() or not candidate.text.strip():
            return float(base.text.strip() == candidate.text.strip())
        try:
            from sklearn.feature_extraction.text import CountVectorizer
            from sklearn.metrics.pairwise import cosine_similarity
        except ImportError as error:
            raise RuntimeStateError(
                f"`similarity` needs scikit-learn ({error}); install it with `pip install 'undercurrent[explain]'`"
            ) from error
        counts = CountVectorizer(token_pattern=r"(?u)\w+|[^\w\s]").fit_transform([base.text, candidate.text])
        return float(cosine_similarity(counts[0], counts[1])[0, 0])


_BY_NAME: dict[str, Callable[[], ValueFunction]] = {
    "exact_match": ExactMatch,
    "similarity": Similarity,
    ANSWER_VALUE: lambda: Measured(ANSWER_VALUE),
}
VALUE_NAMES = tuple(_BY_NAME)
"""The values that need no probe."""


def value_function(name: str) -> ValueFunction:
    """The value function of that name; any other name is that of a probe, or of another measured value.

    >>> value_function("exact_match").name
    'exact_match'
    >>> value_function("toxicity")
    Measured(value_name='toxicity')
    """
    made = _BY_NAME.get(name)
    return Measured(name) if made is None else made()
