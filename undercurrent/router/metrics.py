"""Counters of async bindings: what a metrics sink receives, and what `Router.get_metrics` answers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass

from undercurrent.workers import BindingStatistics

__all__ = ["InMemoryMetricsRegistry", "MetricsSink", "MetricsSnapshot"]


class MetricsSink(ABC):
    """Receives the counters of async bindings, for an exporter.

    Every method is called on the router's metrics thread, never inside `route()`. The thread reads the counters from
    shared memory at most twice a second, so events arrive in groups: each drop, error and activation is reported once,
    an activation with the mean latency of its group. What a method raises is logged.
    """

    @abstractmethod
    def record_queue_depth(self, request_id: str, extraction_point_name: str, depth: int) -> None:
        """Reports how many records wait, when that changed since the last look."""

    @abstractmethod
    def record_drop(self, request_id: str, extraction_point_name: str) -> None:
        """Reports one record that its probe never sees."""

    @abstractmethod
    def record_activation(self, request_id: str, extraction_point_name: str, latency_seconds: float) -> None:
        """Reports one record that a probe handled, whether it returned or raised."""

    @abstractmethod
    def record_probe_error(self, request_id: str, extraction_point_name: str) -> None:
        """Reports one record at which a probe raised."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The counters of one async binding at one moment."""

    queue_depth: int = 0
    """Records that wait now."""
    drop_count: int = 0
    """Records that the probe never sees: evicted, refused, or without memory."""
    activation_count: int = 0
    """Records that the probe handled, with those at which it raised."""
    error_count: int = 0
    """Records at which the probe raised."""
    avg_activation_latency_seconds: float | None = None
    """Mean time of one `on_activation`; None before the first."""

    @classmethod
    def of(cls, statistics: BindingStatistics) -> MetricsSnapshot:
        """The counters of a binding, under the published names."""
        activations = statistics.activations
        return cls(
            queue_depth=statistics.waiting,
            drop_count=statistics.dropped,
            activation_count=activations,
            error_count=statistics.errors,
            avg_activation_latency_seconds=statistics.latency_s_total / activations if activations else None,
        )


@dataclass(slots=True)
class _Totals:
    queue_depth: int = 0
    drop_count: int = 0
    activation_count: int = 0
    error_count: int = 0
    latency_total_s: float = 0.0

    def freeze(self) -> MetricsSnapshot:
        mean_s = self.latency_total_s / self.activation_count if self.activation_count else None
        return MetricsSnapshot(self.queue_depth, self.drop_count, self.activation_count, self.error_count, mean_s)


class InMemoryMetricsRegistry(MetricsSink):
    """A metrics sink that keeps the totals of every binding until it is told to forget them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[tuple[str, str], _Totals] = {}  # guarded by _lock

    def register(self, request_id: str, extraction_point_name: str) -> None:
        """Begins to keep a binding, with all counters at zero."""
        with self._lock:
            self._totals[request_id, extraction_point_name] = _Totals()

    def forget(self, request_id: str, extraction_point_name: str) -> None:
        """Forgets a binding; one that is not kept is no error."""
        with self._lock:
            self._totals.pop((request_id, extraction_point_name), None)

    def record_queue_depth(self, request_id: str, extraction_point_name: str, depth: int) -> None:
        with self._lock:
            self._kept(request_id, extraction_point_name).queue_depth = depth

    def record_drop(self, request_id: str, extraction_point_name: str) -> None:
        with self._lock:
            self._kept(request_id, extraction_point_name).drop_count += 1

    def record_activation(self, request_id: str, extraction_point_name: str, latency_seconds: float) -> None:
        with self._lock:
            totals = self._kept(request_id, extraction_point_name)
            totals.activation_count += 1
            totals.latency_total_s += latency_seconds

    def record_probe_error(self, request_id: str, extraction_point_name: str) -> None:
        with self._lock:
            self._kept(request_id, extraction_point_name).error_count += 1

    def snapshot(self, request_id: str, extraction_point_name: str) -> MetricsSnapshot | None:
        """The counters of one binding; None where it is not kept."""
        with self._lock:
            totals = self._totals.get((request_id, extraction_point_name))
            return totals.freeze() if totals is not None else None

    def _kept(self, request_id: str, extraction_point_name: str) -> _Totals:
        return self._totals.setdefault((request_id, extraction_point_name), _Totals())
