"""`python -m undercurrent.benchmarks`: does it hold on this machine?"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click
from rich.console import Console

from undercurrent.benchmarks.harness import BenchmarkError, Row, Runner, check_outputs, write_json
from undercurrent.benchmarks.peer import peer_python
from undercurrent.benchmarks.report import draw_plot, markdown_table, print_table
from undercurrent.errors import ProbingValueError

QUESTIONS = ("ring", "route", "gil", "throughput", "bindings", "latency", "recovery", "runtime", "predict")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("questions", nargs=-1, type=click.Choice(QUESTIONS), metavar="[QUESTION]...")
@click.option("--peer", "with_peer", is_flag=True, help="Measure the published packages too (by pip).")
@click.option("--quick", is_flag=True, help="Fewer repetitions: is everything in its usual order of magnitude?")
@click.option("--json", "json_path", type=_FILE, help="Write rows and machine facts here.")
@click.option("--plot", "plot_path", type=_FILE, help="Draw ours against the peer (matplotlib).")
@click.option("--markdown", "markdown_path", type=_FILE, help="Write the table for a README.")
def main(
    questions: tuple[str, ...],
    *,
    with_peer: bool,
    quick: bool,
    json_path: Path | None,
    plot_path: Path | None,
    markdown_path: Path | None,
) -> None:
    """Measure each QUESTION (all of them by default) beside its floor in the same run.

    QUESTION is one of {questions}.

    Every scenario runs in a process of its own. Figures of a busy machine say little: the load average is printed with
    them. Exit code 1 means that a scenario failed or a file could not be written, never that a figure was missed.
    """
    try:
        check_outputs(json_path, markdown_path, plot=plot_path, has_peer=with_peer)
    except ProbingValueError as error:
        raise click.UsageError(str(error)) from error
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    console = Console(stderr=True)
    failed = False
    rows: list[Row] = []
    try:
        runner = Runner(peer_python() if with_peer else None, quick, lambda text: console.print(f"[dim]{text}[/]"))
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    for question in questions or QUESTIONS:
        try:
            rows += importlib.import_module(f"undercurrent.benchmarks.bench_{question}").run(runner)
        except BenchmarkError as error:
            failed = True
            console.print(f"[red]{question}[/]: {error}", highlight=False)
    print_table(rows, Console(width=None if sys.stdout.isatty() else 150))
    if json_path:
        write_json(rows, json_path)
    if markdown_path:
        markdown_path.write_text(markdown_table(rows), encoding="utf-8")
    if plot_path and not draw_plot(rows, plot_path):
        console.print("no plot: it needs matplotlib (the `bench` extra) and a figure of the peer")
    sys.exit(1 if failed else 0)


main.help = (main.help or "").format(questions=", ".join(QUESTIONS))

if __name__ == "__main__":
    main(prog_name="python -m undercurrent.benchmarks")
