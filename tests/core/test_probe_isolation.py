"""No request sees what another request's probe did to its arguments or class."""

from __future__ import annotations

import array
import dataclasses
from collections import Counter as Tally
from collections import UserDict, UserList, defaultdict, deque, namedtuple
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pytest

from undercurrent.core import Probe, ProbeFactory, ProbeResult, ProbeSignal, RequestContext, probe
from undercurrent.core.isolation import fresh_copy
from undercurrent.errors import ProbeDefinitionError
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


Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    "state",
    [
        Pair([1], 2),
        MappingProxyType({"seen": [1]}),
        UserDict({"seen": [1]}),
        UserList([[1]]),
        np.array([[1], {"a": 2}, None], dtype=object)[:2],
        {"deep": (Pair(deque([1]), 0),)},
    ],
    ids=lambda state: type(state).__name__,
)
def test_container_inside_of_what_looks_unchangeable_is_copied(state: Any) -> None:
    factory = ProbeFactory(Keeper, {"state": state})
    first, second = factory.spawn("req-1", "guard").state, factory.spawn("req-2", "guard").state

    def inner(value: Any) -> Any:
        while not isinstance(value, (list, deque)):
            value = value[0] if not hasattr(value, "values") else next(iter(value.values()))
        return value

    assert type(first) is type(state)
    inner(first).append("mine")
    assert "mine" not in inner(second)
    assert "mine" not in inner(state)


def test_read_only_array_of_objects_is_copied_as_its_objects_can_change() -> None:
    state = np.array([None], dtype=object)
    state[0] = [1]
    state.flags.writeable = False
    fresh = fresh_copy(state)

    assert fresh[0] is not state[0]
    assert not fresh.flags.writeable


def test_tuple_and_mapping_of_values_that_cannot_change_are_shared() -> None:
    for value in (Pair(1, "two"), MappingProxyType({"a": 1}), FrozenArgs({"a": 1})):
        assert fresh_copy(value) is value


def test_class_level_tuple_that_holds_a_list_is_not_shared_between_requests() -> None:
    class Stateful(Keeper):
        seen: ClassVar[Any] = ([],)

    Stateful.spawn("req-1", "guard").seen[0].append(1)

    assert Stateful.spawn("req-2", "guard").seen == ([],)


def test_private_class_level_list_is_refused_and_dunder_one_is_copied() -> None:
    with pytest.raises(ProbeDefinitionError, match="class-level list, which every request would share"):

        class Private(Keeper):
            __seen: ClassVar[Any] = []

    class Dunder(Keeper):
        __seen__: ClassVar[Any] = []

    Dunder.spawn("req-1", "guard").__seen__.append(1)

    assert Dunder.spawn("req-2", "guard").__seen__ == []


def test_python_s_own_tables_of_a_class_are_no_state() -> None:
    @dataclasses.dataclass
    class Tabled(Keeper):
        state: Any = 3

    assert set(vars(Tabled.spawn("req-1", "guard"))) == {"_request_id", "_extraction_point_name", "state"}


def test_mutable_default_of_a_constructor_is_not_shared_between_requests() -> None:
    class Defaulted(Keeper):
        def __init__(self, state: Any = [], *, other: Any = {"seen": []}) -> None:  # noqa: B006
            super().__init__(state)
            self.other = other

    first = ProbeFactory(Defaulted).spawn("req-1", "guard")
    first.state.append(1)
    first.other["seen"].append(1)
    second = ProbeFactory(Defaulted).spawn("req-2", "guard")

    assert (second.state, second.other) == ([], {"seen": []})
    assert Defaulted.spawn("req-3", "guard", state=[7]).state == [7]


def test_mutable_default_of_a_probe_function_is_not_shared_between_requests() -> None:
    @probe(register=False)
    def count(record: ActivationRecord, *, seen: Any = []) -> float:  # noqa: B006
        seen.append(1)
        return float(len(seen))

    record = ActivationRecord("req-1", "guard", 0, 0, "mlp_out", [1.0], True)
    first, second = ProbeFactory(count).spawn("req-1", "guard"), ProbeFactory(count).spawn("req-2", "guard")

    assert [first.on_activation(record).confidence for _ in range(2)] == [1.0, 2.0]
    assert second.on_activation(record).confidence == 1.0
