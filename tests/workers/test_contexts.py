"""A request's context comes to its probes as it was given, on its short form and on its long one."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
import worker_probes as probes
from worker_rig import deadline, plan

from undercurrent.core import ProbeResult, RequestContext
from undercurrent.workers import Supervisor
from undercurrent.workers.contexts import decode_context, encode_context


class TellsItsContext(probes.Recorder):
    """Gives the request id that its context names."""

    def on_end(self, request_ctx: Any) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, request_ctx.request_id)


@pytest.mark.parametrize(
    ("metadata", "config"),
    [
        *itertools.product(
            [{}, {"model": "m", "prompt_len": 3, "bytes": b"\xff"}, {"tags": ("a", 1)}, {1: "one"}, {"n": 2**80}],
            [None, {"layer": 4}],
        ),
        ({"text": "\ud800"}, None),
        (None, None),
    ],
)
@pytest.mark.parametrize("named", ["r", "another"])
def test_a_context_comes_back_equal(metadata: Any, config: Any, named: str) -> None:
    context = RequestContext(named, metadata, config)
    assert decode_context("r", encode_context("r", context), pickle_allowed=True) == context


def test_a_context_that_two_requests_share_names_the_same_request_to_both() -> None:
    first = plan(TellsItsContext, "r0")
    second = msgspec.structs.replace(first, request_id="r1")
    supervisor = Supervisor(worker_pool_size=1, worker_mode="thread")
    try:
        bindings = supervisor.open_bindings([first, second])
        for binding in bindings:
            binding.end()
        assert [binding.wait_result(deadline()).verdict for binding in bindings] == ["r0", "r0"]
    finally:
        supervisor.close(wait=True, deadline=deadline())
