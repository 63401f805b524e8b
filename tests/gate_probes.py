"""Probes and points for tests of bounded inline points; guards import the probes from this file."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from router_points import Collect, make_point, wait_until

from undercurrent.core import Probe, ProbeAction, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.core import probe as function_probe
from undercurrent.router import InterventionMode, InterventionPolicy, TimeoutAction
from undercurrent.spec import ActivationRecord, ExtractionPoint, ProbeKind

if TYPE_CHECKING:
    from undercurrent.router import Router

TRIGGER = 666
"""The position at which the probe `trouble` makes its trouble."""


class Gate(Collect):
    """Flags what it is told to, and says in which process; its verdict is what it saw."""

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        super().on_activation(record)
        return ProbeSignal(ProbeAction.FLAG, {"position": record.token_pos, "pid": os.getpid()})


class Trouble(Gate):
    """Does not come back from the record at position `TRIGGER`, in the way it is told."""

    def __init__(self, *, way: str = "sleep") -> None:
        super().__init__()
        self._way = way

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        if record.token_pos == TRIGGER:
            WAYS[self._way]()
        return super().on_activation(record)


def _loop() -> None:
    while True:
        pass


def _hold_the_gil() -> None:
    sum(range(10**13))  # one call of C code, which neither returns nor looks for other threads


def _match_for_ever() -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")  # exponential backtracking, inside one call of C code


WAYS: dict[str, Any] = {
    "sleep": lambda: time.sleep(3600),
    "loop": _loop,
    "sum": _hold_the_gil,
    "regex": _match_for_ever,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
HANGING = ("sleep", "loop", "sum", "regex", "stop")
DYING = ("exit", "segfault", "kill")


class Slow(Gate):
    """Answers the record at position `TRIGGER` when the file `gate` is there; creates `inside` while it waits."""

    def __init__(self, *, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        if record.token_pos == TRIGGER:
            (self._folder / "inside").touch()
            wait_until((self._folder / "gate").exists, 20.0)
        return super().on_activation(record)


class SlowStart(Gate):
    """Starts when the file `gate` is there."""

    def __init__(self, *, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)

    def on_start(self, request_ctx: RequestContext) -> None:
        (self._folder / "inside").touch()
        wait_until((self._folder / "gate").exists, 20.0)
        super().on_start(request_ctx)


class Raising(Gate):
    """Raises `error` at odd positions."""

    def __init__(self, *, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self._error = error

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        if record.token_pos % 2:
            raise self._error(f"at {record.token_pos}")
        return super().on_activation(record)


class Talkative(Gate):
    """Says more than an answer cell holds, in arrays and text."""

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        said = {"logits": np.arange(4096, dtype=np.float32) + record.token_pos, "why": "because " * 500}
        return ProbeSignal(ProbeAction.FLAG, said, confidence=0.75)


class Quiet(Probe):
    """Says nothing, sees everything; keeps whether it was called by two at a time."""

    probe_kind = "trajectory"

    def on_start(self, request_ctx: RequestContext) -> None:
        self.positions: list[int] = []
        self.is_inside = False
        self.was_shared = False

    def on_activation(self, record: ActivationRecord) -> None:
        self.was_shared |= self.is_inside
        self.is_inside = True
        time.sleep(0.0005)
        self.positions.append(record.token_pos)
        self.is_inside = False

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        return ProbeResult(
            self.request_id, self.extraction_point_name, (self.positions, self.was_shared, os.getpriority(0, 0))
        )


@function_probe("mean_of_gate", threshold=0.5, register=False)
def mean_of_gate(record: ActivationRecord) -> Any:
    """The mean, whatever it is."""
    return np.asarray(record.tensor, dtype=np.float64).mean()


GATES: dict[str, ProbeFactory] = {
    "gate": ProbeFactory(Gate),
    "trouble": ProbeFactory(Trouble),
    "slow": ProbeFactory(Slow),
    "slow_start": ProbeFactory(SlowStart),
    "raising": ProbeFactory(Raising),
    "talkative": ProbeFactory(Talkative),
    "quiet": ProbeFactory(Quiet),
    "mean": ProbeFactory(mean_of_gate),
}


def gate_point(
    name: str = "guard",
    probe_type: str = "gate",
    *,
    timeout_ms: int = 10_000,
    on_timeout: TimeoutAction = TimeoutAction.ABORT,
    **more: Any,
) -> ExtractionPoint:
    """A bounded inline point; its bound is long, for tests in which it must not matter."""
    policy = InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, timeout_ms=timeout_ms, on_timeout=on_timeout)
    if probe_type == "mean":
        more["probe_kind"] = ProbeKind.SINGLE_SHOT
    return make_point(name, probe_type=probe_type, intervention=policy, **more)


def guard_pid(router: Router, name: str = "guard") -> int:
    """The process of a point's guard, once it runs."""
    found: list[int] = []

    def is_running() -> bool:
        found[:] = [
            status.pid
            for status in router._supervision.get().workers()
            if name in status.points and status.state == "running" and status.pid is not None
        ]
        return bool(found)

    assert wait_until(is_running)
    return found[0]


def load_slowly(seconds: float) -> str:
    """Stands for a module that takes long to import in the guard."""
    time.sleep(seconds)
    return "loaded"


class SlowToLoad:
    """An argument that takes `seconds` to arrive in another process."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return load_slowly, (self._seconds,)


class Loaded(Gate):
    """Takes an argument."""

    def __init__(self, *, what: object) -> None:
        super().__init__()
        self._what = what


GATES["loaded"] = ProbeFactory(Loaded)


class Wordy(Gate):
    """Returns a word where a signal is due."""

    def on_activation(self, record: ActivationRecord) -> Any:
        return "abort"


class Heavy(Gate):
    """Takes `start_s` to start."""

    def __init__(self, *, start_s: float) -> None:
        super().__init__()
        self._start_s = start_s

    def on_start(self, request_ctx: RequestContext) -> None:
        time.sleep(self._start_s)
        super().on_start(request_ctx)


GATES |= {"wordy": ProbeFactory(Wordy), "heavy": ProbeFactory(Heavy)}
