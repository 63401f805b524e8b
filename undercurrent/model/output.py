"""What `ProbedModel` gives back: the outcome of one prompt, and the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, overload

from undercurrent.core import ProbeResult, ProbeSignal

__all__ = ["GenerationOutput", "ResultSource", "SignalEvent", "TokenEvent", "describe_abort"]

_TEXT_SHOWN_MAX = 60

ResultSource = Mapping[str, ProbeResult] | Future[dict[str, ProbeResult]]
"""Results by point name, or the promise of them."""


class _Results:
    """The field `probe_results`: reading it waits until the request has ended.

    A descriptor, so that `GenerationOutput` stays the plain frozen dataclass that callers compare and unpack.
    """

    @overload
    def __get__(self, instance: None, owner: type) -> None: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Mapping[str, ProbeResult]: ...
    def __get__(self, instance: object | None, owner: type) -> Mapping[str, ProbeResult] | None:
        if instance is None:
            # What the class attribute gives is the default of the field.
            return None
        source: ResultSource = instance.__dict__["probe_results"]
        return source.result() if isinstance(source, Future) else source

    def __set__(self, instance: object, source: ResultSource | None) -> None:
        instance.__dict__["probe_results"] = {} if source is None else source


@dataclass(frozen=True, repr=False)
class GenerationOutput:
    """What one prompt came to.

    The text is there when `generate` returns. `probe_results` waits when it is first read, until async probes have
    drained or the router's `drain_timeout` has passed; what is missing then stands in each result's
    `metadata["coverage"]`. Aborts are those of inline probes and known with the text.
    """

    text: str
    """The generated text without the prompt, cut before a stop string."""
    prompt: str
    request_id: str
    """The id that probes and sinks were told."""
    probe_results: _Results = _Results()
    """By point name, in the order of the spec.

    Raises, when read: RouterError, if the router was shut down before the request could end.
    """
    aborted: bool = False
    abort_reason: str | None = None
    """A sentence for people."""
    abort_signal: ProbeSignal | None = None
    abort_point: str | None = None
    token_ids: tuple[int, ...] = ()
    """The generated tokens, an end token included; empty where the engine does not say."""
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `cancelled`; None where the engine does not say."""

    @property
    def has_results(self) -> bool:
        """Whether reading `probe_results` returns at once."""
        source: ResultSource = self.__dict__["probe_results"]
        return not isinstance(source, Future) or source.done()

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= _TEXT_SHOWN_MAX else self.text[: _TEXT_SHOWN_MAX - 1] + "…"
        parts = [f"text={text!r}", f"request_id={self.request_id!r}"]
        if self.aborted:
            parts.append(f"abort_point={self.abort_point!r}")
        # A debugger or a log line must not wait for probes.
        parts.append(f"probe_results={list(self.probe_results) if self.has_results else 'pending'}")
        return f"GenerationOutput({', '.join(parts)})"

    def __reduce__(self) -> tuple[type[GenerationOutput], tuple[Any, ...]]:
        fields = (self.text, self.prompt, self.request_id, dict(self.probe_results), self.aborted, self.abort_reason)
        return GenerationOutput, (*fields, self.abort_signal, self.abort_point, self.token_ids, self.finish_reason)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token."""

    text: str
    """What became complete with it; "" while a character, or what may be a stop string, is unfinished."""
    token_id: int | None
    """None for the rest of a text that was held back."""
    index: int
    """Place among the generated tokens, from 0."""


@dataclass(frozen=True, slots=True)
class SignalEvent:
    """What a probe said about one record, while the text is generated."""

    point: str
    signal: ProbeSignal


def describe_abort(point: str | None, signal: ProbeSignal) -> str:
    """The sentence of `GenerationOutput.abort_reason`."""
    who = "an inline probe" if point is None else f"the probe of {point!r}"
    notes = []
    if signal.metadata.get("intervention_fallback"):
        notes.append(f"it gave no answer: {signal.metadata.get('reason', 'failed')}")
    if signal.confidence is not None:
        notes.append(f"confidence {signal.confidence:.2f}")
    return f"{who} stopped the generation" + (f" ({'; '.join(notes)})" if notes else "")
