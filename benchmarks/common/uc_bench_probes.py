"""Probes of the benchmarks, written for the public API alone: the published 0.1.0 runs them too."""

from __future__ import annotations

import time

from undercurrent.core import Probe, ProbeResult


class NoopProbe(Probe):
    """Looks at nothing: what is left is the router's cost."""

    probe_kind = "trajectory"

    def on_start(self, request_ctx):
        self.count = 0

    def on_activation(self, record):
        self.count += 1

    def on_end(self, request_ctx):
        return ProbeResult(self.request_id, self.extraction_point_name, self.count)


class MeanProbe(NoopProbe):
    """The mean of every record as a product with equal weights; one product per batch where batches exist."""

    def on_start(self, request_ctx):
        super().on_start(request_ctx)
        self.total = 0.0
        self.weights = None

    def on_activation(self, record):
        self.count += 1
        self.total += float(record.tensor @ self._weights(len(record.tensor)))

    def on_activations(self, batch):
        self.count += len(batch)
        stacked = batch.stack()
        self.total += float((stacked @ self._weights(stacked.shape[1])).sum())

    def _weights(self, count):
        import numpy as np

        if self.weights is None:
            self.weights = np.full(count, 1 / count, dtype=np.float32)
        return self.weights


class BusyProbe(NoopProbe):
    """Pure Python that never lets the GIL go: `loops` turns of a loop per record."""

    def __init__(self, loops=1000):
        self.loops = loops

    def on_activation(self, record):
        spin(self.loops)
        self.count += 1


class LatencyProbe(NoopProbe):
    """How long each record took from its making to the probe, in microseconds."""

    def on_start(self, request_ctx):
        super().on_start(request_ctx)
        self.latencies_us = []

    def on_activation(self, record):
        self.latencies_us.append((time.time() - record.timestamp) * 1e6)

    def on_end(self, request_ctx):
        return ProbeResult(self.request_id, self.extraction_point_name, self.latencies_us)


class TimeProbe(NoopProbe):
    """When each record was seen (`time.monotonic`), and by which process."""

    def on_start(self, request_ctx):
        super().on_start(request_ctx)
        self.seen = []

    def on_activation(self, record):
        import os

        from undercurrent.core import ProbeSignal

        self.seen.append(time.monotonic())
        return ProbeSignal(metadata={"pid": os.getpid(), "seen": time.monotonic(), "position": record.token_pos})

    def on_end(self, request_ctx):
        return ProbeResult(self.request_id, self.extraction_point_name, self.seen)


def spin(loops):
    """Pure Python work; returns what it computed, so that it is not empty."""
    value = 0
    for index in range(loops):
        value = (value * 31 + index) & 0xFFFF
    return value


def calibrate_loops(target_s=0.001):
    """Returns how many loops cost `target_s` of CPU here."""
    loops = 2000
    best = min(_cpu_of_spin(loops) for _ in range(30))
    return max(1, int(loops * target_s / best))


def _cpu_of_spin(loops):
    started = time.thread_time_ns()
    spin(loops)
    return max(1, time.thread_time_ns() - started) / 1e9
