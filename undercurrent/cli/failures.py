"""The one place where an error becomes text and an exit status.

| status | when |
|---|---|
| 0 | done |
| 1 | the verb failed and says why: any `UndercurrentError`, a file that cannot be read or written |
| 2 | the command line is wrong: unknown verb or option, missing or malformed argument |
| 70 | a defect of Undercurrent: the traceback is printed |
| 130 | interrupted by Ctrl-C |
| 141 | whoever read the output closed the pipe |

An error is one `error:` line, and a `hint:` line where there is something to do that the message does not say. With
`--json` standard output ends with one line `{"error": {"type", "message", "hint", "issues", "exit_status"}}` instead.
Tracebacks are for `--debug`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import click

from undercurrent.cli.verbs import IMPORT_HINT, CLIError, UsageError, allows_colour
from undercurrent.errors import ProbeNotFoundError, SpecValidationError, UndercurrentError, did_you_mean

__all__ = ["EXIT_STATUSES", "run_guarded"]

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_OPTION_HINTS = {
    "ArchiveExistsError": "another --run-folder, or --on-exists overwrite",
    "ArchiveMismatchError": "another --run-folder, or --on-exists overwrite",
    "ArchiveIncompleteError": "the same `undercurrent explain` again; it goes on where it stopped",
}

EXIT_STATUSES = {
    EXIT_OK: "done",
    EXIT_FAILED: "the verb failed and says why",
    EXIT_USAGE: "the command line is wrong",
    EXIT_DEFECT: "a defect of Undercurrent; the traceback is printed",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
    EXIT_BROKEN_PIPE: "whoever read the output closed the pipe",
}


def run_guarded(work: Callable[[], object], arguments: Sequence[str]) -> int:
    """Runs a parsed or unparsed command line and returns its exit status; shows what it raises.

    `arguments` tell whether errors are wanted as JSON or with tracebacks, also where they could not be parsed.
    """
    try:
        status = _status_of(work)
        if sys.stdout is not None:  # None where it was closed before the start
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        # Its message is the page.
        click.echo(error.message, err=True)
        return EXIT_USAGE
    except (KeyboardInterrupt, click.Abort):
        return _say_interrupted()
    except BrokenPipeError:
        return _give_up_output()
    except Exception as error:
        # Python 3.11 makes a RuntimeError of what is raised while a class is made, with Ctrl-C as its cause.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return _say_interrupted()
        return _show(error, arguments)
    return status


def _status_of(work: Callable[[], object]) -> int:
    try:
        work()
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return ending.code or EXIT_OK
        click.echo(ending.code, err=True)
        return EXIT_FAILED
    return EXIT_OK


def _say_interrupted() -> int:
    click.echo("\ninterrupted", err=True)
    return EXIT_INTERRUPTED


def _give_up_output() -> int:
    """Points standard output at nothing, so that the interpreter's last flush does not complain."""
    with suppress(OSError, ValueError, AttributeError), open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def _show(error: Exception, arguments: Sequence[str]) -> int:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    status, message, hint = _explain(error)
    if "--debug" in options or status == EXIT_DEFECT:
        traceback.print_exception(error)
    try:
        if _wants_json(options):
            _print_json(error, message, hint, status)
        else:
            _print_text(message, hint)
    except BrokenPipeError:
        return _give_up_output()
    return status


def _explain(error: Exception) -> tuple[int, str, str | None]:
    if isinstance(error, click.UsageError):
        return EXIT_USAGE, _usage_message(error), _help_hint(error)
    if isinstance(error, UsageError):
        return EXIT_USAGE, str(error), error.hint
    if isinstance(error, CLIError):
        return EXIT_FAILED, str(error), error.hint
    if isinstance(error, click.ClickException):
        return error.exit_code, error.format_message(), None
    if isinstance(error, UndercurrentError):
        return EXIT_FAILED, str(error), _option_hint(error)
    if isinstance(error, OSError):
        return EXIT_FAILED, _world_message(error), None
    hint = "this is a defect of Undercurrent: please report it with the traceback and `undercurrent version --json`"
    return EXIT_DEFECT, f"{type(error).__name__}: {error}", hint


def _option_hint(error: BaseException) -> str | None:
    """The option that does what the message, which is written for callers of Python, says in their words."""
    if isinstance(error, ProbeNotFoundError) or isinstance(error.__cause__, ProbeNotFoundError):
        return IMPORT_HINT
    # By name: the rooms that raise these are not imported for a message.
    return _OPTION_HINTS.get(type(error).__name__)


def _usage_message(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        known = [] if error.ctx is None else [name for param in error.ctx.command.params for name in param.opts]
        return f"no option {error.option_name!r}{did_you_mean(error.option_name, known)}"
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _help_hint(error: click.UsageError) -> str:
    path = "undercurrent" if error.ctx is None else error.ctx.command_path
    return f"{path} --help"


def _world_message(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    names = [repr(os.fspath(name)) for name in (error.filename, error.filename2) if name is not None]
    return f"{' and '.join(names)}: {error.strerror}" if names else error.strerror


def _wants_json(options: Sequence[str]) -> bool:
    return "--json" in options or "--format=json" in options or ("--format", "json") in pairwise(options)


def _print_json(error: Exception, message: str, hint: str | None, status: int) -> None:
    import json

    content: dict[str, Any] = {"type": type(error).__name__, "message": message, "hint": hint, "exit_status": status}
    if isinstance(error, SpecValidationError):
        content["issues"] = list(error.issues)
    click.echo(json.dumps({"error": content}, ensure_ascii=False))


def _print_text(message: str, hint: str | None) -> None:
    prefix = click.style("error:", fg="red", bold=True) if allows_colour(sys.stderr) else "error:"
    click.echo(f"{prefix} {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
