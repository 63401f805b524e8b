"""Counts calls, failures, tokens and time.

Policy: open. What watches must not break what it watches.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from typing import ClassVar

from undercurrent.predict import FailurePolicy, PredictContext

__all__ = ["MetricsHook"]

BUCKETS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 10000.0)


class MetricsHook:
    """Totals since it was made, by checkpoint."""

    failure_policy: ClassVar[FailurePolicy] = "open"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.call_counts: Counter[tuple[str, str]] = Counter()
        """By checkpoint and outcome: "answered", "skipped" by a hook, or "failed"."""
        self.token_counts: Counter[str] = Counter()
        """Tokens read, by checkpoint."""
        self.event_counts: Counter[tuple[str, str]] = Counter()
        """Loads and evictions, by checkpoint."""
        self._buckets: dict[str, list[int]] = {}
        self._sums_ms: Counter[str] = Counter()

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Counts one call."""
        model = ctx.model or "unknown"
        outcome = "failed" if ctx.error is not None else "skipped" if ctx.is_skipped else "answered"
        elapsed_ms = ctx.elapsed_ms or 0.0
        with self._lock:
            self.call_counts[model, outcome] += 1
            if outcome == "answered" and ctx.usage:
                self.token_counts[model] += ctx.usage["input_tokens"]
            buckets = self._buckets.setdefault(model, [0] * (len(BUCKETS_MS) + 1))
            buckets[bisect_left(BUCKETS_MS, elapsed_ms)] += 1
            self._sums_ms[model] += elapsed_ms  # type: ignore[assignment]

    def on_error(self, ctx: PredictContext) -> None:
        """Counts a call that failed before it started, which has no end."""
        if ctx.agent is None:
            with self._lock:
                self.call_counts[ctx.model or "unknown", "failed"] += 1

    def on_load(self, ctx: PredictContext) -> None:
        """Counts a load."""
        with self._lock:
            self.event_counts[ctx.model or "unknown", "loaded"] += 1

    def on_evict(self, ctx: PredictContext) -> None:
        """Counts an eviction."""
        with self._lock:
            self.event_counts[ctx.model or "unknown", "evicted"] += 1

    def prometheus_text(self) -> str:
        """Returns all totals in the text format that Prometheus scrapes."""
        with self._lock:
            lines = ["# TYPE undercurrent_predict_calls_total counter"]
            lines += [
                f'undercurrent_predict_calls_total{{model="{model}",outcome="{outcome}"}} {count}'
                for (model, outcome), count in sorted(self.call_counts.items())
            ]
            lines.append("# TYPE undercurrent_predict_tokens_total counter")
            lines += [
                f'undercurrent_predict_tokens_total{{model="{model}"}} {count}'
                for model, count in sorted(self.token_counts.items())
            ]
            lines.append("# TYPE undercurrent_predict_checkpoints_total counter")
            lines += [
                f'undercurrent_predict_checkpoints_total{{model="{model}",event="{event}"}} {count}'
                for (model, event), count in sorted(self.event_counts.items())
            ]
            lines.append("# TYPE undercurrent_predict_elapsed_ms histogram")
            for model, buckets in sorted(self._buckets.items()):
                lines += self._histogram(model, buckets)
        return "\n".join(lines) + "\n"

    def _histogram(self, model: str, buckets: list[int]) -> list[str]:
        name, lines, total = "undercurrent_predict_elapsed_ms", [], 0
        for limit, count in zip([*map(str, BUCKETS_MS), "+Inf"], buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{model="{model}",le="{limit}"}} {total}')
        return [
            *lines,
            f'{name}_sum{{model="{model}"}} {self._sums_ms[model]}',
            f'{name}_count{{model="{model}"}} {total}',
        ]
