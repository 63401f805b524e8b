"""Options that `explain` and `reanalyze` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from undercurrent.cli.verbs import json_option

__all__ = ["estimator_options", "output_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def estimator_options(function: _Function) -> _Function:
    """Adds `--estimator`, `--budget`, `--interactions`, `--seed`."""
    for option in (
        click.option(
            "--seed", type=int, default=42, show_default=True, help="Makes the choice of coalitions repeatable."
        ),
        click.option(
            "--interactions",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Largest group of parts that gets a value of its own.",
        ),
        click.option(
            "--budget",
            type=click.IntRange(min=1),
            help="Most generations.  [default: all for up to 10 parts, else 64 for each]",
        ),
        click.option(
            "--estimator",
            default="kernel",
            show_default=True,
            metavar="NAME",
            help="exact, kernel, unbiased_kernel, permutation, stratified, svarm, regression_adjusted, owen, banzhaf, "
            "or loo.",
        ),
    ):
        function = option(function)
    return function


def output_options(function: _Function) -> _Function:
    """Adds `--html` and `--json`."""
    page = click.option(
        "--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page with the prompt coloured."
    )
    return page(json_option(function))
