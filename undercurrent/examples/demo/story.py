"""The demo from beginning to end; each part prints what it did."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text as StyledText

from undercurrent.core import ProbeFactory, SavedProbe
from undercurrent.core.training import Rate
from undercurrent.engines import Generation
from undercurrent.examples.demo.measuring import Mode, Speed, measure, measure_step_s
from undercurrent.examples.demo.probes import SlowTopicProbe, TopicProbe, measure_turn_s
from undercurrent.examples.demo.stage import Stage
from undercurrent.examples.demo.training import Text, base_rate, evaluate, fit, logits
from undercurrent.router import Router
from undercurrent.sinks import FileLogSink
from undercurrent.spec import ExecutionMode, ExtractionPoint, ProbeSpec, TensorType, parse_yaml

__all__ = ["Story"]

_TAIL = 8
"""Tokens at the end of a text that it is judged by: those that have read the rest."""
_WINDOW = 4
_SLOW_SHARE = 0.6
"""What the slow probe costs per token, as a share of a decode step."""
_ROUND_COUNT = 5
_QUEUE_DEPTH = 256
_NOTICED = 0.05

_SPEC = """
extraction_points:
  - name: guard
    layers: {deep}
    tensor_type: residual_stream
    position: "generated[*]"
    probe_type: topic_guard
    probe_kind: trajectory
    execution_mode: inline
  - name: monitor
    layers: {deep}
    tensor_type: residual_stream
    position: "generated[*]"
    probe_type: topic
    probe_kind: trajectory
    execution_mode: async
    queue_depth: {depth}
  - name: slow-monitor
    layers: {shallow}
    tensor_type: residual_stream
    position: "generated[*]"
    probe_type: slow_topic
    probe_kind: trajectory
    execution_mode: async
    queue_depth: {depth}
