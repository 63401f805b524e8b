"""The commands and their options; what a command shows is made in a module of its own."""

from __future__ import annotations

from collections.abc import Sequence

import click


@click.group(name="undercurrent", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="undercurrent", message="%(prog)s %(version)s")
def undercurrent() -> None:
    """Watch a language model from the inside while it serves."""


@undercurrent.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.argument("instance", required=False)
def status(instance: str | None, as_json: bool) -> None:
    """Show the routers that run on this machine: their workers, bindings and counters.

    Reads the control pages and disturbs nobody. INSTANCE shows one router only.
    """
    from undercurrent.cli.status import show_status

    show_status(instance, as_json=as_json)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status; `argv` defaults to the process's arguments."""
    try:
        undercurrent.main(args=None if argv is None else list(argv))
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 1 if ending.code else 0
