"""What every verb is made with: its class, the options all of them share, and where it writes.

A module `undercurrent/cli/<verb>.py` exposes `command`, made by `@verb(...)`, and imports at its top only this module,
click and the standard library; what the verb needs to work is imported by the function that works. Data goes to
standard output, talk and progress to standard error. A deliberate error is raised, never printed: `failures` shows it.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from undercurrent.errors import ProbingError, UndercurrentError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "IMPORT_HINT",
    "CLIError",
    "NearestChoice",
    "UsageError",
    "Verb",
    "VerbGroup",
    "allows_colour",
    "counted",
    "data_console",
    "describe_foreign",
    "foreign_errors_told",
    "json_option",
    "print_json",
    "read_standard_input",
    "read_text",
    "say",
    "talk_console",
    "verb",
    "verb_group",
]

HELP_OPTIONS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
# A pipe has no width: names are not cut for whoever searches the text.
_PIPED_WIDTH = 200
IMPORT_HINT = "--import FILE.py, or a module, registers the probes that it defines"

_Function = TypeVar("_Function", bound=Callable[..., Any])

Examples = Sequence[tuple[str, str]]
"""Command lines that work, each with what it does in a few words."""


class CLIError(ProbingError):
    """The verb cannot do what it was asked for: exit status 1. `hint` is the next thing to do."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(CLIError):
    """The command line itself is wrong: exit status 2."""


def describe_foreign(error: Exception) -> str:
    """What code of others raised and where: the last line of it that is of no installed library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and "<frozen" not in frame.filename]
    place = f", at {own[-1].filename}:{own[-1].lineno}" if own else ""
    if isinstance(error, SyntaxError):
        # Its own text ends with the place; the frames are those of the import.
        place = ""
    return f"{type(error).__name__}: {error}{place}"


@contextmanager
def foreign_errors_told(who: str, *, hint: str = "--debug shows the traceback") -> Iterator[None]:
    """Around calls of code of others, such as a probe: what that raised is its own affair, and no defect of ours.

    Raises:
        CLIError: with the place in the code that raised.
    """
    try:
        yield
    except (UndercurrentError, OSError):
        raise
    except Exception as error:
        raise CLIError(f"{who} raised {describe_foreign(error)}", hint=hint) from error


class NearestChoice(click.Choice[str]):
    """One of a few words; another is answered with the nearest."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """The words there are, and the one that was probably meant."""
        from undercurrent.errors import did_you_mean, one_of

        return f"expected {one_of(self.choices)}, got {str(value)!r}{did_you_mean(str(value), self.choices)}"


class _Page(click.Command):
    """A command whose help is a page: what it does, examples, usage, text, options, exit statuses."""

    def __init__(
        self,
        *args: Any,
        examples: Examples = (),
        exit_statuses: Mapping[int, str] | None = None,
        **attributes: Any,
    ) -> None:
        attributes.setdefault("context_settings", HELP_OPTIONS)
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)
        self.exit_statuses = dict(exit_statuses or {})

    @property
    def summary(self) -> str:
        """The first paragraph of the help as a line of a list, without its full stop."""
        return " ".join(inspect.cleandoc(self.help or "").partition("\n\n")[0].split()).rstrip(".")

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the page; examples come before everything that explains them."""
        formatter.write_text(f"{ctx.command_path}: {self.summary}")
        write_examples(formatter, self.examples)
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        _, _, text = inspect.cleandoc(self.help or "").partition("\n\n")
        if text:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(text)
        self.format_options(ctx, formatter)
        self.format_exit_statuses(formatter)

    def format_exit_statuses(self, formatter: click.HelpFormatter) -> None:
        """Writes what each status means, where the page tells."""
        if self.exit_statuses:
            with formatter.section("Exit status"):
                formatter.write_dl([(str(status), meaning) for status, meaning in sorted(self.exit_statuses.items())])


