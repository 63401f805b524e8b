"""`undercurrent bench`."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from undercurrent.cli.verbs import CLIError, NearestChoice, UsageError, data_console, json_option, print_json, say, verb
from undercurrent.errors import ProbingValueError

__all__ = ["QUESTIONS", "command"]


def _questions() -> tuple[str, ...]:
    """The benchmarks there are, by the names of their modules; none is imported."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    return tuple(sorted(path.stem.removeprefix("bench_") for path in folder.glob("bench_*.py")))


QUESTIONS = _questions()


@verb(
    "bench",
    examples=[
        ("undercurrent bench --quick", "is everything in its usual order of magnitude?"),
        ("undercurrent bench ring route", "two questions, in full"),
        ("undercurrent bench --peer --markdown bench.md", "beside the published packages, as a table"),
        ("undercurrent bench --json > bench.json", "rows and facts of the machine"),
    ],
    exit_statuses={0: "every scenario ran, whatever its figures", 1: "a scenario failed"},
)
@click.argument("questions", nargs=-1, type=NearestChoice(QUESTIONS), metavar="[QUESTION]...")
@click.option("--peer", "with_peer", is_flag=True, help="Measure the published packages too (by pip).")
@click.option("--quick", is_flag=True, help="Fewer repetitions.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write rows as JSON here.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw ours against the peer (matplotlib)."
)
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Write the table for a README here.")
@json_option
def command(
    questions: tuple[str, ...],
    *,
    with_peer: bool,
    quick: bool,
    output: Path | None,
    plot: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Measure whether Undercurrent's promises hold on this machine.

    QUESTION is one of {questions}; all by default. Each is measured beside what cannot be beaten and, with --peer,
    beside the package that did the same before (undercurrent 0.1.0; laya for predict, mllm-shap for runtime), in
    processes of its own. Figures of a busy machine say little: the load average is printed with them.
    """
    from dataclasses import asdict

    from undercurrent.benchmarks.harness import BenchmarkError, Row, Runner, check_outputs, machine_facts, write_json
    from undercurrent.benchmarks.peer import peer_python
    from undercurrent.benchmarks.report import draw_plot, markdown_table, print_table

    try:
        check_outputs(output, markdown, plot=plot, has_peer=with_peer)
    except ProbingValueError as error:
        raise UsageError(str(error)) from error
    runner = Runner(peer_python() if with_peer else None, quick, say)
    rows: list[Row] = []
    failures: dict[str, str] = {}
    for question in questions or QUESTIONS:
        try:
            rows += importlib.import_module(f"undercurrent.benchmarks.bench_{question}").run(runner)
        except BenchmarkError as error:
            failures[question] = str(error)
            say(f"{question}: {error}")
    if as_json:
        print_json({"machine": machine_facts(), "rows": [asdict(row) for row in rows], "failures": failures})
    else:
        print_table(rows, data_console())
    if output is not None:
        write_json(rows, output)
    if markdown is not None:
        markdown.write_text(markdown_table(rows), encoding="utf-8")
    if plot is not None and not draw_plot(rows, plot):
        raise CLIError(
            "no plot was drawn: it needs matplotlib (pip install 'undercurrent[bench]') and a figure of the peer"
        )
    if failures:
        raise click.exceptions.Exit(1)


command.help = (command.help or "").format(questions=", ".join(QUESTIONS))
