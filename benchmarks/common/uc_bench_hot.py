"""Scenarios of the hot path: what a record costs and how far it gets."""

from __future__ import annotations

import os
import statistics
import threading
import time

import numpy as np
import uc_bench_probes as probes
from uc_bench_setup import (
    HIDDEN_8KIB,
    context,
    cpu_us_per_call,
    make_point,
    make_router,
    median_of,
    record,
    warm,
)

from undercurrent.router import OverflowPolicy


def route_inline(calls=20000, threads=4):
    """`route()` to an inline probe that does nothing; one thread, then several."""
    router = make_router(probes.NoopProbe)
    ids = [f"r{index}" for index in range(threads)]
    for request_id in ids:
        router.register_request(request_id, [make_point("inline", "inline")], context(request_id))
    tensor = np.zeros(16, dtype=np.float32)
    records = {request_id: record(request_id, "inline", 1, tensor) for request_id in ids}
    first = records["r0"]
    route = router.route
    one_us = median_of(9, lambda: cpu_us_per_call(lambda: route(first), calls))
    floor_us = median_of(9, lambda: cpu_us_per_call(lambda: None, calls))

    def run(request_id):
        mine = records[request_id]
        for _ in range(calls):
            route(mine)

    def wall(count):
        started = time.perf_counter()
        workers = [threading.Thread(target=run, args=(request_id,)) for request_id in ids[:count]]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return count * calls / (time.perf_counter() - started)

    single = median_of(5, lambda: wall(1))
    several = median_of(5, lambda: wall(threads))
    router.shutdown()
    return {"route_us": one_us - floor_us, "threads_ratio": several / single}


