"""Engines and worker processes together: an async probe of another process sees what an inline one sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_points import make_point
from router_points import REGISTRY, Gate

from undercurrent.core import ActivationRecord, Probe, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.engines import SyntheticEngine
from undercurrent.router import Router
from undercurrent.spec import ExecutionMode, ExtractionPoint


class Sums(Probe):
    """Its verdict is (layer, position, sum of the tensor) of each record."""

    probe_kind = "trajectory"

    def on_start(self, request_ctx: RequestContext) -> None:
        self.seen: list[tuple[int, int, float]] = []

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        self.seen.append((record.layer, record.token_pos, float(record.tensor.sum())))
        return None

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, self.seen)


_POINTS = [
    make_point("inline", layers=(0, 2), probe_type="sums"),
    make_point("async", layers=(0, 2), probe_type="sums", execution_mode=ExecutionMode.ASYNC, queue_depth=64),
    make_point("other", layers=(0,), probe_type="sums", execution_mode=ExecutionMode.ASYNC, queue_depth=64),
]


def _check(engine: Any, prompts: list[str], worker_mode: str) -> None:
    names = [f"r{index}" for index in range(len(prompts))]
    with Router({"sums": ProbeFactory(Sums)}, worker_pool_size=2, worker_mode=worker_mode) as router:
        for name in names:
            engine.register_extraction(name, _POINTS)
        generations = engine.generate_batch(names, prompts, {"max_new_tokens": 6}, router)
    for generation in generations:
        inline = generation.results["inline"].verdict
        for name, layers in (("async", (0, 2)), ("other", (0,))):
            result = generation.results[name]
            expected = [row for row in inline if row[0] in layers]
            assert result.metadata["coverage"]["complete"], result.metadata
            assert [tuple(row[:2]) for row in result.verdict] == [row[:2] for row in expected]
            np.testing.assert_allclose([row[2] for row in result.verdict], [row[2] for row in expected], rtol=1e-6)


@pytest.mark.parametrize("worker_mode", ["process", "thread"])
def test_async_probes_of_the_synthetic_engine_see_every_record(worker_mode: str) -> None:
    _check(SyntheticEngine(layer_count=3, hidden_size=32), ["a prompt", "b"], worker_mode)


@pytest.mark.timeout(180)
def test_async_probes_of_a_transformers_model_see_every_record(load: Callable[..., Any]) -> None:
    _check(load(), ["a prompt", "b"], "process")


def gated_point(gate: Gate) -> ExtractionPoint:
    """An async point whose probe stands in its first record until the gate is opened."""
    args = {**gate.args, "hold_s": 600.0}
    is_async = {"execution_mode": ExecutionMode.ASYNC, "probe_timeout_s": 600.0}
    return make_point("watch", layers=(0,), probe_type="gated", probe_args=args, **is_async)


def test_ctrl_c_in_a_generation_waits_for_no_verdict_and_ends_its_request(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    engine = SyntheticEngine(layer_count=2, hidden_size=8)
    engine.register_extraction("r", [gated_point(gate)])
    ended: list[str] = []
    told: list[object] = []

    def interrupt(*text: object) -> None:
        told.append(text)
        if len(told) == 3:  # the first token is fed back by now
            assert gate.is_entered()
            raise KeyboardInterrupt

    with Router(REGISTRY, drain_timeout=600.0) as router:
        router.on_request_end(lambda request_id, _results: ended.append(request_id))
        with pytest.raises(KeyboardInterrupt):
            engine.generate_batch(["r"], ["abc"], {"max_new_tokens": 6}, router, on_text=interrupt)
        assert ended == ["r"]
        gate.open()


def leave_by_ctrl_c(engine: Any, router: Router, gate: Gate) -> None:
    with engine.stream("r", "abc", {"max_new_tokens": 6, "min_new_tokens": 6}, router) as pieces:
        count = 0
        while count < 6:
            count += len(next(pieces).token_ids)
        assert gate.is_entered()
        raise KeyboardInterrupt


@pytest.mark.timeout(180)
def test_ctrl_c_in_a_stream_whose_text_is_over_waits_for_no_verdict(load: Callable[..., Any], tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    engine = load()
    engine.register_extraction("r", [gated_point(gate)])
    with Router(REGISTRY, drain_timeout=600.0) as router:
        with pytest.raises(KeyboardInterrupt):
            leave_by_ctrl_c(engine, router, gate)
        gate.open()
        assert router.flush(60)
