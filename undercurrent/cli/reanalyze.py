"""`undercurrent reanalyze`: scores a finished run again, without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from undercurrent.cli.explain_options import estimator_options, output_options
from undercurrent.cli.verbs import verb

__all__ = ["command"]


@verb(
    "reanalyze",
    examples=[
        ("undercurrent reanalyze runs/4f2a", "the run's own answer again"),
        ("undercurrent reanalyze runs/4f2a --value similarity --html why.html", "another value, as a page"),
        ("undercurrent reanalyze runs/4f2a --estimator banzhaf --json", "another estimator, where the run was exact"),
    ],
    exit_statuses={
        0: "every part has its value",
        1: "the run has not finished, or lacks what is asked for",
        2: "the command line is wrong",
    },
)
@click.argument("run_folder", metavar="RUN_FOLDER", type=click.Path(file_okay=False, path_type=Path))
@click.option("--value", metavar="VALUE", help="What is explained.  [default: what the run explained]")
@estimator_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, /, run_folder: Path, *, value: str | None, html: Path | None, as_json: bool, **options: Any
) -> None:
    """Score a finished run again, without the model.

    Reads the run folder of `undercurrent explain` and writes nothing to it. Without options the answer is that of the
    run. Another estimator finds its coalitions only in a run that generated all of them.
    """
    from undercurrent.cli.explain_views import show
    from undercurrent.runtime.pipeline import EstimatorSettings, reanalyze

    is_given = any(
        ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        for name in ("estimator", "budget", "interactions", "seed")
    )
    estimator = (
        EstimatorSettings(
            name=options["estimator"],
            budget=options["budget"],
            interactions=options["interactions"],
            seed=options["seed"],
        )
        if is_given
        else None
    )
    show(reanalyze(run_folder, value=value, estimator=estimator), html=html, as_json=as_json)
