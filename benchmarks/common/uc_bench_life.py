"""Scenarios of a request's and a worker's life: registering, ending, keeping, starting, dying."""

from __future__ import annotations

import os
import statistics
import time

import numpy as np
import uc_bench_probes as probes
from uc_bench_setup import HIDDEN_8KIB, context, make_point, make_router, record, warm


def burst(records=20000, hidden=16):
    """An unpaced burst into default settings: what is lost, and whether the result says so."""
    router = make_router(probes.NoopProbe)
    point = make_point("monitor")
    tensor = np.zeros(hidden, dtype=np.float32)
    warm(router, [point], tensor)
    router.register_request("r", [point], context("r"))
    route = router.route
    for index in range(records):
        route(record("r", "monitor", index, tensor))
    result = router.end_request("r")["monitor"]
    router.shutdown()
    coverage = result.metadata.get("coverage") or {}
    return {
        "lost_percent": 100.0 * (records - result.verdict) / records,
        "says_dropped": coverage.get("dropped"),
        "is_accounted": coverage.get("routed") == records == result.verdict + coverage.get("dropped", -1),
    }


def registration(points=4, rounds=200):
    """`register_request` and `end_request` of a warm router with idle async points, wall time."""
    router = make_router(probes.NoopProbe)
    made = [make_point(f"p{index}") for index in range(points)]
    tensor = np.zeros(HIDDEN_8KIB, dtype=np.float32)
    warm(router, made, tensor)
    registers, ends = [], []
    for index in range(rounds):
        request_id = f"r{index}"
        ctx = context(request_id)
        started = time.perf_counter_ns()
        router.register_request(request_id, made, ctx)
        registered = time.perf_counter_ns()
        for point in made:
            router.route(record(request_id, point.name, 1, tensor))
        time.sleep(0.005)
        ending = time.perf_counter_ns()
        router.end_request(request_id)
        ends.append(time.perf_counter_ns() - ending)
        registers.append(registered - started)
    router.shutdown()
    return {"register_us": statistics.median(registers) / 1e3, "end_us": statistics.median(ends) / 1e3}


def round_trip(rounds=200):
    """The least that asking a process costs after a pause: main thread, process at nice 19, thread, main thread."""
    import threading

    to_child, from_parent = os.pipe()[::-1]
    from_child, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child)
        os.nice(19)
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[-1]})
        while os.read(from_parent, 1):
            os.write(to_parent, b"x")
        os._exit(0)
    os.close(from_parent)
    os.close(to_parent)
    answered = threading.Semaphore(0)

    def listen():
        while os.read(from_child, 1):
            answered.release()

    threading.Thread(target=listen, daemon=True).start()
    times = []
    for _ in range(rounds):
        time.sleep(0.005)
        started = time.perf_counter_ns()
        os.write(to_child, b"x")
        answered.acquire(timeout=10)
        times.append(time.perf_counter_ns() - started)
    os.close(to_child)
    os.waitpid(child, 0)
    return {"round_trip_us": statistics.median(times) / 1e3}


def backlog(waiting=32, probe_ms=1.0):
    """`end_request` with a backlog."""
    router = make_router(probes.BusyProbe, loops=probes.calibrate_loops(probe_ms / 1e3))
    point = make_point("p", depth=waiting)
    tensor = np.zeros(HIDDEN_8KIB, dtype=np.float32)
    warm(router, [point], tensor)
    times = []
    for index in range(9):
        request_id = f"r{index}"
        router.register_request(request_id, [point], context(request_id))
        for position in range(waiting):
            router.route(record(request_id, "p", position, tensor))
        started = time.perf_counter()
        router.end_request(request_id)
        times.append((time.perf_counter() - started) * 1e3)
    router.shutdown()
    return {"end_ms": statistics.median(times)}


def live(bindings=1000, depth=8, idle_s=10.0):
    """Many live bindings: threads, memory, and what they cost while nothing happens."""
    import psutil

    router = make_router(probes.NoopProbe)
    point = make_point("p", depth=depth)
    tensor = np.ones(HIDDEN_8KIB, dtype=np.float32)
    warm(router, [point], tensor)
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    threads_before = me.num_threads()
    memory_before = sum(p.memory_full_info().pss for p in processes)
    for index in range(bindings):
        router.register_request(f"r{index}", [point], context(f"r{index}"))
    for index in range(bindings):
        for position in range(depth):
            router.route(record(f"r{index}", "p", position, tensor))
    time.sleep(3.0)
    memory = sum(p.memory_full_info().pss for p in processes) - memory_before
    cpu_before, wakes_before = _cpu_and_wakes(processes)
    time.sleep(idle_s)
    cpu, wakes = _cpu_and_wakes(processes)
    threads = me.num_threads() - threads_before
    for index in range(bindings):
        router.end_request(f"r{index}")
    router.shutdown()
    return {
        "threads": threads,
        "memory_mib": memory / 2**20,
        "wakes_per_s": (wakes - wakes_before - 1) / idle_s,  # one is this thread's own sleep
        "core_percent": 100.0 * (cpu - cpu_before) / idle_s,
    }


