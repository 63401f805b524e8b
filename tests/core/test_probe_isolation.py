"""No request sees what another request's probe did to its arguments or class."""

from __future__ import annotations

import array
from collections import Counter as Tally
from collections import defaultdict, deque
from typing import Any, ClassVar

import numpy as np
import pytest

from undercurrent.core import Probe, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.core.isolation import fresh_copy
from undercurrent.spec import ActivationRecord, FrozenArgs


class Keeper(Probe):
    """Keeps what it is given, and changes it."""

    probe_kind = "trajectory"

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def on_start(self, request_ctx: RequestContext) -> None: ...

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        return None

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, self.state)


@pytest.mark.parametrize(
    "state",
    [
        [1, [2]],
        {"a": {"b": [1]}},
        {1, 2},
        bytearray(b"ab"),
        deque([1, [2]], maxlen=4),
        array.array("d", [1.0]),
        defaultdict(list, {"a": [1]}),
        Tally("aab"),
        ([1], 2),
        FrozenArgs({"a": [1]}),
    ],
)
def test_every_probe_gets_containers_of_its_own(state: Any) -> None:
    factory = ProbeFactory(Keeper, {"state": state})
    first, second = factory.spawn("req-1", "guard").state, factory.spawn("req-2", "guard").state

    assert first == second == state
    assert type(first) is type(state)
    assert first is not second
    assert first is not state


def test_nested_container_is_copied_too() -> None:
    factory = ProbeFactory(Keeper, {"state": {"seen": [1]}})
    factory.spawn("req-1", "guard").state["seen"].append(2)

    assert factory.spawn("req-2", "guard").state == {"seen": [1]}


def test_arguments_of_a_point_are_copied_as_well() -> None:
    point_args = FrozenArgs({"state": [1]})
    ProbeFactory(Keeper).spawn("req-1", "guard", **point_args).state.append(2)

    assert point_args == {"state": [1]}


def test_writable_array_is_copied_and_read_only_array_is_shared() -> None:
    weights = np.ones(4)
    factory = ProbeFactory(Keeper, {"state": weights})
    factory.spawn("req-1", "guard").state[0] = 5.0
    assert weights[0] == 1.0

    weights.flags.writeable = False
    assert factory.spawn("req-2", "guard").state is weights


def test_object_of_another_class_is_shared() -> None:
    model = object()

    assert ProbeFactory(Keeper, {"state": [model]}).spawn("req-1", "guard").state[0] is model


def test_container_that_holds_itself_keeps_its_shape() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    fresh = fresh_copy(loop)

    assert fresh is not loop
    assert fresh[1] is fresh


def test_value_that_cannot_change_is_not_copied() -> None:
    value = (1, "two", (3.0, None))

    assert fresh_copy(value) is value


def test_state_of_a_mixin_is_not_shared_between_requests() -> None:
    class Mixin:
        seen: ClassVar[list[int]] = []

    class Mixed(Mixin, Keeper):
        pass

    Mixed.spawn("req-1", "guard").seen.append(1)

    assert Mixed.spawn("req-2", "guard").seen == []


def test_class_level_deque_and_array_are_not_shared_between_requests() -> None:
    class Stateful(Keeper):
        recent: ClassVar[Any] = deque([0])
        total: ClassVar[Any] = np.zeros(2)

    first = Stateful.spawn("req-1", "guard")
    first.recent.append(1)
    first.total += 1
    second = Stateful.spawn("req-2", "guard")

    assert list(second.recent) == [0]
    assert second.total.tolist() == [0.0, 0.0]


def test_subclass_replaces_the_class_level_state_it_inherits() -> None:
    class Stateful(Keeper):
        recent: ClassVar[Any] = deque([0])

    class Stateless(Stateful):
        recent = ()

    assert Stateless.spawn("req-1", "guard").recent == ()
