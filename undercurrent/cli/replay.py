"""`undercurrent replay`: a recording through the probes of any spec."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.run_views import spell_verdict
from undercurrent.cli.saved_probes import require_probes
from undercurrent.cli.specs import import_modules, require_spec
from undercurrent.cli.verbs import data_console, json_option, print_json, say, verb

if TYPE_CHECKING:
    from undercurrent.core import ProbeResult, ProbeSignal
    from undercurrent.engines import Recording, ReplayedRequest

__all__ = ["command"]

_ROWS_SHOWN_MAX = 40
_VERDICT_WIDTH = 100
_FULL = "full"
# Nobody waits for a text here: a verdict over everything is worth more than one that comes soon.
_DRAIN_TIMEOUT_S = 600.0


class Speed(click.ParamType[Any]):
    """`full`, or a number above 0 that may end in x."""

    name = "speed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """None-like `full` stays a word, so that click does not take it for an option that was left out."""
        if value == _FULL or isinstance(value, float):
            return value  # type: ignore[no-any-return]
        try:
            speed = float(str(value).removesuffix("x"))
        except ValueError:
            speed = 0.0
        if not 0 < speed < float("inf"):
            self.fail(f"expected {_FULL!r} or a number above 0 such as 1x or 10x, got {value!r}", param, ctx)
        return speed


@verb(
    "replay",
    examples=[
        ("undercurrent replay traffic new-probes.yaml --import my_probes.py", "as fast as the probes are"),
        ("undercurrent replay traffic probes.yaml --speed 1x", "at the pace at which it was recorded"),
        ("undercurrent replay traffic probes.yaml --log signals.ndjson", "and keep every signal"),
        ("undercurrent replay traffic probes.yaml --json | jq 'select(.abort_point)'", "what would have been stopped"),
    ],
    exit_statuses={
        0: "everything was replayed",
        1: "the recording, the spec or a probe failed, or the recording lacks what the spec reads",
        2: "the command line is wrong",
        130: "interrupted; no process is left",
    },
)
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.argument("spec", metavar="SPEC")
@click.option(
    "--import", "imports", multiple=True, metavar="MODULE", help="Module or .py file with probes; repeatable."
)
@click.option("--speed", type=Speed(), default=_FULL, show_default=True, help="1x, 10x, any number, or full.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Append signals and results as NDJSON.")
@json_option
def command(
    folder: Path, spec: str, *, imports: tuple[str, ...], speed: float | str, log: Path | None, as_json: bool
) -> None:
    """Test probes on what a model computed before.

    The records of FOLDER, made by `record`, are routed to the points of SPEC in their order. At full speed async points
    wait instead of dropping, so that equal recordings give equal verdicts; at another speed they drop as they would in
    service. What SPEC reads and the recording lacks is an error, and single positions that it lacks are counted. With
    --json each line is one event: request, end. SPEC is a file, or `-` for standard input.
    """
    import_modules(imports)
    points = require_spec(spec)
    require_probes(points)
    from undercurrent.engines import Recording, replay
    from undercurrent.router import Router
    from undercurrent.sinks import FileLogSink

    recording = Recording(folder)
    if not recording.manifest.is_complete:
        say(f"{folder}: the recording was cut off; what is there is replayed")
    signals = SignalCounts()
    totals = Totals()
    with ExitStack() as stack:
        sink = None if log is None else stack.enter_context(FileLogSink(log))
        router = stack.enter_context(Router(drain_timeout=_DRAIN_TIMEOUT_S))
        if sink is not None:
            router.attach_log_sink(sink, inline=True)
        router.add_log_sink(signals)
        view = JsonRows() if as_json else TableRows()
        pace = None if isinstance(speed, str) else speed
        for outcome in replay(recording, points, router, speed=pace):
            counts = signals.take(outcome)
            totals.add(outcome, counts)
            view.add(outcome, counts)
    view.finish(totals, recording)


class SignalCounts:
    """A log sink that counts signals of async points by request, point and action."""

    def __init__(self) -> None:
        # Written by the router's sink thread, read when a request has ended and all of its signals are here.
        self._counts: dict[str, Counter[tuple[str, str]]] = {}

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        """Counts one."""
        self._counts.setdefault(request_id, Counter())[extraction_point_name, signal.action.value] += 1

    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
        """Results are in the outcome."""

    def take(self, outcome: ReplayedRequest) -> Counter[tuple[str, str]]:
        """The counts of an ended request, inline points included; they are forgotten here."""
        counts = self._counts.pop(outcome.request.request_id, Counter())
        counts.update((point, signal.action.value) for point, _, signal in outcome.signals)
        return counts


class Totals:
    """Sums over all requests, by point."""

    def __init__(self) -> None:
        self.request_count = 0
        self.cut_off_count = 0
        self.points: dict[str, Counter[str]] = {}

    def add(self, outcome: ReplayedRequest, counts: Counter[tuple[str, str]]) -> None:
        """Adds one request."""
        self.request_count += 1
        self.cut_off_count += outcome.is_cut_off
        for name, result in outcome.results.items():
            point = self.points.setdefault(
                name, Counter({"records": 0, "flags": 0, "aborts": 0, "missing": 0, "incomplete": 0})
            )
            coverage = result.metadata["coverage"]
            point["records"] += coverage["seen"]
            point["incomplete"] += not coverage["complete"]
            point["missing"] += outcome.missing.get(name, 0)
            point["flags"] += counts[name, "flag"]
            point["aborts"] += counts[name, "abort"]


class JsonRows:
    """One event a line, each written as it comes."""

    def add(self, outcome: ReplayedRequest, counts: Counter[tuple[str, str]]) -> None:
        """Writes `request`."""
        results = {
            name: {
                "verdict": result.verdict,
                "metadata": result.metadata,
                "flags": counts[name, "flag"],
                "aborts": counts[name, "abort"],
                "missing": outcome.missing.get(name, 0),
            }
            for name, result in outcome.results.items()
        }
        self._write(
            "request",
            request_id=outcome.request.request_id,
            prompt_len=outcome.request.prompt_len,
            abort_point=outcome.abort_point,
            is_cut_off=outcome.is_cut_off,
            results=results,
        )

    def finish(self, totals: Totals, recording: Recording) -> None:
        """Writes `end`."""
        self._write(
            "end",
            model=recording.manifest.model,
            is_complete=recording.manifest.is_complete,
            requests=totals.request_count,
            cut_off=totals.cut_off_count,
            points={name: dict(point) for name, point in totals.points.items()},
        )

    def _write(self, event: str, **fields: Any) -> None:
        from undercurrent.sinks import to_jsonable

        print_json({"event": event, **to_jsonable(fields)}, indent=False)


class TableRows:
    """A table of the first verdicts, and one of the sums."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, ...]] = []
        self._left_out = 0

    def add(self, outcome: ReplayedRequest, counts: Counter[tuple[str, str]]) -> None:
        """Keeps a row per point, up to a few dozen."""
        for name, result in outcome.results.items():
            if len(self._rows) == _ROWS_SHOWN_MAX:
                self._left_out += 1
                continue
            coverage = result.metadata["coverage"]
            notes = list(coverage["reasons"])
            notes += [f"{outcome.missing[name]} positions missing"] if name in outcome.missing else []
            notes += ["cut off"] if outcome.is_cut_off else []
            notes += ["stopped here"] if outcome.abort_point == name else []
            shown = spell_verdict(result.verdict, width=_VERDICT_WIDTH)
            self._rows.append((outcome.request.request_id[:12], name, str(coverage["seen"]), shown, ", ".join(notes)))

    def finish(self, totals: Totals, recording: Recording) -> None:
        """Prints both."""
        from rich.table import Table
        from rich.text import Text

        console = data_console()
        table = Table("request", "point", "records", "verdict", "notes")
        for row in self._rows:
            # As text: what a probe says is no markup.
            table.add_row(*map(Text, row))
        console.print(table)
        if self._left_out:
            console.print(f"… and {self._left_out} more; --json has them all")
        sums = Table("point", "records", "flags", "aborts", "positions missing", "incomplete verdicts")
        for name, point in totals.points.items():
            sums.add_row(
                Text(name), *(str(point[key]) for key in ("records", "flags", "aborts", "missing", "incomplete"))
            )
        console.print(sums)
        if totals.cut_off_count:
            console.print(f"{totals.cut_off_count} of {totals.request_count} requests were cut off in the recording")
