"""Small probes for tests of the workers; they travel to worker processes by value."""

from __future__ import annotations

import copy
import os
import sys
import time

import numpy as np

from undercurrent.core import Probe, ProbeResult, ProbeSignal


class Recorder(Probe):
    """Keeps what it saw: positions, values, process."""

    probe_kind = "trajectory"

    def on_start(self, request_ctx):
        self.positions = []
        self.values = []
        self.metadata = request_ctx.prompt_metadata

    def on_activation(self, record):
        self.positions.append(record.token_pos)
        self.values.append(float(np.asarray(record.tensor).reshape(-1)[0]))
        return ProbeSignal(metadata={"position": record.token_pos})

    def on_end(self, request_ctx):
        verdict = {"positions": self.positions, "values": self.values, "pid": os.getpid(), "metadata": self.metadata}
        return ProbeResult(self.request_id, self.extraction_point_name, verdict)


class BatchRecorder(Recorder):
    """Sees records many at a time."""

    def on_activations(self, batch):
        self.positions += batch.positions.tolist()
        self.values += batch.stack()[:, 0].tolist()
        return [None] * len(batch)


class InPlaceWriter(Recorder):
    """Tries to write into what it gets."""

    reads_in_place = True

    def on_activation(self, record):
        try:
            record.tensor[0] = 99.0
        except ValueError:
            self.positions.append(-1)
        self.values.append(float(record.tensor[0]))


class Keeper(Recorder):
    """Writes into every record it can write into, and keeps every third as it came."""

    def on_start(self, request_ctx):
        super().on_start(request_ctx)
        self.kept = []
        self.seen = []

    def on_activation(self, record):
        self.seen.append(copy.deepcopy(record.tensor))
        if record.token_pos % 3 == 0:
            self.kept.append((record.tensor, copy.deepcopy(record.tensor)))
        else:
            overwrite(record.tensor)

    def on_end(self, request_ctx):
        intact = all(is_same(tensor, copied) for tensor, copied in self.kept)
        return ProbeResult(self.request_id, self.extraction_point_name, (self.seen, len(self.kept), intact))


class BatchKeeper(Keeper):
    """The same with many records at a time."""

    def on_activations(self, batch):
        for record in batch:
            self.on_activation(record)


def overwrite(tensor):
    """Changes every item of what can be changed."""
    for index in range(len(tensor) if not isinstance(tensor, (bytes, tuple)) else 0):
        tensor[index] = 99


def is_same(left, right):
    """Whether two tensors of a kind hold the same items."""
    return type(left) is type(right) and [float(item) for item in left] == [float(item) for item in right]


class Raiser(Recorder):
    """Raises on every second record: an Exception, then SystemExit, then KeyboardInterrupt …"""

    def on_activation(self, record):
        if record.token_pos % 2:
            raise (ValueError, SystemExit, KeyboardInterrupt)[record.token_pos // 2 % 3](f"at {record.token_pos}")
        return super().on_activation(record)


class StartRaiser(Recorder):
    """Cannot start."""

    def on_start(self, request_ctx):
        raise RuntimeError("no weights today")


class EndRaiser(Recorder):
    """Cannot end."""

    def on_end(self, request_ctx):
        raise RuntimeError("no verdict today")


class Killer(Recorder):
    """Ends its process on a record at position 666, in the way it is told."""

    def __init__(self, way="exit"):
        self.way = way

    def on_activation(self, record):
        if record.token_pos == 666:
            if self.way == "exit":
                os._exit(3)
            if self.way == "segfault":
                import ctypes

                ctypes.string_at(0)
            if self.way == "loop":
                while True:
                    pass
            if self.way == "sleep":
                time.sleep(3600)
        return super().on_activation(record)


class TorchWitness(Recorder):
    """Its verdict: whether torch was there before the first record, and the priority it ran at."""

    def on_start(self, request_ctx):
        super().on_start(request_ctx)
        self.has_torch = "torch" in sys.modules

    def on_end(self, request_ctx):
        verdict = (self.has_torch, os.getpriority(os.PRIO_PROCESS, 0))
        return ProbeResult(self.request_id, self.extraction_point_name, verdict)


class Gate(Recorder):
    """Waits at each record until the file it was told exists."""

    def __init__(self, path):
        self.path = path

    def on_activation(self, record):
        until = time.monotonic() + 30
        while not os.path.exists(self.path) and time.monotonic() < until:
            time.sleep(0.002)
        return super().on_activation(record)


SEEN: list[int] = []


class GlobalCounter(Recorder):
    """Counts in a global of its module."""

    def on_activation(self, record):
        SEEN.append(record.token_pos)

    def on_end(self, request_ctx):
        return ProbeResult(self.request_id, self.extraction_point_name, len(SEEN))


class Unspeakable(Recorder):
    """Has a verdict that no process can be told."""

    def on_end(self, request_ctx):
        import threading

        return ProbeResult(self.request_id, self.extraction_point_name, {"lock": threading.Lock()})


class Explosive:
    """Can be pickled, and raises when it is unpickled."""

    def __reduce__(self):
        return explode, ()


def explode():
    raise RuntimeError("not in this process")


class InPlaceKeeper(Recorder):
    """Reads in place and keeps every view it gets."""

    reads_in_place = True

    def on_start(self, request_ctx):
        super().on_start(request_ctx)
        self.kept = []

    def on_activation(self, record):
        self.kept.append(record.tensor)

    def on_end(self, request_ctx):
        verdict = [(float(tensor[0]), tensor.flags.writeable) for tensor in self.kept]
        return ProbeResult(self.request_id, self.extraction_point_name, verdict)
