"""`undercurrent help`: the page of a verb, or of all verbs as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from undercurrent.cli.verbs import Verb, VerbGroup, complete_verbs, json_option, print_json, refuse_unknown_verb, verb

__all__ = ["command", "markdown_page"]

_PAGE_WIDTH = 100


@verb(
    "help",
    examples=[
        ("undercurrent help", "the list of verbs"),
        ("undercurrent help validate", "the page of one"),
        ("undercurrent help --json | jq -r '.verbs[].command'", "pages as data"),
        ("undercurrent help --markdown > command-line.md", "all pages in one document"),
    ],
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print every page, as docs/command-line.md has them.")
@json_option
@click.argument("path", nargs=-1, metavar="[VERB]...", shell_complete=complete_verbs)
@click.pass_context
def command(ctx: click.Context, path: tuple[str, ...], *, as_markdown: bool, as_json: bool) -> None:
    """Show the page of a verb.

    The same page as `undercurrent VERB --help`. A verb of a verb takes two words: `undercurrent help probe train`. With
    --json the page, and those of the verbs below it, as name, summary, examples, usage, options and text.
    """
    root = ctx.find_root()
    if as_markdown:
        click.echo(markdown_page(root.command), nl=False)
        return
    shown = root
    for name in path:
        if not isinstance(shown.command, click.Group):
            raise click.UsageError(f"`{shown.command_path}` has no verbs, got {name!r}", ctx)
        refuse_unknown_verb(shown.command, shown, name)
        found = shown.command.get_command(shown, name)
        assert found is not None
        shown = click.Context(found, info_name=name, parent=shown)
    if as_json:
        print_json(_described(shown))
    else:
        click.echo(shown.get_help())


def _described(ctx: click.Context) -> dict[str, Any]:
    """A page as data, with the pages of the verbs below it."""
    page = ctx.command
    assert isinstance(page, Verb | VerbGroup)
    return {
        "command": ctx.command_path,
        "summary": page.summary,
        "examples": [{"line": line, "meaning": meaning} for line, meaning in page.examples],
        "usage": ctx.get_usage().removeprefix("Usage: "),
        "options": [
            {"names": param.opts, "help": param.help, "required": param.required}
            for param in page.get_params(ctx)
            if isinstance(param, click.Option)
        ],
        "text": ctx.get_help(),
        "verbs": [_described(below) for below in _verbs_below(ctx)],
    }


def markdown_page(root: click.Command) -> str:
    """Every page at a fixed width, the root's first; what `docs/command-line.md` holds behind its introduction."""
    context = click.Context(root, info_name="undercurrent", terminal_width=_PAGE_WIDTH, **root.context_settings)
    return "\n".join(f"## `{path}`\n\n```text\n{text}\n```\n" for path, text in _pages(context))


def _pages(ctx: click.Context) -> Iterator[tuple[str, str]]:
    yield ctx.command_path, ctx.get_help()
    for below in _verbs_below(ctx):
        yield from _pages(below)


def _verbs_below(ctx: click.Context) -> Iterator[click.Context]:
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            found = ctx.command.get_command(ctx, name)
            assert found is not None
            yield click.Context(found, info_name=name, parent=ctx)
