"""What `undercurrent run` shows: a moving table on a terminal, text into a pipe, or one JSON event a line."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import click

from undercurrent.cli.verbs import data_console, print_json, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from undercurrent.core import ProbeResult, ProbeSignal
    from undercurrent.model import GenerationOutput, SignalEvent, TokenEvent
    from undercurrent.spec import ProbeSpec

__all__ = ["RunView", "choose_view", "spell_verdict"]

_REFRESHES_PER_S = 8
# Flags and aborts of a point that are said one by one; a probe may flag every token.
_SAID_MAX = 3
_PROMPT_WIDTH = 60
_VERDICT_WIDTH = 160
# Lines of a terminal that the table and its surroundings need beside the text.
_LINES_KEPT = 6


class RunView(Protocol):
    """Told what happens, in order, by one thread; entered before the first prompt and left after the last."""

    def begin(self, index: int, prompt: str) -> None:
        """A prompt is given to the model."""

    def show(self, event: TokenEvent | SignalEvent | GenerationOutput) -> None:
        """A token or a signal came; the outcome, which comes last, is left to `end`."""

    def end(self, output: GenerationOutput, results: Mapping[str, ProbeResult]) -> None:
        """The text is complete, and so are the verdicts."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


def choose_view(spec: ProbeSpec, *, as_json: bool) -> RunView:
    """The view that suits where standard output goes."""
    if as_json:
        return JsonView()
    return LiveView(spec) if sys.stdout.isatty() else PlainView()


class _View:
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        pass


class JsonView(_View):
    """One event a line, each written as it comes. Its keys are in docs/command-line.md."""

    def __init__(self) -> None:
        self._index = 0
        self._began = 0.0

    def begin(self, index: int, prompt: str) -> None:
        """Writes `start`."""
        self._index, self._began = index, time.monotonic()
        self._write("start", prompt=prompt)

    def show(self, event: TokenEvent | SignalEvent | GenerationOutput) -> None:
        """Writes `token` or `signal`."""
        from undercurrent.model import SignalEvent, TokenEvent

        if isinstance(event, TokenEvent):
            self._write("token", index=event.index, token_id=event.token_id, text=event.text)
        elif isinstance(event, SignalEvent):
            self._write("signal", point=event.point, **_signal_fields(event.signal))

    def end(self, output: GenerationOutput, results: Mapping[str, ProbeResult]) -> None:
        """Writes `end`, with every verdict and what it covers."""
        self._write(
            "end",
            request_id=output.request_id,
            text=output.text,
            finish_reason=output.finish_reason,
            aborted=output.aborted,
            abort_point=output.abort_point,
            abort_reason=output.abort_reason,
            results={
                name: {"verdict": result.verdict, "metadata": result.metadata} for name, result in results.items()
            },
            seconds=round(time.monotonic() - self._began, 3),
        )

    def _write(self, event: str, **fields: Any) -> None:
        from undercurrent.sinks import to_jsonable

        print_json({"event": event, "prompt_index": self._index, **to_jsonable(fields)}, indent=False)


class PlainView(_View):
    """The text on standard output as it comes; what needs attention, and the verdicts, on standard error."""

    def __init__(self) -> None:
        self._said: Counter[str] = Counter()

    def begin(self, index: int, prompt: str) -> None:
        """Says which prompt it is."""
        self._said.clear()
        say(f"prompt {index + 1}: {_cut(prompt)}")

    def show(self, event: TokenEvent | SignalEvent | GenerationOutput) -> None:
        """Writes a token's text, and a line for the first signals of a point that are more than a score."""
        from undercurrent.model import SignalEvent, TokenEvent

        if isinstance(event, TokenEvent):
            click.echo(event.text, nl=False)
        elif isinstance(event, SignalEvent) and event.signal.action != "continue":
            self._said[event.point] += 1
            if self._said[event.point] > _SAID_MAX:
                return
            say(f"{_action(event.signal)} by {event.point}{_scored(event.signal)}")

    def end(self, output: GenerationOutput, results: Mapping[str, ProbeResult]) -> None:
        """Ends the line of the text and says the verdicts."""
        click.echo()
        if output.aborted:
            say(f"stopped: {output.abort_reason}")
        for name, result in results.items():
            more = self._said[name] - _SAID_MAX
            say(f"{name}: {_verdict(result)}{f'; {more} more signals like these' if more > 0 else ''}")


