"""Points, probes and sinks that the router's tests share. Workers import the probes from this file."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undercurrent.core import Probe, ProbeAction, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.core.examples import MLPClassifierProbe, TrajectoryScoreProbe
from undercurrent.spec import (
    ActivationRecord,
    ExecutionMode,
    ExtractionPoint,
    ProbeKind,
    TensorType,
    parse_position,
)

if TYPE_CHECKING:
    from undercurrent.router import Router

_numbers = itertools.count()


def make_point(name: str = "guard", mode: str = "inline", **more: Any) -> ExtractionPoint:
    """A point at layer 4, `mlp_out`, with the probe `collect`."""
    fields: dict[str, Any] = {
        "layers": (4,),
        "tensor_type": TensorType.MLP_OUT,
        "position": parse_position("generated[*]"),
        "stride": None,
        "until": None,
        "probe_type": "collect",
        "probe_kind": ProbeKind.TRAJECTORY,
        "queue_depth": None,
    }
    return ExtractionPoint(name=name, execution_mode=ExecutionMode(mode), **{**fields, **more})


def make_record(request_id: str, name: str = "guard", values: Any = (1.0,), position: int = 10) -> ActivationRecord:
    """A record that fits `make_point`."""
    return ActivationRecord(request_id, name, 4, position, "mlp_out", values, True)


def fresh_id() -> str:
    """A request id no other test of this process uses."""
    return f"req-{next(_numbers)}"


def context(request_id: str, **metadata: Any) -> RequestContext:
    """A context with `metadata` as its prompt metadata."""
    return RequestContext(request_id, metadata, None)


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Looks until `condition` holds; False when it never did."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Collect(Probe):
    """Its verdict is everything it saw, its signals are FLAGs with the position."""

    probe_kind = "trajectory"

    def __init__(self, *, flags: bool = False) -> None:
        self._flags = flags
        self.seen: list[Any] = []

    def on_start(self, request_ctx: RequestContext) -> None:
        self.seen.append(("start", request_ctx.request_id))

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        self.seen.append((record.token_pos, list(record.tensor)))
        return ProbeSignal(ProbeAction.FLAG, {"position": record.token_pos}) if self._flags else None

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, self.seen, metadata={"pid": os.getpid()})


class Gated(Collect):
    """Blocks at its first record until the file `gate` exists; creates the file `inside` when it is there."""

    def __init__(self, *, gate: str, inside: str, hold_s: float = 20.0) -> None:
        super().__init__()
        self._hold_s = hold_s
        self._gate = Path(gate)
        self._inside = Path(inside)

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        if len(self.seen) == 1:
            self._inside.touch()
            wait_until(self._gate.exists, self._hold_s)
        return super().on_activation(record)


class Failing(Collect):
    """Raises `error` in the method `where`, at `on_activation` for odd positions only."""

    def __init__(self, *, where: str, error: type[BaseException] = ValueError) -> None:
        self._where = where
        self._error = error
        super().__init__()
        if where == "__init__":
            raise error("in __init__")

    def on_start(self, request_ctx: RequestContext) -> None:
        if self._where == "on_start":
            raise self._error("in on_start")
        super().on_start(request_ctx)

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        if self._where == "on_activation" and record.token_pos % 2:
            raise self._error("in on_activation")
        return super().on_activation(record)

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        if self._where == "on_end":
            raise self._error("in on_end")
        return super().on_end(request_ctx)


class Bare(Collect):
    """Returns something from `on_end` that is no `ProbeResult`."""

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        return {"count": len(self.seen) - 1}  # type: ignore[return-value]


class ListSink:
    """Keeps what it is given, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, Any]] = []
        self.threads: set[int] = set()

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        self.threads.add(threading.get_ident())
        self.events.append(("signal", request_id, extraction_point_name, signal))

    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
        self.threads.add(threading.get_ident())
        self.events.append(("result", request_id, extraction_point_name, result))


class Gate:
    """Holds the probe `gated` inside its first record until `open` is called."""

    def __init__(self, folder: Path) -> None:
        self._gate = folder / "gate"
        self._inside = folder / "inside"
        self.args = {"gate": str(self._gate), "inside": str(self._inside)}

    def is_entered(self) -> bool:
        return wait_until(self._inside.exists)

    def open(self) -> None:
        self._gate.touch()


REGISTRY = {
    "collect": ProbeFactory(Collect),
    "flagging": ProbeFactory(Collect, {"flags": True}),
    "gated": ProbeFactory(Gated),
    "failing": ProbeFactory(Failing),
    "bare": ProbeFactory(Bare),
    "running_mean": ProbeFactory(TrajectoryScoreProbe, {"threshold": 0.5}),
    "single": ProbeFactory(MLPClassifierProbe),
}


def register_gated(router: Router, gate: Gate, **more: Any) -> str:
    request_id = fresh_id()
    point = make_point("watch", "async", probe_type="gated", probe_args=gate.args, batch=1, **more)
    router.register_request(request_id, [point], context(request_id))
    router.route(make_record(request_id, "watch", position=0))
    assert gate.is_entered()
    return request_id


def positions(result: ProbeResult) -> list[int]:
    return [position for position, _ in result.verdict[1:]]
