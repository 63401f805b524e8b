"""The `undercurrent` command.

`main` is the entry point of the installed command and of `python -m undercurrent`; it returns an exit status and does
not exit. `CLIError` and `UsageError` are what it shows as statuses 1 and 2. This is the only room that reads argv and
writes to a terminal; each verb imports what it needs when it runs.

Everything, click too, is imported inside `main`, where Ctrl-C is caught; at the top of a module it would end the
command with a traceback of imports.
"""

from __future__ import annotations

# As `typing.TYPE_CHECKING`, without loading typing. This package's import lies outside of what `main` can catch.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from undercurrent.cli.verbs import CLIError, UsageError

__all__ = ["CLIError", "UsageError", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status; `argv` defaults to the process's arguments."""
    try:
        from undercurrent.cli import commands

        return commands.main(argv)
    except KeyboardInterrupt:
        import sys

        print("\ninterrupted", file=sys.stderr)
        return 130


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from undercurrent.cli import verbs

    return getattr(verbs, name)
