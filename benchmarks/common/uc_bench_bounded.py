"""A bounded inline point's round trip, beside a bare one through two pipes; on idle CPUs and on crowded ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import uc_bench_probes as probes
from uc_bench_setup import HIDDEN_8KIB, context, make_point, make_router, record, warm

from undercurrent.spec import InterventionMode, InterventionPolicy

CPU_COUNT = 2
_ECHO = "import os\nwhile os.read(0, 1): os.write(1, b'.')"
_BUSY = "while True: pass"


def bounded(gap_s=0.001, records=1500, busy=0):
    """Wall time of `route()` at one record per `gap_s`, on two CPUs that `busy` other processes want too."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPU_COUNT])
    router = make_router(probes.NoopProbe, default_intervention_policy=_policy())
    point = make_point("gate", "inline")
    tensor = np.random.default_rng(0).random(HIDDEN_8KIB, dtype=np.float32)
    warm(router, [point], tensor)
    router.register_request("r", [point], context("r"))
    echo = subprocess.Popen([sys.executable, "-c", _ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    crowd = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(busy)]
    try:
        _round_trip(echo)
        trips, floors, fallbacks = [], [], 0
        for index in range(records):
            time.sleep(gap_s)
            started = time.perf_counter_ns()
            signal = router.route(record("r", "gate", index, tensor))
            trips.append(time.perf_counter_ns() - started)
            fallbacks += signal is not None
            time.sleep(gap_s)
            floors.append(_round_trip(echo))
    finally:
        for process in (echo, *crowd):
            process.kill()
            process.wait()
    router.end_request("r")
    router.shutdown()
    return {
        "p50_us": _quantile_us(trips, 50),
        "p99_us": _quantile_us(trips, 99),
        "fallbacks": fallbacks,
        "floor_p50_us": _quantile_us(floors, 50),
        "floor_p99_us": _quantile_us(floors, 99),
    }


def _policy():
    """Bounded, by a time that no round trip takes."""
    return InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, timeout_ms=10_000)


def _round_trip(echo):
    started = time.perf_counter_ns()
    os.write(echo.stdin.fileno(), b".")
    os.read(echo.stdout.fileno(), 1)
    return time.perf_counter_ns() - started


def _quantile_us(times_ns, percent):
    times = sorted(times_ns)
    return times[min(len(times) - 1, len(times) * percent // 100)] / 1e3