class Verb(_Page):
    """One verb of the command line. Takes `--debug` behind it as well as before it."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params.append(click.Option(["--debug"], is_flag=True, expose_value=False, help="Show tracebacks."))


class VerbGroup(_Page, click.Group):
    """A verb with verbs of its own, such as `probe train`; unknown ones are answered with the nearest."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        verb_shown = "[VERB]" if attributes.get("invoke_without_command") else "VERB"
        super().__init__(*args, subcommand_metavar=f"{verb_shown} [ARGS]...", **attributes)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes each verb with its line."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert isinstance(command, _Page)
            rows.append((name, command.summary))
        with formatter.section("Verbs"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the verb that `args` begin with.

        Raises:
            click.UsageError: there is none; the message names the nearest.
        """
        refuse_unknown_verb(self, ctx, args[0])
        return super().resolve_command(ctx, args)


def refuse_unknown_verb(group: click.Group, ctx: click.Context, name: str) -> None:
    """Raises a usage error with the nearest name, unless `name` is a verb or an option, or a shell is completing."""
    from undercurrent.errors import did_you_mean

    known = group.list_commands(ctx)
    if name in known or name.startswith("-") or ctx.resilient_parsing:
        return
    suggestion = did_you_mean(name, known) or ";"
    raise click.UsageError(f"no verb {name!r}{suggestion} verbs: {', '.join(known)}", ctx)


def complete_verbs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The verbs whose names begin like that, for the shell; only those of the whole command, as no verb is imported."""
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    return [name for name in root.command.list_commands(root) if name.startswith(incomplete)]


def write_examples(formatter: click.HelpFormatter, examples: Examples) -> None:
    """Writes command lines and their meaning in two columns, never wrapped: they are there to be copied."""
    if not examples:
        return
    width = max(len(line) for line, _ in examples)
    formatter.write("\nExamples:\n")
    for line, meaning in examples:
        formatter.write(f"  {line.ljust(width)}  # {meaning}\n" if meaning else f"  {line}\n")


def verb(
    name: str, *, examples: Examples, exit_statuses: Mapping[int, str] | None = None
) -> Callable[[Callable[..., Any]], Verb]:
    """Makes a function a verb; its docstring is the help: a sentence for the list, then the text."""
    return click.command(name, cls=Verb, examples=examples, exit_statuses=exit_statuses)


def verb_group(name: str, *, examples: Examples) -> Callable[[Callable[..., Any]], VerbGroup]:
    """Makes a function a verb that has verbs; add them with `add_command`."""
    return click.group(name, cls=VerbGroup, examples=examples)


def json_option(function: _Function) -> _Function:
    """Adds `--json`, passed as `as_json`; errors then are JSON too, see `failures`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output and nothing else.")(
        function
    )


def print_json(value: Any, *, indent: bool = True) -> None:
    """Writes one JSON document and a line end; `indent=False` is for streams of one document a line.

    Numpy values become JSON numbers and lists, paths and other objects their text.
    """
    import orjson

    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    click.echo(orjson.dumps(value, option=option, default=str))


def read_standard_input(bytes_max: int = 64 << 20) -> str:
    """The text of standard input, to its end.

    Raises:
        UsageError: it is closed.
        CLIError: it is longer than `bytes_max`, or no UTF-8.
    """
    if sys.stdin is None:
        raise UsageError("standard input is closed; give a file")
    content = sys.stdin.buffer.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise CLIError(f"standard input may have {bytes_max >> 20} MiB, and has more")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CLIError(f"<stdin>: expected UTF-8, got byte {content[error.start]:#04x} at {error.start}") from error


def read_text(path: str, bytes_max: int) -> str:
    """The text of a file; `-` is standard input.

    Raises:
        UsageError: standard input is closed.
        CLIError: it is longer than `bytes_max`, or no UTF-8.
    """
    if path == "-":
        return read_standard_input(bytes_max)
    size = Path(path).stat().st_size
    if size > bytes_max:
        raise CLIError(f"{path}: at most {bytes_max >> 20} MiB were expected, got {size >> 20} MiB")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CLIError(f"{path}: expected UTF-8: {error.reason} at byte {error.start}") from error


def counted(count: int, noun: str) -> str:
    """A number and its noun: 1 record, 2 records."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def say(text: str) -> None:
    """Writes a line of talk to standard error."""
    click.echo(text, err=True)


def data_console() -> Console:
    """A rich console on standard output. Into a pipe it is wide and plain."""
    return _console(is_talk=False)


def talk_console() -> Console:
    """A rich console on standard error, for progress and live tables."""
    return _console(is_talk=True)


def _console(*, is_talk: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=is_talk, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPED_WIDTH)
    return console


def allows_colour(stream: IO[Any]) -> bool:
    """Whether colour may be written: on a terminal, unless the variable NO_COLOR is set to anything."""
    return not os.environ.get("NO_COLOR") and stream.isatty()
