"""What `explain` and `reanalyze` show: a bar while generations come, then a table, a page, or JSON."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from undercurrent.cli.verbs import data_console, print_json, say, talk_console

if TYPE_CHECKING:
    from undercurrent.runtime.pipeline import Attribution, EstimatorSettings, Explanation

__all__ = ["Progress", "show"]

_INTERACTIONS_SHOWN = 5
_BAR_CHARS = 20


class Progress:
    """A bar of generations with the time left, on standard error; a `CoalitionProgress`.

    The time left is that of the generations still to come at the pace of the last ones; what was kept already does not
    count as pace. Not on a terminal, one line says how many there are.
    """

    def __init__(self, estimator: EstimatorSettings, player_count: int, *, hides: bool) -> None:
        """Expects what the estimator's budget allows for so many parts, and the answer to the whole prompt."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        console = talk_console()
        self._bars = Bars(
            TextColumn("generating"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=hides or not console.is_terminal,
            transient=True,
        )
        total = estimator.budget_for(player_count) + 1
        self._task = self._bars.add_task("generations", total=total)
        if not hides and not console.is_terminal:
            say(f"{player_count} parts, up to {total} generations")

    def on_coalitions_planned(self, total: int) -> None:
        """An estimator asks batch by batch: its plan so far says less than its budget."""

    def on_coalition_finished(self, done: int, total: int) -> None:
        """One more is there."""
        self._bars.update(self._task, completed=done)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()


def show(explanation: Explanation, *, html: Path | None, as_json: bool) -> None:
    """Prints the answer; with `html` also writes the page."""
    if html is not None:
        from undercurrent.cli.explain_page import write_page

        write_page(explanation, html)
    if as_json:
        import msgspec

        payload = msgspec.to_builtins(explanation)
        payload["attribution"]["efficiency_gap"] = explanation.attribution.efficiency_gap
        print_json(payload)
        return
    _print_table(explanation)
    if html is not None:
        say(f"the page is {html}")


def _print_table(explanation: Explanation) -> None:
    from rich.table import Table

    found = explanation.attribution
    largest = max(map(abs, found.values), default=0.0) or 1.0
    table = Table(box=None, pad_edge=False)
    for heading, justify in (("value", "right"), ("95 % interval", "left"), ("", "left"), ("part", "left")):
        table.add_column(heading, justify=justify, no_wrap=heading != "part")  # type: ignore[arg-type]
    for index in found.ranking():
        value = found.values[index]
        bar = "█" * max(1, round(_BAR_CHARS * abs(value) / largest)) if value else ""
        colour = "red" if value > 0 else "blue"
        table.add_row(
            f"{value:+.4g}",
            interval_words(found, index),
            f"[{colour}]{bar}[/{colour}]",
            _escaped(explanation.players.players[index].label),
        )
    console = data_console()
    console.print(table)
    for group in found.interactions[:_INTERACTIONS_SHOWN]:
        labels = " + ".join(explanation.players.players[player].label for player in group.players)
        console.print(f"{group.value:+.4g} together: {_escaped(labels)}")
    for line in summary_lines(explanation):
        console.print(_escaped(line))


def interval_words(found: Attribution, index: int) -> str:
    """The interval of one value in words; empty where one run of the estimator says nothing about its error."""
    if found.is_exact:
        return "exact"
    if found.low is None or found.high is None:
        return ""
    return f"{found.low[index]:+.4g} to {found.high[index]:+.4g}"


def summary_lines(explanation: Explanation) -> list[str]:
    """What the values rest on, a sentence a line."""
    found = explanation.attribution
    metrics = explanation.metrics
    worth = (
        f"{explanation.value_name} of the whole prompt {found.grand:.4g}, without the parts {found.empty:.4g}; the "
        f"values sum to {sum(found.values):.4g}, {abs(found.efficiency_gap):.2g} from the difference"
    )
    work = (
        f"{found.evaluations} coalitions by {found.estimator} ({found.index}), absent parts by "
        f"`{explanation.absence_policy}`; {metrics.executed} generated, {metrics.cache_hits} from before"
    )
    lines = [worth, work]
    if metrics.kv_cache_reused_tokens:
        lines.append(f"{metrics.kv_cache_reused_tokens} prompt tokens were not computed again")
    return lines


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