"""


@dataclass(frozen=True, slots=True)
class _Trained:
    deep: SavedProbe
    shallow: SavedProbe
    deep_threshold: float
    shallow_threshold: float


class Story:
    """Tells the demo to a console; owns the routers it opens."""

    def __init__(self, console: Console, stage: Stage, texts: list[Text], folder: Path) -> None:
        self._console = console
        self._stage = stage
        self._texts = texts
        self._log_path = folder / "signals.ndjson"
        self._spec: ProbeSpec = parse_yaml(
            _SPEC.format(deep=stage.deep_layer, shallow=stage.shallow_layer, depth=_QUEUE_DEPTH)
        )

    def tell(self) -> None:
        """Trains, watches, measures, and says where everything is."""
        trained = self._train()
        with ExitStack() as opened:
            probes = self._calibrate(trained)
            if not self._stage.is_trained:
                self._arm_guard(probes)
            self._console.print("starting worker processes…", style="dim")
            processes = opened.enter_context(Router(probes, worker_pool_size=2))
            processes.prewarm(self._spec, loads_torch=True)
            processes.attach_log_sink(FileLogSink(self._log_path))
            self._watch(processes, probes["topic_guard"].probe_kwargs["threshold"])
            processes.attach_log_sink(None)
            threads = opened.enter_context(Router(probes, worker_pool_size=2, worker_mode="thread"))
            self._measure(processes, threads)
        self._close()

    # ---- training --------------------------------------------------------------------------------------------------

    def _train(self) -> _Trained:
        self._console.rule("1. train the probes on this model's own activations")
        stage, texts = self._stage, self._texts
        keys = [(layer, TensorType.RESIDUAL_STREAM) for layer in (stage.shallow_layer, stage.deep_layer)]
        with self._progress() as progress:
            task = progress.add_task("reading texts", total=len(texts))
            read = []
            for row in stage.engine.read_texts([text.text for text in texts], keys):
                read.append(row)
                progress.advance(task)
        table = Table(title="held-out templates (the probes never saw their wording)")
        for heading in ("probe", "right by text (95 % interval)", "right by token (95 % interval)", "guessing"):
            table.add_column(heading, justify="left" if heading == "probe" else "right")
        fitted: list[tuple[SavedProbe, float]] = []
        for key in keys:
            # The first token says nothing: it is the same in every text.
            rows = [row[key][1:] for row in read]
            probe = fit(rows, texts, layer=key[0], tail=_TAIL)
            by_text, by_token = evaluate(probe, rows, texts, tail=_TAIL)
            table.add_row(
                f"layer {key[0]}",
                _spell_share(by_text),
                _spell_share(by_token),
                f"{base_rate(texts).rate:.1%}",
            )
            fitted.append((probe, _pick_threshold(probe, rows, texts)))
        self._console.print(table)
        self._console.print(
            f"{len(texts)} short texts, half about medicine and half about cooking, with the same people, numbers and"
            " times; every other template is held out, with words of its own. Texts of one template are alike, so the"
            " true intervals are wider.",
            style="dim",
        )
        (shallow, shallow_threshold), (deep, deep_threshold) = fitted
        return _Trained(deep, shallow, deep_threshold, shallow_threshold)

    def _calibrate(self, trained: _Trained) -> dict[str, ProbeFactory]:
        """Makes the probes; the slow one is as slow as this machine's decode step asks for."""
        stage = self._stage
        with Router({}) as router:
            plain = Mode("plain", router, ())
            step_s = measure_step_s(stage.engine, plain, prompt=stage.harmless_prompt, token_count=16)
        slow_s = _SLOW_SHARE * step_s
        turns = round(slow_s / measure_turn_s())
        self._console.print(
            f"one decode step takes {step_s * 1e3:.1f} ms here; the slow probe spends {slow_s * 1e3:.1f} ms"
            f" of pure Python on every token ({_SLOW_SHARE:.0%} of a step)"
        )
        deep = {**_line(trained.deep), "window": _WINDOW}
        shallow = {**_line(trained.shallow), "window": _WINDOW}
        threshold = trained.deep_threshold
        return {
            "topic_guard": ProbeFactory(TopicProbe, {**deep, "threshold": threshold, "action": "abort"}),
            "topic": ProbeFactory(TopicProbe, {**deep, "threshold": threshold}),
            "slow_topic": ProbeFactory(
                SlowTopicProbe, {**shallow, "threshold": trained.shallow_threshold, "turns": turns}
            ),
        }

    def _arm_guard(self, probes: dict[str, ProbeFactory]) -> None:
        """Random weights know no topic: the guard is set to a score that the second prompt reaches half-way."""
        guard = probes["topic_guard"]
        request_id = "demo-rehearsal"
        never = ProbeFactory(guard.probe_cls, {**guard.probe_kwargs, "threshold": math.inf})
        with Router({"topic_guard": never}) as router:
            self._stage.engine.register_extraction(request_id, [self._spec.get("guard")])
            arguments = {**self._stage.generation_kwargs, "max_new_tokens": self._stage.watched_tokens // 2}
            prompt = self._stage.stopped_prompt
            [generation] = self._stage.engine.generate_batch([request_id], [prompt], arguments, router)
            self._stage.engine.unregister_extraction(request_id)
        highest = generation.results["guard"].verdict["highest"]
        guard.probe_kwargs["threshold"] = highest - abs(highest) * 0.01
        self._console.print(
            "weights are random here: the guard is set so that the second prompt reaches it", style="dim"
        )

    # ---- watching --------------------------------------------------------------------------------------------------

    def _watch(self, router: Router, threshold: float) -> None:
        self._console.rule("2. one probe inline, two in processes of their own")
        self._console.print(
            f"The guard stops a generation when the mean score of {_WINDOW} tokens is above {threshold:.2f}."
        )
        self._show_generation(router, "demo-harmless", self._stage.harmless_prompt)
        self._show_generation(router, "demo-stopped", self._stage.stopped_prompt)

    def _show_generation(self, router: Router, request_id: str, prompt: str) -> None:
        engine = self._stage.engine
        arguments = {**self._stage.generation_kwargs, "max_new_tokens": self._stage.watched_tokens}
        engine.register_extraction(request_id, self._spec.extraction_points)
        self._console.print()
        self._console.print(StyledText(prompt, style="bold"), end="")
        try:
            with engine.stream(request_id, prompt, arguments, router) as pieces:
                for piece in pieces:
                    self._console.print(StyledText(_printable(piece.text), style="cyan"), end="")
                self._console.print()
        finally:
            engine.unregister_extraction(request_id)
        self._show_verdicts(pieces.generation)

    def _show_verdicts(self, generation: Generation) -> None:
        count = len(generation.token_ids)
        signal = generation.abort_signal
        if signal is None:
            self._console.print(f"  ran to its end, {count} tokens", style="green")
        else:
            self._console.print(
                f"  stopped by {generation.abort_point!r} after {count} of {self._stage.watched_tokens} tokens: mean"
                f" score {signal.metadata['mean']:.2f} at token {signal.metadata['token_pos']}",
                style="bold red",
            )
        for point in self._spec:
            result = generation.results[point.name]
            coverage = result.metadata["coverage"]
            where = "inline" if point.execution_mode is ExecutionMode.INLINE else "own process"
            self._console.print(
                f"  {point.name} ({where}): saw {coverage['seen']} of {coverage['routed']} records,"
                f" {result.verdict['above_threshold']} above its threshold",
                style="dim",
                highlight=False,
            )

    # ---- measuring -------------------------------------------------------------------------------------------------

    def _measure(self, processes: Router, threads: Router) -> None:
        self._console.rule("3. what does watching cost?")
        points: list[ExtractionPoint] = [point for point in self._spec if point.execution_mode is ExecutionMode.ASYNC]
        modes = [
            Mode("no probes", processes, ()),
            Mode("async probes in processes", processes, points),
            Mode("the same in threads", threads, points),
        ]
        with self._progress() as progress:
            task = progress.add_task("alternating rounds", total=len(modes) * _ROUND_COUNT)
            speeds = measure(
                self._stage.engine,
                modes,
                prompt=self._stage.harmless_prompt,
                token_count=self._stage.measured_tokens,
                round_count=_ROUND_COUNT,
                on_run=lambda: progress.advance(task),
            )
        plain = speeds[0]
        table = Table(
            title=f"{self._stage.title}: {self._stage.measured_tokens} tokens, {_ROUND_COUNT} alternating rounds"
        )
        for heading in ("", "tokens/s", "slowest to fastest", "time", "engine CPU per token"):
            table.add_column(heading, justify="right" if heading else "left")
        for speed in speeds:
            rounds = f"{min(speed.rounds):.1f} to {max(speed.rounds):.1f}"
            ratio = f"{speed.time_ratio(plain):.2f}x"
            table.add_row(speed.name, f"{speed.median:.1f}", rounds, ratio, f"{speed.cpu_ms:.2f} ms")
        self._console.print(table)
        self._console.print(_compare(*speeds[1:]))

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        self._console.rule("4. what the async probes wrote")
        lines = self._log_path.read_text(encoding="utf-8").splitlines()
        self._console.print(f"{len(lines)} lines of NDJSON in {self._log_path}, the first three:")
        for line in lines[:3]:
            self._console.print(StyledText(line, style="dim"), soft_wrap=True)
        self._console.print()
        self._console.print("Next, try a router in one page:", style="bold")
        self._console.print(f"{_this_python()} -m undercurrent.examples.seed", style="bold", soft_wrap=True)

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self._console, transient=True)


