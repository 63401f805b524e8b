"""The `undercurrent` command.

`main` is the entry point of the installed command and of `python -m undercurrent`; it returns an exit status and does
not exit. `CLIError` and `UsageError` are what it shows as statuses 1 and 2. This is the only room that reads argv and
writes to a terminal; each verb imports what it needs when it runs.
"""

from undercurrent.cli.commands import main
from undercurrent.cli.verbs import CLIError, UsageError

__all__ = ["CLIError", "UsageError", "main"]
