"""How a probe's margin becomes the score that is held against its threshold."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from undercurrent.errors import ProbingTypeError, ProbingValueError

__all__ = ["Calibration", "CalibrationInput", "Isotonic", "Platt", "Raw", "Temperature", "read_calibration"]


class CalibrationInput(StrEnum):
    """What a calibration was fitted on."""

    LOGIT = "logit"
    PROBABILITY = "probability"


class _Form(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True, omit_defaults=True):
    """One way from a margin to a score."""


class Temperature(_Form, frozen=True, tag="temperature"):
    """Divides logits by a temperature above 0.

    See: Guo, Pleiss, Sun, Weinberger (2017), On calibration of modern neural networks, ICML.
    """

    temperature: float


class Platt(_Form, frozen=True, tag="platt"):
    """`sigmoid(slope * x + intercept)`.

    See: Platt (1999), Probabilistic outputs for support vector machines.
    """

    slope: float
    intercept: float
    of: CalibrationInput = CalibrationInput.LOGIT


class Isotonic(_Form, frozen=True, tag="isotonic"):
    """A rising line through the knots `calibration_x`, `calibration_y` of the weights, flat beyond its ends.

    See: Zadrozny, Elkan (2002), Transforming classifier scores into accurate multiclass probability estimates, KDD.
    """

    of: CalibrationInput = CalibrationInput.LOGIT


class Raw(_Form, frozen=True, tag="raw"):
    """The margin itself is the score, as of a support vector machine; it is no probability."""


Calibration = Temperature | Platt | Isotonic | Raw


def read_calibration(value: object, where: str = "`calibration`") -> Calibration | None:
    """A calibration from itself or its mapping `{kind: …}`; None stays None.

    Raises:
        ProbingTypeError: neither of these.
        ProbingValueError: an unknown kind or parameter, or one out of range.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        try:
            form: Calibration = msgspec.convert(dict(value), Calibration)
        except msgspec.ValidationError as error:
            raise ProbingValueError(f"{where}: {error}") from None
    elif isinstance(value, (Temperature, Platt, Isotonic, Raw)):
        form = value
    else:
        raise ProbingTypeError(f"{where} must be a calibration, a mapping with `kind`, or None, got {value!r}")
    if isinstance(form, Temperature) and not 0 < form.temperature < float("inf"):
        raise ProbingValueError(f"{where}: `temperature` must be a number above 0, got {form.temperature}")
    if isinstance(form, Platt) and not (abs(form.slope) < float("inf") and abs(form.intercept) < float("inf")):
        raise ProbingValueError(f"{where}: `slope` and `intercept` must be numbers, got {form.slope}, {form.intercept}")
    return form
