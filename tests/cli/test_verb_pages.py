"""Every verb has a page that begins with examples, and the examples are command lines that parse."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command_lines import call
from source_tree import ROOT

from undercurrent.cli.commands import VERBS, undercurrent
from undercurrent.cli.help_pages import markdown_page
from undercurrent.cli.verbs import Verb, VerbGroup


def pages(ctx: click.Context) -> Iterator[tuple[str, Verb | VerbGroup]]:
    """Yields each verb below a group with the words that call it."""
    assert isinstance(ctx.command, click.Group)
    for name in ctx.command.list_commands(ctx):
        command = ctx.command.get_command(ctx, name)
        assert isinstance(command, Verb | VerbGroup), name
        found = click.Context(command, info_name=name, parent=ctx)
        yield found.command_path, command
        if isinstance(command, click.Group):
            yield from pages(found)


ROOT_CONTEXT = click.Context(
    undercurrent, info_name="undercurrent", terminal_width=120, help_option_names=["-h", "--help"]
)
PAGES = dict(pages(ROOT_CONTEXT))
EXAMPLES = [("undercurrent", line) for line, _ in undercurrent.examples] + [
    (path, line) for path, command in PAGES.items() for line, _ in command.examples
]


@pytest.mark.parametrize("name", VERBS)
def test_line_in_the_list_is_the_first_line_of_the_page(name: str) -> None:
    assert PAGES[f"undercurrent {name}"].summary == VERBS[name].summary


@pytest.mark.parametrize("path", PAGES)
def test_page_shows_examples_before_usage(path: str) -> None:
    page = call(*path.split()[1:], "--help").output
    assert 0 < page.index("Examples:") < page.index("Usage:") < page.index("Options:")


@pytest.mark.parametrize("path", PAGES)
def test_help_verb_shows_the_page_of_the_option(path: str) -> None:
    words = path.split()[1:]
    assert call("help", *words).output == call(*words, "-h").output


@pytest.mark.parametrize("path", [path for path, command in PAGES.items() if isinstance(command, Verb)])
def test_every_verb_takes_json_and_debug(path: str) -> None:
    options = {name for parameter in PAGES[path].params for name in parameter.opts}
    assert "--debug" in options
    assert "--json" in options


@pytest.mark.parametrize(("path", "line"), EXAMPLES, ids=[line[:60] for _, line in EXAMPLES])
def test_example_is_a_command_line_that_parses(
    path: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.replace('eval "$(', "").replace(')"', ""), comments=True)
    calls = [words[index:] for index, word in enumerate(words) if word == "undercurrent"]
    assert calls, f"the example of {path} does not call undercurrent: {line}"
    for name in words:
        if re.fullmatch(r"[\w-]+\.(jsonl|yaml|py|txt|safetensors)", name):
            Path(name).touch()
    for arguments in calls:
        ends = [index for index, word in enumerate(arguments) if word in ("|", ">", "&&")]
        parse(undercurrent, arguments[1 : min(ends, default=len(arguments))])


def parse(command: click.Command, arguments: list[str]) -> None:
    """Parses a command line down to the verb that would run, and runs nothing."""
    with contextlib.suppress(click.exceptions.Exit), command.make_context("undercurrent", arguments) as ctx:
        if isinstance(command, click.Group) and ctx._protected_args + ctx.args:
            _, verb, rest = command.resolve_command(ctx, ctx._protected_args + ctx.args)
            assert verb is not None
            parse(verb, rest)


def test_list_has_every_verb_in_a_section_with_its_line() -> None:
    page = ROOT_CONTEXT.get_help()
    for name, entry in VERBS.items():
        assert f"{entry.section}:" in page
        assert any(line.split() == [name, *entry.summary.split()] for line in page.splitlines()), name


def test_pages_as_data_hold_every_verb() -> None:
    root = json.loads(call("help", "--json").stdout)
    assert [page["command"] for page in root["verbs"]] == [f"undercurrent {name}" for name in VERBS]
    (page,) = (page for page in root["verbs"] if page["command"] == "undercurrent schema")
    assert page["summary"] == VERBS["schema"].summary
    assert page["usage"] == "undercurrent schema [OPTIONS]"
    assert ["-o", "--output"] in [option["names"] for option in page["options"]]


def test_help_of_an_unknown_verb_names_the_nearest() -> None:
    answer = call("help", "validat")
    assert answer.exit_code == 2
    assert "did you mean 'validate'?" in answer.stderr


def test_help_of_a_verb_that_has_no_verbs_says_so() -> None:
    answer = call("help", "status", "now")
    assert answer.exit_code == 2
    assert "`undercurrent status` has no verbs, got 'now'" in answer.stderr


def test_guide_holds_the_pages_as_they_are() -> None:
    guide = (ROOT / "docs" / "command-line.md").read_text()
    assert guide.endswith(markdown_page(undercurrent)), (
        "put what `undercurrent help --markdown` prints behind the introduction"
    )