@dataclass(slots=True)
class PointTally:
    """The signals of one point so far."""

    mode: str
    signals: int = 0
    flags: int = 0
    aborts: int = 0
    last: float | None = None
    highest: float | None = None

    def add(self, signal: ProbeSignal) -> None:
        """Counts one."""
        self.signals += 1
        self.flags += signal.action == "flag"
        self.aborts += signal.action == "abort"
        score = _score(signal)
        if score is not None:
            self.last = score
            self.highest = score if self.highest is None else max(self.highest, score)


class LiveView(_View):
    """The end of the text above a table that moves; when a prompt is done, both stay on the screen in full."""

    def __init__(self, spec: ProbeSpec) -> None:
        from rich.live import Live

        self._console = data_console()
        self._spec = spec
        self._text: list[str] = []
        self._tallies: dict[str, PointTally] = {}
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
            vertical_overflow="crop",
        )

    def begin(self, index: int, prompt: str) -> None:
        """Prints the prompt and starts the table anew."""
        from rich.text import Text

        self._text = []
        self._tallies = {point.name: PointTally(str(point.execution_mode.value)) for point in self._spec}
        self._console.print(Text.assemble((f"prompt {index + 1}  ", "dim"), (_printable(prompt), "bold")))
        self._live.start(refresh=True)

    def show(self, event: TokenEvent | SignalEvent | GenerationOutput) -> None:
        """Adds to the text or to the table; drawn a few times a second."""
        from undercurrent.model import SignalEvent, TokenEvent

        if isinstance(event, TokenEvent):
            self._text.append(_printable(event.text))
        elif isinstance(event, SignalEvent):
            self._tallies[event.point].add(event.signal)

    def end(self, output: GenerationOutput, results: Mapping[str, ProbeResult]) -> None:
        """Takes the moving picture away, and prints the text, the table and the verdicts for good."""
        from rich.text import Text

        self._live.stop()
        self._console.print(Text(_printable(output.text)))
        if output.aborted:
            self._console.print(Text(f"stopped: {output.abort_reason}", style="bold red"))
        self._console.print(self._table())
        for name, result in results.items():
            self._console.print(Text.assemble((name, "bold"), f": {_verdict(result)}"))

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        text = Text("".join(self._text))
        lines = text.wrap(self._console, self._console.width)
        room = max(3, self._console.height - len(self._tallies) - _LINES_KEPT)
        return Group(*lines[-room:], Text(), self._table())

    def _table(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("point", "mode"):
            table.add_column(heading, overflow="fold")
        for heading in ("signals", "last", "highest", "flags", "aborts"):
            table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
        for name, tally in self._tallies.items():
            table.add_row(
                name,
                tally.mode,
                str(tally.signals),
                _number(tally.last),
                _number(tally.highest),
                Text(str(tally.flags), style="yellow" if tally.flags else ""),
                Text(str(tally.aborts), style="red" if tally.aborts else ""),
            )
        return table


def _signal_fields(signal: ProbeSignal) -> dict[str, Any]:
    return {
        "action": _action(signal),
        "confidence": signal.confidence,
        "metadata": signal.metadata,
        "timestamp": signal.timestamp,
    }


def _action(signal: ProbeSignal) -> str:
    return str(getattr(signal.action, "value", signal.action))


def _score(signal: ProbeSignal) -> float | None:
    """The number a signal carries: what its metadata calls score, else its confidence."""
    for value in (signal.metadata.get("score"), signal.confidence):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def _scored(signal: ProbeSignal) -> str:
    score = _score(signal)
    return "" if score is None else f", score {score:.4g}"


def _verdict(result: ProbeResult) -> str:
    """A verdict in a line, and what it is based on."""
    return f"{spell_verdict(result.verdict, width=_VERDICT_WIDTH)} ({_covered(result)})"


def spell_verdict(given: object, *, width: int) -> str:
    """A verdict in a line of at most `width` characters: the entries of a mapping in turn, numbers short."""
    from undercurrent.sinks import to_jsonable

    verdict = to_jsonable(given)
    if isinstance(verdict, dict):
        text = ", ".join(f"{key} {_plain(value)}" for key, value in verdict.items())
    else:
        text = _plain(verdict)
    return _cut(text, width)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _covered(result: ProbeResult) -> str:
    """What a verdict is based on, in words."""
    coverage = result.metadata.get("coverage")
    if not isinstance(coverage, Mapping):
        return "coverage unknown"
    of = f"{coverage.get('seen')} of {coverage.get('routed')} records"
    return of if coverage.get("complete") else f"{of}, incomplete: {', '.join(map(str, coverage.get('reasons', ())))}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _cut(text: str, width: int = _PROMPT_WIDTH) -> str:
    line = " ".join(_printable(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _printable(text: str) -> str:
    """`text` without control characters: what a model writes may not move the cursor or ring the bell."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)
