"""The table of verbs and the group that finds them.

A verb's module is imported when the verb is asked for, and for no other: its line in the list stands here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from undercurrent.cli.failures import EXIT_STATUSES, run_guarded
from undercurrent.cli.verbs import VerbGroup, write_examples

__all__ = ["VERBS", "main", "undercurrent"]

COMPLETE_VARIABLE = "_UNDERCURRENT_COMPLETE"


@dataclass(frozen=True, slots=True)
class VerbEntry:
    """Where a verb is found, and its line in the list."""

    section: str
    module: str
    """Below `undercurrent.cli`; exposes `command`."""
    summary: str


VERBS = {
    "init": VerbEntry("Begin", "init", "Write an example spec and its probes"),
    "doctor": VerbEntry("Begin", "doctor", "Check that this machine has what Undercurrent needs"),
    "validate": VerbEntry("Specs and models", "validate", "Check spec files and list every problem"),
    "schema": VerbEntry("Specs and models", "schema", "Print the format of specs as JSON Schema"),
    "inspect-model": VerbEntry("Specs and models", "inspect_model", "Show what probes can read from a model"),
    "run": VerbEntry("Run", "run", "Generate while probes watch, and show what they say"),
    "record": VerbEntry("Run", "record", "Keep what a model computes, to replay it through other probes"),
    "replay": VerbEntry("Run", "replay", "Test probes on what a model computed before"),
    "decide": VerbEntry("Run", "decide", "Answer typed questions about texts"),
    "probe": VerbEntry("Probes", "probe", "Train probes on labelled texts, test them, and show what a file holds"),
    "explain": VerbEntry("Explain", "explain", "Say which parts of a prompt made the probe fire"),
    "reanalyze": VerbEntry("Explain", "reanalyze", "Score a finished run again, without the model"),
    "status": VerbEntry("Operate", "status", "Show the routers that run on this machine: workers, bindings, counters"),
    "bench": VerbEntry("Operate", "bench", "Measure whether Undercurrent's promises hold on this machine"),
    "version": VerbEntry("About", "version", "Print the versions of Undercurrent and of what it stands on"),
    "completion": VerbEntry("About", "completion", "Print the script by which a shell completes this command"),
    "help": VerbEntry("About", "help_pages", "Show the page of a verb"),
}

EXAMPLES = (
    ("undercurrent init && undercurrent doctor", "an example to begin with, and whether it can run here"),
    ("undercurrent validate probes.yaml", "every problem of a spec, with its line"),
    ("undercurrent run probes.yaml --import my_probes.py --model tiny --prompt Hello", "probes beside a model"),
    ("undercurrent help run", "the page of a verb, examples first"),
)


class VerbTable(VerbGroup):
    """The group of all verbs; imports the module of the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name, imported now; None where there is none."""
        entry = VERBS.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(f"undercurrent.cli.{entry.module}").command
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Completes names of verbs from the table, so that Tab imports no verb."""
        from click.shell_completion import CompletionItem

        names = [name for name in VERBS if name.startswith(incomplete)]
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=VERBS[name].summary) for name in names]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes examples, the verbs in sections, options and exit statuses."""
        formatter.write_text(f"undercurrent: {self.summary}")
        write_examples(formatter, self.examples)
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        width = max(map(len, VERBS))
        for section in dict.fromkeys(entry.section for entry in VERBS.values()):
            with formatter.section(section):
                rows = [(name.ljust(width), entry.summary) for name, entry in VERBS.items() if entry.section == section]
                formatter.write_dl(rows)
        click.Command.format_options(self, ctx, formatter)
        self.format_exit_statuses(formatter)

    def main(self, args: Sequence[str] | None = None, *_args: Any, standalone_mode: bool = True, **_extra: Any) -> Any:
        """Runs a command line; exits with its status, or returns it where `standalone_mode` is off."""
        arguments = list(sys.argv[1:] if args is None else args)
        status = run_guarded(lambda: self._run(list(arguments)), arguments)
        if standalone_mode:
            sys.exit(status)
        return status

    def _run(self, arguments: list[str]) -> None:
        if COMPLETE_VARIABLE in os.environ:
            from click.shell_completion import shell_complete

            sys.exit(shell_complete(self, {}, "undercurrent", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE]))
        with self.make_context("undercurrent", arguments) as context:
            self.invoke(context)


def _print_version(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from undercurrent import __version__

        click.echo(f"undercurrent {__version__}")
        ctx.exit()


@click.group(
    name="undercurrent", cls=VerbTable, examples=EXAMPLES, exit_statuses=EXIT_STATUSES, invoke_without_command=True
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks; may also stand behind a verb.")
@click.pass_context
def undercurrent(ctx: click.Context) -> None:
    """Watch a language model from the inside while it serves."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status; `argv` defaults to the process's arguments."""
    return int(undercurrent.main(argv, standalone_mode=False))
