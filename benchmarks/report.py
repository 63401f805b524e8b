"""The table and the plot of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from undercurrent.benchmarks.harness import Row, machine_facts


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Prints one line per row; a figure that misses its target is marked."""
    table = Table(title="undercurrent benchmarks", title_justify="left")
    for heading, justify in (("what", "left"), ("ours", "right"), ("target", "right"), ("", "center")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("peer", justify="right")
    table.add_column("beside it", justify="right")
    for row in rows:
        mark = {True: "[green]ok[/]", False: "[red]missed[/]", None: ""}[row.is_reached]
        table.add_row(row.what, _figure(row.ours, row.unit), row.target, mark, _peer(row), _floor(row))
    console.print(table)
    facts = machine_facts()
    console.print(
        f"{facts['cpus']} x {facts['cpu']}, kernel {facts['kernel']}, Python {facts['python']}, "
        f"commit {facts['commit']}, load {facts['load_average'][0]}",
        highlight=False,
    )


def markdown_table(rows: Sequence[Row]) -> str:
    """The same table for a README."""
    lines = ["| what | ours | target | | peer | beside it |", "|---|---|---|---|---|---|"]
    for row in rows:
        mark = {True: "ok", False: "missed", None: ""}[row.is_reached]
        cells = [row.what, _figure(row.ours, row.unit), row.target, mark, _peer(row), _floor(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_plot(rows: Sequence[Row], path: Path) -> bool:
    """Draws ours against the peer as ratios; False where matplotlib is missing or nothing can be compared."""
    compared = [row for row in rows if row.ours and row.peer and row.ours > 0 and row.peer > 0]
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    if not compared:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot

    better = [_advantage(row) for row in compared]
    figure, axes = pyplot.subplots(figsize=(9, 0.4 * len(compared) + 1.5))
    axes.barh([row.what for row in compared], better, color=["#2a7" if ratio >= 1 else "#c44" for ratio in better])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("times better than the peer (log)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _advantage(row: Row) -> float:
    assert row.ours is not None
    assert row.peer is not None
    is_larger_better = row.unit.endswith("/s") and "wake" not in row.what
    return row.ours / row.peer if is_larger_better else row.peer / row.ours


def _figure(number: float | None, unit: str) -> str:
    if number is None:
        return "-"
    shown = f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
    return f"{shown} {unit}".strip()


def _peer(row: Row) -> str:
    return "-" if row.peer is None else f"{_figure(row.peer, row.unit)} ({row.peer_name})"


def _floor(row: Row) -> str:
    return "" if row.floor is None else f"{_figure(row.floor, row.unit)} ({row.floor_name})"