def route_async(gap_s=0.0, calls=4000, depth=64, nbytes=8192):
    """`route()` of 8 KiB to an async probe: back to back, or one record per `gap_s`; the caller's CPU time."""
    router = make_router(probes.NoopProbe)
    point = make_point("monitor", depth=depth)
    ring = [np.random.default_rng(0).random(nbytes // 4, dtype=np.float32) for _ in range(16)]
    warm(router, [point], ring[0])
    router.register_request("r", [point], context("r"))
    records = [record("r", "monitor", index, ring[index % 16]) for index in range(64)]
    route = router.route
    for item in records:
        route(item)
    costs = []
    if gap_s == 0.0:
        for _ in range(max(1, calls // 500)):
            started = time.thread_time_ns()
            for index in range(500):
                route(records[index & 63])
            costs.append((time.thread_time_ns() - started) / 500)
    else:
        for index in range(calls):
            time.sleep(gap_s)
            costs.append(_cost_of(route, records[index & 63]))
    router.end_request("r")
    router.shutdown()
    return {
        "route_us": statistics.median(costs) / 1e3,
        "p99_us": float(np.quantile(costs, 0.99)) / 1e3,
        **_copy_floors(gap_s, ring, min(calls, 300), depth + 17),
    }


def _copy_floors(gap_s, sources, calls, places):
    """What numpy needs to copy a record: to one array, or at a pace also to as many places as a ring has slots, and
    there with a byte to a process that sleeps on another CPU."""
    targets = [np.zeros_like(sources[0]) for _ in range(places)]
    if gap_s == 0.0:
        return {"copy_us": median_of(9, lambda: cpu_us_per_call(lambda: np.copyto(targets[0], sources[3]), 2000))}
    sleeper_pid, write_fd = _start_sleeper()

    def copy(index):
        np.copyto(targets[0], sources[index % 16])

    def copy_to_its_place(index):
        np.copyto(targets[index % places], sources[index % 16])

    def copy_and_wake(index):
        copy_to_its_place(index)
        os.write(write_fd, b"x")

    floors = {}
    for name, call in (("copy", copy), ("place", copy_to_its_place), ("wake", copy_and_wake)):
        costs = []
        for index in range(calls):
            time.sleep(gap_s)
            costs.append(_cost_of(call, index))
        floors[f"{name}_us"] = statistics.median(costs) / 1e3
    os.close(write_fd)
    os.waitpid(sleeper_pid, 0)
    return floors


def _start_sleeper():
    """Forks a process that sleeps in read(), and ends when the pipe is closed; returns its pid and the pipe's end."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_fd)
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cpus[-1:] if len(cpus) > 1 else cpus)
        while os.read(read_fd, 64):
            pass
        os._exit(0)
    os.close(read_fd)
    return pid, write_fd


def _cost_of(call, argument):
    """CPU nanoseconds of one call, less what reading the clock costs then and there."""
    started = time.thread_time_ns()
    call(argument)
    ended = time.thread_time_ns()
    return ended - started - (time.thread_time_ns() - ended)


def gil(async_probes=1, probe_ms=1.0, step_ms=0.54, steps=60, pairs=20, mode=None):
    """A host-bound decode loop with and without async probes of pure Python, in alternating pairs."""
    loops = probes.calibrate_loops(probe_ms / 1e3)
    step_loops = probes.calibrate_loops(step_ms / 1e3)
    router = make_router(probes.BusyProbe, mode=mode, loops=loops)
    points = [make_point(f"p{index}") for index in range(async_probes)]
    tensor = np.random.default_rng(0).random(HIDDEN_8KIB, dtype=np.float32)
    warm(router, points, tensor)
    cpu, wall, p99 = [], [], []
    for pair in range(pairs):
        base = _segment(None, (), tensor, steps, step_loops, "")
        request_id = f"r{pair}"
        router.register_request(request_id, points, context(request_id))
        probed = _segment(router, points, tensor, steps, step_loops, request_id)
        router.end_request(request_id)
        cpu.append(probed[0] / base[0])
        wall.append(probed[1] / base[1])
        p99.append(probed[2] / base[2])
    router.shutdown()
    return {
        "cpu_ratio": statistics.median(cpu),
        "cpu_interval": interval(cpu),
        "wall_ratio": statistics.median(wall),
        "wall_interval": interval(wall),
        "p99_step_ratio": statistics.median(p99),
        "pairs": pairs,
    }


def _segment(router, points, tensor, steps, step_loops, request_id):
    """Runs `steps` decode steps; returns CPU and wall time per step and the slow steps' time."""
    walls = []
    step = getattr(router, "step", None)
    started_cpu = time.thread_time_ns()
    started = time.perf_counter_ns()
    last = started
    for index in range(steps):
        probes.spin(step_loops)
        if points:
            if step is not None:
                with step():
                    for point in points:
                        router.route(record(request_id, point.name, index, tensor))
            else:
                for point in points:
                    router.route(record(request_id, point.name, index, tensor))
        now = time.perf_counter_ns()
        walls.append(now - last)
        last = now
    return (
        (time.thread_time_ns() - started_cpu) / steps,
        (time.perf_counter_ns() - started) / steps,
        float(np.quantile(walls, 0.99)),
    )


def interval(values):
    """A 95 % bootstrap interval of the median."""
    rng = np.random.default_rng(1)
    medians = np.median(rng.choice(values, size=(2000, len(values))), axis=1)
    return [float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))]


def throughput(records=20000, hidden=4096):
    """Records per second to a mean probe under `block`, prebuilt records."""
    router = make_router(probes.MeanProbe, policy=OverflowPolicy.BLOCK)
    point = make_point("mean", depth=64)
    tensors = [np.random.default_rng(i).random(hidden, dtype=np.float32) for i in range(16)]
    warm(router, [point], tensors[0])
    router.register_request("r", [point], context("r"))
    prebuilt = [record("r", "mean", index, tensors[index % 16]) for index in range(256)]
    route = router.route
    started = time.perf_counter()
    for index in range(records):
        route(prebuilt[index & 255])
    result = router.end_request("r")["mean"]
    elapsed = time.perf_counter() - started
    router.shutdown()
    return {
        "records_per_s": records / elapsed,
        "seen": result.verdict,
        "floor_records_per_s": _floor_per_s(hidden),
    }


def _floor_per_s(hidden, batch=16):
    """What one thread copies out of memory and multiplies, `batch` records at a time, while nobody writes there."""
    rows = np.random.default_rng(0).random((64 << 20) // (4 * hidden) // batch * batch * hidden, dtype=np.float32)
    batches = rows.reshape(-1, batch, hidden)
    weights = np.full(hidden, 1 / hidden, dtype=np.float32)
    started = time.perf_counter()
    for each in batches:
        float((each.copy() @ weights).sum())
    return len(batches) * batch / (time.perf_counter() - started)


def latency(gap_s=0.001, records=1000, unevenness=0.0):
    """From making a record to the probe's first line, at one record per `gap_s`, more or less by `unevenness` of it."""
    gaps_s = gap_s * (1 + unevenness * np.random.default_rng(1).uniform(-1, 1, records))
    router = make_router(probes.LatencyProbe)
    point = make_point("monitor")
    tensor = np.random.default_rng(0).random(HIDDEN_8KIB, dtype=np.float32)
    warm(router, [point], tensor)
    router.register_request("r", [point], context("r"))
    for index, pause_s in enumerate(gaps_s.tolist()):
        if gap_s >= 0.0005:
            time.sleep(pause_s)
        else:
            until = time.perf_counter() + pause_s
            while time.perf_counter() < until:
                pass
        router.route(record("r", "monitor", index, tensor))
    seen = sorted(router.end_request("r")["monitor"].verdict[5:])
    router.shutdown()
    return {"p50_us": seen[len(seen) // 2], "p99_us": seen[len(seen) * 99 // 100]}


def route_rows(requests=64, points=1, repeats=60):
    """One call per point for the rows of a step, beside a loop of `route()` and the bare copies; CPU time of a step."""
    router = make_router(probes.NoopProbe)
    made = [make_point(f"p{index}", depth=4) for index in range(points)]
    rows = np.random.default_rng(0).random((requests, HIDDEN_8KIB), dtype=np.float32)
    ids = [f"r{index}" for index in range(requests)]
    for request_id in ids:
        router.register_request(request_id, made, context(request_id))
    entries = {point.name: [(request_id, point.name, 1, True) for request_id in ids] for point in made}
    target = np.empty_like(rows)

    def all_rows():
        with router.step():
            for point in made:
                router.route_rows(rows, 4, "mlp_out", entries[point.name])

    def one_by_one():
        with router.step():
            for point in made:
                for index, request_id in enumerate(ids):
                    router.route(record(request_id, point.name, 1, rows[index]))

    def copies():
        for _ in made:
            np.copyto(target, rows)

    costs = {name: [] for name in ("rows", "loop", "copies")}
    for _ in range(repeats):
        for name, call in (("rows", all_rows), ("loop", one_by_one), ("copies", copies)):
            started = time.thread_time_ns()
            call()
            costs[name].append((time.thread_time_ns() - started) / 1e3)
            time.sleep(0.004)
    for request_id in ids:
        router.end_request(request_id)
    router.shutdown()
    measured = {f"{name}_us": statistics.median(values) for name, values in costs.items()}
    return {**measured, "apart_us": _copies_apart_us(rows, points, repeats)}


def _copies_apart_us(rows, points, repeats):
    """What numpy needs to copy each row to a place of its own, in turn to as many as rings of four have slots.

    Measured behind the rest, whose caches it would empty.
    """
    sets = [[np.zeros_like(row) for _ in range(points) for row in rows] for _ in range(5)]
    costs = []
    for repeat in range(repeats):
        places = sets[repeat % 5]
        started = time.thread_time_ns()
        for index, place in enumerate(places):
            np.copyto(place, rows[index % len(rows)])
        costs.append((time.thread_time_ns() - started) / 1e3)
        time.sleep(0.004)
    return statistics.median(costs)
