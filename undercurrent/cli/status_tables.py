"""What the control pages of this machine say, as tables or as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import click
import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from undercurrent.cli.verbs import CLIError, data_console, print_json
from undercurrent.errors import RingError, did_you_mean
from undercurrent.ipc.page import (
    BINDING_COUNTERS,
    LANE_COUNTERS,
    WORKER_COUNTERS,
    ControlPage,
    Instance,
    PageReader,
    PageRow,
)

BINDINGS_SHOWN_MAX = 40
_MIB = 1 << 20
_DROPPED = ("dropped_oldest", "dropped_newest", "no_memory", "unsupported", "too_large", "block_timeout")


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """One page, read at one moment. Rows are dictionaries of the page's names, counters included."""

    instance: str
    pid: int
    age_s: float
    is_stale: bool
    """Whether the process that wrote the page is gone."""
    lanes: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    """With `memory_bytes`: what the worker alone would give back, None where it may not be asked."""
    bindings: list[dict[str, Any]]


def show_status(instance: str | None, *, as_json: bool) -> None:
    """Prints the pages of this machine, or of one instance.

    Raises:
        CLIError: no page has that name.
    """
    found = ControlPage.list_instances()
    if instance is not None:
        found = [_choose(instance, found)]
    routers = [router for page in found if (router := _read(page)) is not None]
    if as_json:
        print_json([asdict(router) for router in routers])
    elif not routers:
        click.echo("no router with a control page runs on this machine")
    else:
        _print(routers, data_console())


def _choose(instance: str, found: Sequence[Instance]) -> Instance:
    names = [page.instance for page in found]
    if instance in names:
        return found[names.index(instance)]
    suggestion = did_you_mean(instance, names) or ";"
    raise CLIError(f"no instance {instance!r}{suggestion} running: {', '.join(names) or 'none'}")


def _read(page: Instance) -> RouterStatus | None:
    """Returns what a page holds; None when it vanished since it was listed."""
    with suppress(RingError), PageReader(page.instance) as reader:
        workers = _rows(reader.rows("workers"), WORKER_COUNTERS)
        for worker in workers:
            worker["memory_bytes"] = None if page.is_stale else _memory_bytes(worker["pid"])
        return RouterStatus(
            instance=page.instance,
            pid=page.pid,
            age_s=max(0.0, time.time() - page.created),
            is_stale=page.is_stale,
            lanes=_rows(reader.rows("lanes"), LANE_COUNTERS),
            workers=workers,
            bindings=_rows(reader.rows("bindings"), BINDING_COUNTERS),
        )
    return None


def _rows(rows: Iterable[PageRow], names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "id": row.id,
            "name": row.name,
            "detail": row.detail,
            "pid": row.pid,
            "since": row.since,
            **dict(zip(names, row.counters, strict=False)),
        }
        for row in rows
    ]


def _memory_bytes(pid: int) -> int | None:
    """Returns the unique set size: shared rings and what a fork shares are not counted once per worker."""
    if pid <= 0:
        return None
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return None


def _print(routers: Sequence[RouterStatus], console: Console) -> None:
    for router in routers:
        committed = sum(lane["committed_bytes"] for lane in router.lanes)
        title = Text.assemble("router ", (router.instance, "bold"))
        title.append(f": process {router.pid}, {_ago(router.age_s)} old, ")
        lanes = "1 lane" if len(router.lanes) == 1 else f"{len(router.lanes)} lanes"
        title.append(f"{lanes} with {committed / _MIB:.1f} MiB of slots")
        if router.is_stale:
            title.append("; its process is gone", style="red")
        console.print(title)
        if router.workers:
            console.print(_worker_table(router.workers))
        if router.bindings:
            console.print(_binding_table(router.bindings[:BINDINGS_SHOWN_MAX]))
        if len(router.bindings) > BINDINGS_SHOWN_MAX:
            console.print(f"and {len(router.bindings) - BINDINGS_SHOWN_MAX} more bindings; --json has them all")


def _worker_table(workers: Sequence[dict[str, Any]]) -> Table:
    # The page's word is that of the workers' counters; people are told of records.
    headings = ("records" if name == "activations" else name for name in WORKER_COUNTERS)
    table = _table("worker", "state", "pid", *headings, "MiB")
    for row in workers:
        memory = row["memory_bytes"]
        table.add_row(
            row["name"],
            row["detail"],
            str(row["pid"]),
            *(str(row[name]) for name in WORKER_COUNTERS),
            "" if memory is None else f"{memory / _MIB:.1f}",
        )
    return table


def _binding_table(bindings: Sequence[dict[str, Any]]) -> Table:
    shown = ("produced", "consumed", "waiting", "in_hand")
    table = _table("point", "request", *shown, "dropped", "lost", "errors")
    for row in bindings:
        dropped = sum(row[name] for name in _DROPPED)
        table.add_row(
            row["name"],
            row["detail"],
            *(str(row[name]) for name in shown),
            Text(str(dropped), style="yellow" if dropped else ""),
            Text(str(row["lost"]), style="yellow" if row["lost"] else ""),
            Text(str(row["errors"]), style="red" if row["errors"] else ""),
        )
    return table


def _table(name: str, text: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(name, overflow="fold")
    table.add_column(text, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    return table


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
