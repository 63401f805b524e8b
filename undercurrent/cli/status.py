"""`undercurrent status`."""

from __future__ import annotations

import click

from undercurrent.cli.verbs import json_option, verb

__all__ = ["command"]


def _complete_instances(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The running instances whose names begin like that, for the shell."""
    from undercurrent.ipc import ControlPage

    return [page.instance for page in ControlPage.list_instances() if page.instance.startswith(incomplete)]


@verb(
    "status",
    examples=[
        ("undercurrent status", "every router of this user"),
        ("undercurrent status engine-4711", "one of them"),
        ("undercurrent status --json | jq '.[].bindings'", "every counter"),
    ],
    exit_statuses={0: "shown, also where no router runs", 1: "no instance has that name"},
)
@json_option
@click.argument("instance", required=False, shell_complete=_complete_instances)
def command(instance: str | None, *, as_json: bool) -> None:
    """Show the routers that run on this machine: workers, bindings, counters.

    Reads the control pages and disturbs nobody. INSTANCE shows one router only.
    """
    from undercurrent.cli.status_tables import show_status

    show_status(instance, as_json=as_json)
