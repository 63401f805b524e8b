"""`undercurrent doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from undercurrent.cli.verbs import allows_colour, json_option, print_json, say, verb

if TYPE_CHECKING:
    from undercurrent.cli.health import Check

__all__ = ["command"]

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@verb(
    "doctor",
    examples=[
        ("undercurrent doctor", "does this machine have what Undercurrent needs?"),
        ("undercurrent doctor --json | jq -r '.checks[] | select(.health == \"fail\") | .fix'", "what to do"),
        ("undercurrent doctor --remove-stale", "remove what dead processes left in /dev/shm"),
    ],
    exit_statuses={0: "nothing fails; there may be warnings", 1: "something fails, or with --strict warns"},
)
@click.option("--strict", is_flag=True, help="Count warnings as failures.")
@click.option("--remove-stale", is_flag=True, help="First remove the control pages of processes that are gone.")
@click.option("--no-worker", is_flag=True, help="Start no worker; the other checks only look.")
@json_option
def command(*, strict: bool, remove_stale: bool, no_worker: bool, as_json: bool) -> None:
    """Check that this machine has what Undercurrent needs.

    Looks at the kernel, Python, packages, limits, memory, CPUs, shared memory and what earlier processes left behind;
    sends a record through a ring, and another to a worker that it starts and ends. Each line is OK, WARN or FAIL; what
    is not OK comes with the reason and what to do.
    """
    from dataclasses import asdict

    from undercurrent.cli.health import Health, worst
    from undercurrent.cli.health_facts import all_checks

    if remove_stale:
        from undercurrent.ipc import ControlPage

        say(f"removed: {', '.join(ControlPage.remove_stale()) or 'nothing was stale'}")
    checks = []
    for check in all_checks(tries_worker=not no_worker):
        checks.append(check)
        if not as_json:
            _print(check)
    health = worst(checks)
    if as_json:
        print_json({"health": health, "checks": [asdict(check) for check in checks]})
    else:
        counts = [f"{sum(check.health is kind for check in checks)} {kind.value}" for kind in Health]
        click.echo(", ".join(counts))
    if health is Health.FAIL or (strict and health is Health.WARN):
        raise click.exceptions.Exit(1)


def _print(check: Check) -> None:
    word = f"{check.health.value.upper():4}"
    shown = click.style(word, fg=_COLOURS[check.health.value]) if allows_colour(sys.stdout) else word
    click.echo(f"{shown}  {check.name:14}  {check.found}")
    if check.reason:
        click.echo(f"{'':22}{check.reason}")
    if check.fix:
        click.echo(f"{'':22}fix: {check.fix}")
