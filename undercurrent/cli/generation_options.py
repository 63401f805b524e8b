"""Options of the verbs that generate from prompts: `run` and `record`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

__all__ = ["as_settings", "generation_options", "prompt_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def prompt_options(function: _Function) -> _Function:
    """Adds `--prompt`, passed as `prompts`, and `--prompts-file`; see `prompts.read_prompts`."""
    for option in (
        click.option(
            "--prompts-file",
            metavar="FILE",
            help="One prompt a line, or .jsonl with the key prompt or text; - is stdin.",
        ),
        click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="A prompt; repeatable."),
    ):
        function = option(function)
    return function


def generation_options(function: _Function) -> _Function:
    """Adds `--max-new-tokens`, `--temperature`, `--top-p`, `--seed`, `--stop`; see `as_settings`."""
    for option in (
        click.option("--stop", multiple=True, metavar="TEXT", help="End the text before this string; repeatable."),
        click.option("--seed", type=int, help="Makes sampling repeatable."),
        click.option("--top-p", type=click.FloatRange(min=0, max=1), help="Sample from the most likely tokens only."),
        click.option(
            "--temperature", type=click.FloatRange(min=0), help="Above 0 samples; 0 is greedy, as without it."
        ),
        click.option(
            "--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens per prompt."
        ),
    ):
        function = option(function)
    return function


def as_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """What `generate` takes of the values of `generation_options`: those that were given."""
    settings = {name: value for name, value in given.items() if value not in (None, ())}
    if "stop" in settings:
        settings["stop"] = list(settings["stop"])
    return settings
