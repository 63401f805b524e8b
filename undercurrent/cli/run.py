"""`undercurrent run`: generates while probes watch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.generation_options import as_settings, generation_options, prompt_options
from undercurrent.cli.models import MODEL_HELP, ModelChoice, missing_model_named, resolve_model
from undercurrent.cli.prompts import read_prompts
from undercurrent.cli.saved_probes import require_probes
from undercurrent.cli.specs import STANDARD_INPUT, import_modules, require_spec
from undercurrent.cli.verbs import UsageError, foreign_errors_told, json_option, say, verb

if TYPE_CHECKING:
    from undercurrent.cli.run_views import RunView
    from undercurrent.core import ProbeResult, ProbeSignal
    from undercurrent.model import ProbedModel
    from undercurrent.sinks import FileLogSink
    from undercurrent.spec import ProbeSpec

__all__ = ["Arrivals", "command"]


@verb(
    "run",
    examples=[
        (
            "undercurrent run probes.yaml --model tiny --import my_probes.py --prompt 'The river'",
            "after `undercurrent init`",
        ),
        ("undercurrent run probes.yaml --model google/gemma-3-270m --prompt 'The river'", "a model of the hub"),
        ("undercurrent run probes.yaml --model ./m --prompts-file p.txt --log signals.ndjson", "many, and a log"),
        ("undercurrent run probes.yaml --model ./m --prompt Hi --json | jq 'select(.event == \"signal\")'", "events"),
    ],
    exit_statuses={
        0: "every prompt was generated, also where a probe stopped it",
        1: "the spec, the model or a probe failed",
        2: "the command line is wrong",
        130: "interrupted; the generation has ended and no process is left",
    },
)
@click.argument("spec", metavar="SPEC")
@click.option("--model", required=True, metavar="MODEL", help=f"What generates: {MODEL_HELP}.")
@prompt_options
@click.option(
    "--import", "imports", multiple=True, metavar="MODULE", help="Module or .py file with probes; repeatable."
)
@generation_options
@click.option("--device", metavar="DEVICE", help="Where the model runs, as in cuda:0.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Append signals and results as NDJSON.")
@json_option
def command(
    spec: str,
    *,
    model: str,
    prompts: tuple[str, ...],
    prompts_file: str | None,
    imports: tuple[str, ...],
    log: Path | None,
    device: str | None,
    as_json: bool,
    **generation: Any,
) -> None:
    """Generate while probes watch, and show what they say.

    On a terminal the text streams above a table of signals that moves with it. Into a pipe the text goes to standard
    output, flags, aborts and verdicts to standard error. With --json each line is one event: start, token, signal, end.
    SPEC is a file, or `-` for standard input.
    """
    if spec == prompts_file == STANDARD_INPUT:
        raise UsageError("the spec and the prompts cannot both be standard input")
    texts = read_prompts(prompts, prompts_file)
    import_modules(imports)
    points = require_spec(spec)
    settings = as_settings(generation)
    from undercurrent.cli.run_views import choose_view

    # Before the model, whose loading takes longest: a path that cannot be written is told at once.
    with ExitStack() as stack:
        sink = None if log is None else stack.enter_context(_open_log(log))
        choice = resolve_model(model, on_progress=say)
        require_probes(points)
        probed = stack.enter_context(_load(choice, points, name=model, device=device))
        if sink is not None:
            probed.router.attach_log_sink(sink, inline=True)
        arrivals = Arrivals()
        probed.router.add_log_sink(arrivals)
        view = stack.enter_context(choose_view(points, as_json=as_json))
        for index, text in enumerate(texts):
            view.begin(index, text)
            _generate(probed, text, {**choice.generation, **settings}, view, arrivals)


class Arrivals:
    """A log sink that keeps the signals of async points, for those that come when the text is over."""

    def __init__(self) -> None:
        # Appended to by the router's sink thread; read when a request has ended and all of its signals are here.
        self._signals: dict[tuple[str, str], list[ProbeSignal]] = {}

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        """Keeps one."""
        self._signals.setdefault((request_id, extraction_point_name), []).append(signal)

    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
        """Results are in the output."""

    def take(self, request_id: str, point: str) -> list[ProbeSignal]:
        """The signals of a point of an ended request, in order; they are forgotten here."""
        return self._signals.pop((request_id, point), [])


def _open_log(path: Path) -> FileLogSink:
    from undercurrent.sinks import FileLogSink

    return FileLogSink(path)


def _load(choice: ModelChoice, spec: ProbeSpec, *, name: str, device: str | None) -> ProbedModel:
    from undercurrent.model import ProbedModel

    say(f"loading {choice.title}")
    options: dict[str, Any] = {"shows_progress": False, "thread_count": _thread_count(spec), **choice.options}
    with missing_model_named(name):
        return ProbedModel(choice.model, spec=spec, device=device, **options)


def _thread_count(spec: ProbeSpec) -> int:
    """Threads of torch: one CPU is left to the workers, where there are any; a thread that waits for it costs more."""
    cpus = len(os.sched_getaffinity(0))
    return max(1, cpus - 1) if any(point.execution_mode == "async" for point in spec) else cpus


def _generate(probed: ProbedModel, text: str, settings: Mapping[str, Any], view: RunView, arrivals: Arrivals) -> None:
    from undercurrent.model import SignalEvent

    shown: Counter[str] = Counter()
    hint = "--debug shows the traceback; with `on_error: continue` on the point, the text goes on without it"
    with foreign_errors_told("the probe or the model", hint=hint), probed.stream(text, **settings) as stream:
        for event in stream:
            if isinstance(event, SignalEvent):
                shown[event.point] += 1
            view.show(event)
        output = stream.output
    results = output.probe_results
    for point in results:
        for signal in arrivals.take(output.request_id, point)[shown[point] :]:
            view.show(SignalEvent(point, signal))
    view.end(output, results)
