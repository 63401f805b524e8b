"""The extension against the plain-Python ring: any sequence of calls, every policy, consumer deaths included."""

from __future__ import annotations

import pytest
import ring_model
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ipc_rig import attach, headers_of, payloads_of

from undercurrent.ipc import Batch, ConsumerLane, MemoryBudget, ProducerLane, layout

SIZES = st.sampled_from([0, 1, 63, 128, 129, 500, 1535, 1536, 3000, 8192, 20_000])
STARTS = st.sampled_from([None, (1 << 24) - 2, (1 << 36) - 3, (5 << 36) - 1, 1 << 60])


class RingMachine(RuleBasedStateMachine):
    """One ring with both ends; the policy is set by the subclasses."""

    policy = layout.DROP_OLDEST

    @initialize(depth=st.sampled_from([1, 2, 3, 5, 16, 20]), start=STARTS)
    def open(self, depth: int, start: int | None) -> None:
        self.lane = ProducerLane(MemoryBudget(64 << 20), ring_capacity=64)
        self.ring = self.lane.open_ring(queue_depth=depth, policy=self.policy, generation=3, start=start)
        self.model = ring_model.RingModel(depth, self.policy, self.ring.start)
        self.consumer = ConsumerLane(self.lane.control_fd, self.lane.payload_fd)
        self.reader = attach(self.consumer, self.ring)
        self.batches: list[Batch] = []
        self.dead: list[object] = []
        self.count = 0

    @rule(size=SIZES)
    def publish(self, size: int) -> None:
        payload = (self.count.to_bytes(8, "little") * (size // 8 + 1))[:size]
        self.count += 1
        assert self.ring.publish(payload, 5, 1, self.count, 0, 0.25) == self.model.publish(payload)

    @rule(times=st.integers(1, 40))
    def publish_many(self, times: int) -> None:
        for _ in range(times):
            self.publish(64)

    @precondition(lambda self: self.model.hand_room > 0)
    @rule(limit=st.integers(1, 20))
    def take(self, limit: int) -> None:
        expected = self.model.take(limit)
        batch = self.reader.take(limit)
        if not expected:
            assert batch is None
            assert self.reader.at_end == self.model.at_end
            return
        assert batch is not None
        self.batches.append(batch)
        assert [header["seq"] for header in headers_of(batch)] == [record.position for record in expected]
        assert payloads_of(batch) == [record.payload for record in expected]

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.batches) - 1))
        batch = self.batches.pop(index)
        # What was dropped around it in the meantime has not touched what it holds.
        assert payloads_of(batch) == [record.payload for record in self.model.hands[index]]
        self.reader.finish(batch)
        self.model.finish(index)

    @rule()
    def refuse(self) -> None:
        self.ring.count_refused("unsupported")
        self.model.refuse()

    @rule()
    def kill_consumer(self) -> None:
        self.consumer.close()
        self.dead += self.batches
        self.batches = []
        self.lane.recover_consumer()
        self.model.lose_consumer()
        self.consumer = ConsumerLane(self.lane.control_fd, self.lane.payload_fd)
        self.reader = attach(self.consumer, self.ring)

    @rule()
    def close_ring(self) -> None:
        self.ring.close()
        self.model.is_closed = True

    @invariant()
    def counters_agree(self) -> None:
        if not hasattr(self, "ring"):
            return
        self.model.check_identity()
        for seen in (self.ring.statistics(), self.reader.statistics()):
            assert seen.balanced
            assert seen.produced == seen.consumed + seen.dropped + seen.waiting + seen.in_hand + seen.lost
            assert (seen.produced, seen.consumed, seen.dropped_oldest, seen.dropped_newest, seen.waiting) == (
                self.model.produced,
                self.model.consumed,
                self.model.dropped_oldest,
                self.model.dropped_newest,
                len(self.model.waiting),
            )
            assert (seen.in_hand, seen.lost) == (self.model.in_hand, self.model.lost)

    def teardown(self) -> None:
        if not hasattr(self, "ring"):
            return
        self.consumer.close()
        self.lane.recover_consumer()
        self.ring.release()
        issued = self.lane.statistics().slots_issued
        assert issued == sum(layout.class_hand_count(index) for index in self.lane._hands), "slots leaked"
        self.lane.close()


@pytest.mark.parametrize("policy", [layout.DROP_OLDEST, layout.DROP_NEWEST, layout.BLOCK])
def test_any_sequence_of_calls_answers_like_the_model(policy: int) -> None:
    machine = type("PolicyMachine", (RingMachine,), {"policy": policy})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
