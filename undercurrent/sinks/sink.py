"""`LogSink`: where the signals and results of async probes go."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, Literal, Self

from undercurrent.core import ProbeResult, ProbeSignal
from undercurrent.errors import ProbingTypeError
from undercurrent.sinks.jsonable import to_jsonable
from undercurrent.sinks.redaction import RedactFn

__all__ = ["LogSink", "takes_record", "wire_router"]

_logger = logging.getLogger("undercurrent.sinks.sink")


class LogSink(ABC):
    """The base of the built-in sinks, and of custom ones that want redaction.

    A router takes any object with `write_signal` and `write_result`. A sink whose class itself says `travels` is
    pickled to the workers, which call it in their own processes; any other, one of a derived class too, is called in
    the process that attached it, on one thread.
    """

    travels = False
    redaction_error_count = 0
    """Records that were dropped because the redaction raised or returned no dict."""
    _redact: RedactFn | None = None

    def __init__(self, *, redact: RedactFn | None = None) -> None:
        if redact is not None and not callable(redact):
            raise ProbingTypeError(f"`redact` must be a function from a record to a record or None, got {redact!r}")
        self._redact = redact

    @abstractmethod
    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        """Takes one signal of an async probe."""

    @abstractmethod
    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
        """Takes the final result of an async probe."""

    def flush(self) -> None:  # noqa: B027 - a sink that holds nothing back has nothing to do
        """Writes what a batch of the calling thread holds back. Waits for nobody outside of this machine."""

    def close(self) -> None:  # noqa: B027 - as above
        """Brings what was written to where it belongs and gives back what the sink holds. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _apply_redaction(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the record as it may be written, None for not at all; `record` itself stays as it is.

        A redaction that fails lets nothing through: the record is dropped and counted.
        """
        if self._redact is None:
            return record
        try:
            redacted = self._redact(to_jsonable(record))
            if redacted is None:
                return None
            if not isinstance(redacted, dict):
                raise ProbingTypeError(f"`redact` must return a dict or None, got `{type(redacted).__name__}`")
        except Exception as error:
            self.redaction_error_count += 1
            # The error's own words may quote what was to be hidden.
            _logger.warning(
                "sink %s: the redaction failed with %s; the record is dropped (%d so far)",
                type(self).__name__,
                type(error).__name__,
                self.redaction_error_count,
            )
            return None
        return redacted


def takes_record(sink: object, kind: Literal["signal", "result"]) -> bool:
    """Whether `sink` is to be given whole records of this kind.

    It has `write_<kind>_record`, and no class below the one that brings it has a `write_<kind>` of its own: whoever
    overrides `write_signal` of a built-in sink means to see every signal.
    """
    cls: Any = type(sink)
    return _takes_record(cls, kind)


@lru_cache(maxsize=256)
def _takes_record(cls: type, kind: str) -> bool:
    for base in cls.__mro__:
        if f"write_{kind}_record" in vars(base):
            return True
        if f"write_{kind}" in vars(base):
            return False
    return False


def wire_router(router: Any, sink: Any) -> None:
    """Attaches `sink` to `router`, as `router.attach_log_sink(sink)` does.

    Raises:
        ProbingTypeError: `router` is no router.
    """
    if not hasattr(router, "attach_log_sink"):
        raise ProbingTypeError(f"`router` must have `attach_log_sink`, got `{type(router).__name__}`")
    router.attach_log_sink(sink)