def _pick_threshold(probe: SavedProbe, rows: list[np.ndarray], texts: list[Text]) -> float:
    """Half-way between the highest window of a harmless training text and the usual highest one of the others."""
    kernel = np.ones(_WINDOW) / _WINDOW
    peaks = [
        (np.convolve(logits(probe, row), kernel, "valid").max(), text)
        for row, text in zip(rows, texts, strict=True)
        if not text.is_held_out
    ]
    harmless = max(peak for peak, text in peaks if not text.is_medicine)
    usual = float(np.median([peak for peak, text in peaks if text.is_medicine]))
    return float(harmless + usual) / 2


def _line(probe: SavedProbe) -> dict[str, object]:
    """What the demo's own probe class takes of a trained one."""
    return {"weights": probe.weights["weight"], "bias": float(probe.weights["bias"])}


def _spell_share(share: Rate) -> str:
    low, high = share.interval
    return f"{share.rate:.1%} of {share.count} ({low:.1%} to {high:.1%})"


def _compare(processes: Speed, threads: Speed) -> str:
    """Says whether threads hurt: only if every round says so, as a single one may have met another program."""
    lost = 1 - 1 / threads.time_ratio(processes)
    if lost > _NOTICED and all(mine < other for mine, other in zip(threads.rounds, processes.rounds, strict=True)):
        return (
            f"With the same probes in threads of its own process, the engine is {lost:.0%} slower than with processes:"
            " they compete for the interpreter with every operation of a decode step."
        )
    if lost > _NOTICED:
        return (
            f"Threads are {lost:.0%} slower by the median, but not in every round: this machine is too busy to be sure."
        )
    return "On this machine, now, probes in threads do not hurt."


def _this_python() -> str:
    """What to type for the interpreter that has the package: `make demo` activates no environment."""
    running = Path(sys.executable)
    found = shutil.which("python")
    if found is not None and Path(found).absolute() == running:
        return "python"
    here = Path.cwd()
    return shlex.quote(str(running.relative_to(here) if running.is_relative_to(here) else running))


def _printable(text: str) -> str:
    """A control character that a model produces would move the terminal's cursor."""
    return "".join(character if character.isprintable() or character == "\n" else "·" for character in text)
