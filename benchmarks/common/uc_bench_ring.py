"""The ring alone, from Python to Python: a producer here, a consumer in a forked process.

    python -P uc_bench_ring.py [RECORDS]

prints one JSON object. Pinned to two CPUs where there are two; "near" and "far" depend on where the host put them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import numpy as np

from undercurrent.ipc import ConsumerLane, MemoryBudget, ProducerLane, register_arrays
from undercurrent.ipc.layout import BLOCK, DROP_OLDEST, HEADER_FIELDS

NBYTES = 8192
HEADERS = np.dtype(HEADER_FIELDS)


def run(records):
    """Everything about the ring that the table shows."""
    cpus = sorted(os.sched_getaffinity(0))
    register_arrays([np.zeros(2, np.float32)])  # as the workers' package does when the first array comes
    arrays = [np.random.default_rng(i).random(NBYTES // 4, dtype=np.float32) for i in range(16)]
    result = {"numpy": _session(arrays, records, cpus)}
    tensors = _bfloat16(arrays)
    if tensors is not None:
        result["bf16"] = _session(tensors, records, cpus)
    result["pipe_us"] = _pipe_us(cpus)
    target = np.empty(NBYTES // 4, dtype=np.float32)
    result["copy_us"] = statistics.median(_cpu_us(lambda i: np.copyto(target, arrays[i & 15]), 2000) for _ in range(9))
    return result


def _bfloat16(arrays):
    try:
        import torch
    except ImportError:
        return None
    return [torch.from_numpy(array).repeat(2).to(torch.bfloat16) for array in arrays]


def _session(sources, records, cpus):
    budget = MemoryBudget(1 << 30)
    with ProducerLane(budget) as lane:
        fast = lane.open_ring(queue_depth=256, policy=DROP_OLDEST, generation=1)
        full = lane.open_ring(queue_depth=64, policy=BLOCK, generation=2)
        read_fd, write_fd = os.pipe()
        ready_fd, started_fd = os.pipe()
        consumer_fds = os.dup(lane.control_fd), os.dup(lane.payload_fd)
        child = os.fork()
        if child == 0:
            _consume(consumer_fds, write_fd, started_fd, cpus)
        os.close(write_fd)
        os.read(ready_fd, 1)
        if len(cpus) > 1:
            os.sched_setaffinity(0, {cpus[0]})
        publish = fast.publish
        for index in range(200):
            publish(sources[index & 15], 1, 0, index, 1, 0.0)
        cost_us = [_cpu_us(lambda i: publish(sources[i & 15], 1, 0, i, 1, 0.0), 500) for _ in range(records // 500)]
        for layer, gap_s, count in ((2, 0.00002, 4000), (3, 0.001, 600), (4, 0.06, 40)):
            _paced(fast, sources, gap_s, count, layer)
        started = time.perf_counter()
        for index in range(records):
            while full.publish(sources[index & 15], 1, 0, index, 1, 0.0) != 0:
                full.wait_room(1.0)
        while full.statistics().consumed < records:
            time.sleep(0.0002)
        elapsed = time.perf_counter() - started
        fast.close()
        full.close()
        lane.ring_mail()
        with os.fdopen(read_fd, "rb") as pipe:
            latencies = json.loads(pipe.read())
        os.waitpid(child, 0)
        os.sched_setaffinity(0, set(cpus))
    return {
        "publish_us": statistics.median(cost_us),
        "publish_p99_us": float(np.quantile(cost_us, 0.99)),
        "records_per_s": records / elapsed,
        "latency_us": {
            name: statistics.median(latencies[key])
            for name, key in (("spinning", "2"), ("napping", "3"), ("parked", "4"))
            if latencies.get(key)
        },
    }


def _pipe_us(cpus, gap_s=0.06, count=40):
    """The floor of a parked consumer: one way through a pipe to a process that sleeps in read(), at the same pace."""
    read_fd, write_fd = os.pipe()
    said_fd, say_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_fd)
        if len(cpus) > 1:
            os.sched_setaffinity(0, {cpus[-1]})
        seen = []
        while data := os.read(read_fd, 8):
            seen.append((time.monotonic_ns() - int.from_bytes(data, "little")) / 1e3)
        os.write(say_fd, json.dumps(seen).encode())
        os._exit(0)
    os.close(read_fd)
    if len(cpus) > 1:
        os.sched_setaffinity(0, {cpus[0]})
    for _ in range(count):
        time.sleep(gap_s)
        os.write(write_fd, time.monotonic_ns().to_bytes(8, "little"))
    os.close(write_fd)
    seen = json.loads(os.read(said_fd, 1 << 16))
    os.waitpid(child, 0)
    os.sched_setaffinity(0, set(cpus))
    return statistics.median(seen)


def _paced(ring, sources, gap_s, count, layer):
    for index in range(count):
        if gap_s >= 0.0005:
            time.sleep(gap_s)
        else:
            until = time.perf_counter() + gap_s
            while time.perf_counter() < until:
                pass
        ring.publish(sources[index & 15], 1, layer, index, 1, 0.0)


def _consume(fds, write_fd, started_fd, cpus):
    """Body of the consumer process; `layer` of a record names the pace it was sent at."""
    if len(cpus) > 1:
        os.sched_setaffinity(0, {cpus[-1]})
    lane = ConsumerLane(*fds)
    rings = [
        lane.attach_ring(0, queue_depth=256, policy=DROP_OLDEST, generation=1),
        lane.attach_ring(1, queue_depth=64, policy=BLOCK, generation=2),
    ]
    os.write(started_fd, b"x")
    latencies = {2: [], 3: [], 4: []}
    until = time.monotonic() + 120
    while not all(ring.at_end for ring in rings) and time.monotonic() < until:
        lane.take_ready()
        for ring in rings:
            while (batch := ring.take(16)) is not None:
                now = time.monotonic_ns()
                headers = np.frombuffer(batch.headers, HEADERS)
                layer = int(headers["layer"][0])
                if layer in latencies:
                    latencies[layer] += ((now - headers["monotonic_ns"].astype(np.int64)) / 1e3).tolist()
                ring.finish(batch)
        lane.wait(0.5)
    with os.fdopen(write_fd, "wb") as pipe:
        pipe.write(json.dumps(latencies).encode())
    os._exit(0)


def _cpu_us(call, count):
    started = time.thread_time_ns()
    for index in range(count):
        call(index)
    return (time.thread_time_ns() - started) / count / 1e3


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 20000)))
