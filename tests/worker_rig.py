"""What the supervisor's tests share: plans, records, and what they read out of results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from undercurrent.core import Probe, ProbeFactory, RequestContext
from undercurrent.spec import (
    ActivationRecord,
    ExecutionMode,
    ExtractionPoint,
    OverflowPolicy,
    ProbeKind,
    TensorType,
    parse_position,
)
from undercurrent.workers import AsyncBinding, BindingPlan

WAIT_S = 30.0


def deadline() -> float:
    return time.monotonic() + WAIT_S


def point(name: str = "monitor", **more: Any) -> ExtractionPoint:
    return ExtractionPoint(
        name=name,
        layers=(4,),
        tensor_type=TensorType.MLP_OUT,
        position=parse_position("generated[*]"),
        stride=None,
        until=None,
        probe_type="p",
        probe_kind=ProbeKind.TRAJECTORY,
        execution_mode=ExecutionMode.ASYNC,
        queue_depth=None,
        **more,
    )


def plan(
    probe_cls: type[Probe],
    request_id: str = "r",
    *,
    name: str = "monitor",
    depth: int = 64,
    policy: OverflowPolicy = OverflowPolicy.BLOCK,
    probe_kwargs: dict[str, Any] | None = None,
    **more: Any,
) -> BindingPlan:
    return BindingPlan(
        request_id,
        point(name),
        ProbeFactory(probe_cls, probe_kwargs or {}),
        RequestContext(request_id, {"prompt": "hello", "tags": ("a", 1)}, None),
        depth,
        policy,
        **more,
    )


def record(position: int, tensor: Any, request_id: str = "r", name: str = "monitor") -> ActivationRecord:
    return ActivationRecord(request_id, name, 4, position, "mlp_out", tensor, True)


def feed(binding: AsyncBinding, count: int, first: int = 0) -> None:
    for position in range(first, first + count):
        binding.accept(record(position, np.full(8, position, dtype=np.float32)))


def finish(binding: AsyncBinding) -> Any:
    binding.end()
    return binding.wait_result(deadline())


def coverage(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = result.metadata["coverage"]
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    until = deadline()
    while not condition():
        assert time.monotonic() < until, "the condition did not come true before the deadline"
        threading.Event().wait(0.005)
