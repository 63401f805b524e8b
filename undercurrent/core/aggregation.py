"""How the scores of a generation become one: the words of `aggregate`, as values.

What they compute is in `undercurrent.core.builtin.aggregates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from undercurrent.errors import ProbingTypeError, ProbingValueError, did_you_mean, one_of

__all__ = ["Aggregation", "Cusum", "Each", "ExponentialMean", "Highest", "KOfN", "Mean", "read_aggregation"]


class _Form(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True, omit_defaults=True):
    """One way to bring the records of a generation together."""


class Each(_Form, frozen=True, tag="each"):
    """Each record by itself; the only one for `single_shot` points."""


class Mean(_Form, frozen=True, tag="mean"):
    """The mean margin of all records so far, or of the last `window`."""

    window: int | None = None
    min_records: int = 1
    """Nothing is flagged before so many records: a mean of one is no mean."""


class Highest(_Form, frozen=True, tag="max"):
    """The highest margin so far: once above the threshold, above it to the end."""


class ExponentialMean(_Form, frozen=True, tag="ema"):
    """The exponentially weighted mean of margins; a new record weighs `alpha`, the first one starts it."""

    alpha: float
    min_records: int = 1


class KOfN(_Form, frozen=True, tag="k_of_n"):
    """Flags while at least `k` of the last `n` records reach the threshold."""

    k: int
    n: int


class Cusum(_Form, frozen=True, tag="cusum"):
    """Flags once the margins have run above `drift` for long enough: a change of their mean, seen early.

    S = max(0, S + margin - drift), flagged while S >= `limit`; the threshold plays no part. With margins that are log
    odds this is Page's test with its log-likelihood ratio. See: Page (1954), Continuous inspection schemes,
    Biometrika 41, 100-115.
    """

    limit: float
    drift: float = 0.0


Aggregation = Each | Mean | Highest | ExponentialMean | KOfN | Cusum

_BY_WORD: dict[str, type[_Form]] = {
    "each": Each,
    "mean": Mean,
    "max": Highest,
    "ema": ExponentialMean,
    "k_of_n": KOfN,
    "cusum": Cusum,
}


def read_aggregation(value: object, where: str = "`aggregate`") -> Aggregation | None:
    """An aggregation from its word, its mapping `{kind: word, …}`, or itself; None stays None.

    >>> read_aggregation({"kind": "k_of_n", "k": 3, "n": 5})
    KOfN(k=3, n=5)

    Raises:
        ProbingTypeError: neither of these, or a parameter of the wrong type.
        ProbingValueError: an unknown word, a missing or unknown parameter, or one out of range.
    """
    if value is None:
        return None
    if isinstance(value, _Form):
        form = value
    elif isinstance(value, (str, Mapping)):
        fields: dict[str, Any] = {"kind": value} if isinstance(value, str) else dict(value)
        kind = fields.get("kind")
        if not isinstance(kind, str) or kind not in _BY_WORD:
            raise ProbingValueError(
                f"{where}: `kind` must be {one_of(_BY_WORD)}, got {kind!r}{did_you_mean(str(kind), _BY_WORD)}"
            )
        try:
            form = msgspec.convert(fields, _BY_WORD[kind])
        except msgspec.ValidationError as error:
            known = ", ".join(map(repr, _BY_WORD[kind].__struct_fields__)) or "none"
            raise ProbingValueError(f"{where}: {kind!r} takes the parameters {known}: {error}") from None
    else:
        raise ProbingTypeError(f"{where} must be {one_of(_BY_WORD)} or a mapping with `kind`, got {value!r}")
    problem = _find_problem(form)
    if problem:
        raise ProbingValueError(f"{where}: {problem}")
    return form  # type: ignore[return-value]


def _find_problem(form: _Form) -> str:
    if isinstance(form, Mean) and form.window is not None and form.window < 1:
        return f"`window` must be >= 1, got {form.window}; leave it out for the mean of all records"
    if isinstance(form, (Mean, ExponentialMean)) and form.min_records < 1:
        return f"`min_records` must be >= 1, got {form.min_records}"
    if isinstance(form, Mean) and form.window is not None and form.min_records > form.window:
        return f"`min_records` must be at most `window`, got {form.min_records} for a window of {form.window}"
    if isinstance(form, ExponentialMean) and not 0 < form.alpha <= 1:
        return f"`alpha` must be above 0 and at most 1, got {form.alpha}"
    if isinstance(form, KOfN) and not 1 <= form.k <= form.n <= _WINDOW_MAX:
        return f"expected 1 <= `k` <= `n` <= {_WINDOW_MAX}, got k={form.k}, n={form.n}"
    if isinstance(form, Mean) and form.window is not None and form.window > _WINDOW_MAX:
        return f"`window` must be at most {_WINDOW_MAX}, got {form.window}"
    if isinstance(form, Cusum) and not (0 < form.limit < float("inf") and abs(form.drift) < float("inf")):
        return f"`limit` must be a number above 0 and `drift` a number, got limit={form.limit}, drift={form.drift}"
    return ""


_WINDOW_MAX = 65_536
"""Records that an aggregation remembers per request."""