def _cpu_and_wakes(processes):
    cpu = wakes = 0.0
    for process in processes:
        times = process.cpu_times()
        cpu += times.user + times.system
        for task in os.listdir(f"/proc/{process.pid}/task"):
            with open(f"/proc/{process.pid}/task/{task}/status") as status:
                wakes += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
    return cpu, wakes


class SeenSink:
    """Keeps when and where each record was seen."""

    def __init__(self):
        self.seen = []

    def write_signal(self, request_id, extraction_point_name, signal):
        self.seen.append((signal.metadata["position"], signal.metadata["seen"], signal.metadata["pid"]))

    def write_result(self, request_id, extraction_point_name, result):
        pass


def cold():
    """From the first async registration of a new router until its first record is seen."""
    router = make_router(probes.TimeProbe)
    point = make_point("monitor")
    started = time.monotonic()
    router.register_request("r", [point], context("r"))
    router.route(record("r", "monitor", 1, np.zeros(HIDDEN_8KIB, dtype=np.float32)))
    seen = router.end_request("r")["monitor"].verdict
    router.shutdown()
    return {"first_seen_ms": (seen[0] - started) * 1e3}


def recovery(kills=5):
    """From `kill -9` of a worker to the next record seen by its successor; a new request per kill."""
    import signal as signals

    router = make_router(probes.TimeProbe)
    sink = SeenSink()
    router.attach_log_sink(sink)
    point = make_point("monitor")
    tensor = np.zeros(HIDDEN_8KIB, dtype=np.float32)
    warm(router, [point], tensor)
    times = []
    for index in range(kills):
        request_id = f"r{index}"
        router.register_request(request_id, [point], context(request_id))
        router.route(record(request_id, "monitor", 1, tensor))
        deadline = time.monotonic() + 10
        while not sink.seen and time.monotonic() < deadline:
            time.sleep(0.001)
        victim = sink.seen[-1][2]
        if victim == os.getpid():
            router.shutdown()
            return {"recovery_ms": None}  # its probes die with the engine
        sink.seen.clear()
        killed = time.monotonic()
        os.kill(victim, signals.SIGKILL)
        position = 2
        while not sink.seen and time.monotonic() < killed + 20:
            router.route(record(request_id, "monitor", position, tensor))
            position += 1
            time.sleep(0.002)
        times.append((sink.seen[0][1] - killed) * 1e3)
        router.end_request(request_id)
        sink.seen.clear()
    router.shutdown()
    return {"recovery_ms": statistics.median(times[:2]), "recovery_ms_all": times}


def memory():
    """PSS of an idle router's own addition, and of a worker, in MiB."""
    import psutil

    me = psutil.Process()
    before = me.memory_info().rss  # PSS and USS fall when workers begin to share the libraries
    router = make_router(probes.NoopProbe)
    point = make_point("monitor")
    warm(router, [point], np.zeros(HIDDEN_8KIB, dtype=np.float32))
    own = me.memory_info().rss - before
    children = sorted((p.memory_full_info().uss for p in me.children(recursive=True)), reverse=True)
    router.shutdown()
    return {"router_mib": own / 2**20, "worker_mib": children[0] / 2**20 if children else None}


def torch_worker():
    """USS of a worker that has seen a torch tensor, in MiB; None where torch is missing."""
    import psutil

    try:
        import torch
    except ImportError:
        return {"worker_mib": None}
    router = make_router(probes.NoopProbe)
    router.register_request("r", [make_point("monitor")], context("r"))
    router.route(record("r", "monitor", 1, torch.zeros(HIDDEN_8KIB, dtype=torch.bfloat16)))
    router.flush(60)
    children = psutil.Process().children(recursive=True)
    worker = max(process.memory_full_info().uss for process in children)
    router.end_request("r")
    router.shutdown()
    return {"worker_mib": worker / 2**20}


def file_sink(lines=100000):
    """Lines per second of `FileLogSink.write_signal`."""
    import tempfile

    from undercurrent.core import ProbeSignal
    from undercurrent.sinks import FileLogSink

    with tempfile.TemporaryDirectory() as folder:
        sink = FileLogSink(os.path.join(folder, "bench.ndjson"))
        signal = ProbeSignal(metadata={"score": 0.5, "probe": "bench"}, confidence=0.9)
        started = time.perf_counter()
        for _ in range(lines):
            sink.write_signal("request-1", "monitor", signal)
        close = getattr(sink, "close", None)
        if close is not None:
            close()
        elapsed = time.perf_counter() - started
    return {"lines_per_s": lines / elapsed}
