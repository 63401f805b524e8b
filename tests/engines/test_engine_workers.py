"""Engines and worker processes together: an async probe of another process sees what an inline one sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_points import make_point

from undercurrent.core import ActivationRecord, Probe, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.engines import SyntheticEngine
from undercurrent.router import Router
from undercurrent.spec import ExecutionMode


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
