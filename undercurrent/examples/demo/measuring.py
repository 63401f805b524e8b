"""What probes cost the model: tokens per second without them, with them in processes, and with them in threads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from undercurrent.core import ProbeResult
from undercurrent.engines import HFEngine
from undercurrent.router import Router
from undercurrent.spec import ExtractionPoint

__all__ = ["Mode", "Speed", "measure", "measure_step_s"]


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of running the same generation."""

    name: str
    router: Router
    points: Sequence[ExtractionPoint]


@dataclass(frozen=True, slots=True)
class Speed:
    """What one mode came to."""

    name: str
    rounds: tuple[float, ...]
    """Tokens per second, a figure per round."""
    cpu_ms: float
    """CPU time of the generating thread per token, the median of the rounds."""
    results: Mapping[str, ProbeResult]
    """Those of the last round."""

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    def time_ratio(self, other: Speed) -> float:
        """How many times as long as `other` it takes: the median over rounds, as their two runs lie side by side."""
        pairs = zip(other.rounds, self.rounds, strict=True)
        return statistics.median(theirs / mine for theirs, mine in pairs)


@dataclass(frozen=True, slots=True)
class _Run:
    elapsed_s: float
    cpu_s: float
    results: Mapping[str, ProbeResult]


def measure(
    engine: HFEngine,
    modes: Sequence[Mode],
    *,
    prompt: str,
    token_count: int,
    round_count: int,
    on_run: Callable[[], None],
) -> list[Speed]:
    """Runs every mode once per round, in an order that turns, so that a slow minute of the machine meets them all."""
    runs: dict[str, list[_Run]] = {mode.name: [] for mode in modes}
    for index in range(round_count):
        turn = index % len(modes)
        for mode in (*modes[turn:], *modes[:turn]):
            runs[mode.name].append(_time_generation(engine, mode, prompt, token_count))
            on_run()
    return [
        Speed(
            name,
            rounds=tuple(token_count / run.elapsed_s for run in runs_of_mode),
            cpu_ms=statistics.median(run.cpu_s / token_count * 1e3 for run in runs_of_mode),
            results=runs_of_mode[-1].results,
        )
        for name, runs_of_mode in runs.items()
    ]


def measure_step_s(engine: HFEngine, mode: Mode, *, prompt: str, token_count: int) -> float:
    """Seconds that one token takes; a short generation is subtracted, so that reading the prompt does not count."""
    short_count = 2
    short = _time_generation(engine, mode, prompt, short_count)
    long = _time_generation(engine, mode, prompt, short_count + token_count)
    return max(long.elapsed_s - short.elapsed_s, 1e-4) / token_count


def _time_generation(engine: HFEngine, mode: Mode, prompt: str, token_count: int) -> _Run:
    """Generates once. Waiting for verdicts is not part of the time: the text is there before them."""
    request_id = f"measure-{time.monotonic_ns()}"
    arguments = {"max_new_tokens": token_count, "min_new_tokens": token_count, "do_sample": False}
    engine.register_extraction(request_id, mode.points)
    try:
        begin_s, cpu_begin_s = time.perf_counter(), time.thread_time()
        engine.generate_batch([request_id], [prompt], arguments, mode.router, ends_requests=False)
        elapsed_s, cpu_s = time.perf_counter() - begin_s, time.thread_time() - cpu_begin_s
        return _Run(elapsed_s, cpu_s, mode.router.end_request(request_id))
    finally:
        engine.unregister_extraction(request_id)
