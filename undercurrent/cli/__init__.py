"""The `undercurrent` command.

`main` is the entry point of the installed command and of `python -m undercurrent`. It is the only room that reads argv
and writes to a terminal; each command imports what it needs when it runs.
"""

from undercurrent.cli.commands import main

__all__ = ["main"]
