"""What a lane says to the worker that follows a dead one."""

from __future__ import annotations

import worker_probes as probes
from worker_rig import plan

from undercurrent.ipc import MemoryBudget
from undercurrent.workers import messages as m
from undercurrent.workers.channel import Channel
from undercurrent.workers.lane import Lane, Opening
from undercurrent.workers.transfer import pack_point


def test_a_binding_dropped_while_no_worker_was_there_is_dropped_by_the_next() -> None:
    lane = Lane("uc-test", MemoryBudget(1 << 28), lambda: None, lambda lane: None)
    try:
        plans = [plan(probes.Recorder, request_id) for request_id in ("dropped", "kept")]
        openings = [
            Opening(number, each, pack_point(each.factory, each.point), 1, b"") for number, each in enumerate(plans, 1)
        ]
        dropped, kept = lane.open_bindings(openings)
        assert lane.recover(culprit=0, reason="worker_died", neighbour_reason="worker_died") == []
        dropped.abandon()
        lane.renew()
        said = Channel(lane.worker_socket, m.worker_decoder).receive()
        assert [frame.binding_id for frame in said if isinstance(frame, m.DropBinding)] == [dropped.binding_id]
        assert [frame.binding_id for frame in said if isinstance(frame, m.OpenBinding)] == [kept.binding_id]
    finally:
        lane.close()
