"""What `undercurrent decide` shows: one result as a table, many as lines, and how far it is."""

from __future__ import annotations

import re
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.verbs import data_console, print_json, say, talk_console

if TYPE_CHECKING:
    from undercurrent.cli.decide_input import StateLines

__all__ = ["Lines", "StateProgress", "show_result"]

_LINE_EVERY_S = 10.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_VALUE_KEYS = {"choice": "choice", "score": "score", "noul": "noul"}


def show_result(result: dict[str, Any]) -> None:
    """Prints the answers of one state, and which checkpoint gave them."""
    from rich.table import Table
    from rich.text import Text

    table = Table("question", "answer", "probability", "notes")
    for name, answer in result["answers"].items():
        table.add_row(*map(Text, (str(name), _value(answer), _probability(answer), _notes(answer))))
    data_console().print(table)
    routing = result.get("routing") or {}
    say(f"answered by {routing.get('model')}: {routing.get('reason')}")
    cut = (result.get("usage") or {}).get("state_tokens_dropped")
    if cut:
        say(f"{cut} tokens of the state did not fit and were not read")


class Lines:
    """Answers of many states on standard output, one line each, as they come."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def write(self, name: Any, result: dict[str, Any]) -> None:
        """Writes one."""
        if self._as_json:
            print_json({"id": name, **result}, indent=False)
            return
        answers = (f"{key}={_value(answer)} ({_brief(answer)})" for key, answer in result["answers"].items())
        # A line is a state, and a column an answer, whatever ids and labels hold.
        click.echo("\t".join(_CONTROL.sub("?", text) for text in (str(name), *answers)))


class StateProgress:
    """A bar of bytes read with the time left, on standard error; without a terminal a line every ten seconds."""

    def __init__(self, lines: StateLines) -> None:
        self._lines = lines
        self._console = talk_console()
        self._bar: Any = None
        self._task: Any = None
        self._told_at = time.monotonic()

    def __enter__(self) -> StateProgress:
        if self._console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("0 states", total=self._lines.bytes_total)
            self._bar.start()
        return self

    def advance(self, count: int) -> None:
        """`count` states are written."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self._lines.bytes_read, description=f"{count} states")
        elif time.monotonic() - self._told_at >= _LINE_EVERY_S:
            self._told_at = time.monotonic()
            say(f"{count} states")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _value(answer: dict[str, Any]) -> str:
    value = answer.get(_VALUE_KEYS.get(str(answer.get("type")), "verdict"))
    if answer.get("type") == "noul" and isinstance(value, int | float):
        return "yes" if value >= 0.5 else "no"
    return "-" if value is None else str(value)


def _probability(answer: dict[str, Any]) -> str:
    value = answer.get("answer_confidence", answer.get("confidence"))
    return f"{value:.2f}" if isinstance(value, int | float) else "-"


def _notes(answer: dict[str, Any]) -> str:
    state = answer.get("abstention")
    return str(state) if state not in (None, "passed") else ""


def _brief(answer: dict[str, Any]) -> str:
    notes = _notes(answer)
    return f"{_probability(answer)}, {notes}" if notes else _probability(answer)
