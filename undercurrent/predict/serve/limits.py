"""What a server of decisions takes on, and how long it works on it."""

from __future__ import annotations

import math

import msgspec

from undercurrent.predict.errors import PredictValueError

__all__ = ["ServeLimits"]


class ServeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one `DecisionApp`; beyond each of them a client gets an answer that names it.

    Raises:
        PredictValueError: a number is out of range.
    """

    body_bytes_max: int = 1 << 20
    batch_size_max: int = 256
    """Requests of one batch."""
    question_count_max: int = 64
    """Questions of one request."""
    nesting_max: int = 32
    """Levels of objects and lists within a state or a question."""
    concurrency: int = 2
    """Calls of the Router at once, each on a thread."""
    queue_depth: int = 32
    """Requests that may wait for a thread; a further one is refused with 503 and `Retry-After`."""
    body_timeout_s: float = 10.0
    """From a request's head to the end of its body."""
    timeout_s: float = 30.0
    """From the end of the body to the answer, waiting included."""
    stop_timeout_s: float = 20.0
    """How long a stop waits for the requests it has."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            lowest = 0 if name == "queue_depth" else 1
            if name.endswith("_s"):
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                    raise PredictValueError(f"`{name}` must be a number of seconds above 0, got {value!r}")
            elif type(value) is not int or value < lowest:
                raise PredictValueError(f"`{name}` must be an int >= {lowest}, got {value!r}")
