"""A probe class is checked when it is written, and an instance knows what it was spawned for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from undercurrent.core import ActivationBatch, Probe, ProbeFactory, ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import ProbeDefinitionError, ProbingRuntimeError, ProbingTypeError, ProbingValueError
from undercurrent.spec import ActivationRecord, ProbeKind


class Counter(Probe):
    """Counts records; the smallest useful probe."""

    probe_kind = "trajectory"

    def __init__(self, first: int = 0) -> None:
        self.count = first

    def on_start(self, request_ctx: RequestContext) -> None:
        self.prompt = request_ctx.prompt_metadata

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        self.count += 1
        return ProbeSignal(metadata={"count": self.count})

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, self.count)


def make_records(count: int) -> list[ActivationRecord]:
    return [ActivationRecord("req-1", "guard", 4, place, "mlp_out", [0.5], True) for place in range(count)]


def test_spawned_probe_knows_its_request_and_point() -> None:
    probe = Counter.spawn("req-1", "guard", first=3)

    assert (probe.request_id, probe.extraction_point_name, probe.count) == ("req-1", "guard", 3)


def test_probe_can_read_its_identity_while_it_is_constructed() -> None:
    class Named(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.title = f"{self.request_id}/{self.extraction_point_name}"

    assert Named.spawn("req-1", "guard").title == "req-1/guard"


def test_probe_that_was_not_spawned_belongs_to_no_request() -> None:
    with pytest.raises(ProbingRuntimeError, match=r"Counter\.spawn"):
        _ = Counter().request_id


def test_probe_life_from_start_to_result() -> None:
    context = RequestContext("req-1", {"prompt_len": 3}, None)
    probe = Counter.spawn("req-1", "guard")
    probe.on_start(context)
    for record in make_records(2):
        probe.on_activation(record)

    assert probe.prompt == {"prompt_len": 3}
    assert probe.on_end(context) == ProbeResult("req-1", "guard", 2)


def test_batch_goes_record_by_record_where_a_class_says_nothing_else() -> None:
    probe = Counter.spawn("req-1", "guard")
    signals = probe.on_activations(ActivationBatch.from_records(make_records(3)))

    assert [signal.metadata["count"] for signal in signals] == [1, 2, 3]


def test_probe_takes_copies_unless_its_class_reads_in_place() -> None:
    assert Counter.reads_in_place is False


@pytest.mark.parametrize(("request_id", "name"), [("", "guard"), ("req-1", "")])
def test_empty_identity_is_refused(request_id: str, name: str) -> None:
    with pytest.raises(ProbingValueError, match="must be a non-empty string"):
        Counter.spawn(request_id, name)


def test_probe_itself_cannot_be_spawned() -> None:
    with pytest.raises(ProbingTypeError, match="abstract"):
        Probe.spawn("req-1", "guard")


def test_class_that_leaves_methods_out_cannot_be_spawned() -> None:
    class Unfinished(Probe):
        probe_kind = "trajectory"

    with pytest.raises(TypeError, match="on_activation"):
        Unfinished.spawn("req-1", "guard")


def test_constructor_that_refuses_an_argument_says_so_itself() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'lst'"):
        Counter.spawn("req-1", "guard", lst=3)


def test_kind_may_be_a_word_or_a_member() -> None:
    class Single(Counter):
        probe_kind = ProbeKind.SINGLE_SHOT

    assert Single.spawn("req-1", "guard").probe_kind is ProbeKind.SINGLE_SHOT


def define_wrong_kind() -> object:
    return type("Wrong", (Counter,), {"probe_kind": "trajectori"})


def define_no_kind() -> object:
    return type("Wrong", (Counter,), {"probe_kind": None})


@pytest.mark.parametrize(
    ("define", "message"),
    [(define_wrong_kind, "did you mean 'trajectory'"), (define_no_kind, "got None")],
)
def test_wrong_kind_is_refused_when_the_class_is_written(define: Callable[[], object], message: str) -> None:
    with pytest.raises(ProbeDefinitionError, match=message):
        define()


def test_class_without_a_kind_cannot_be_spawned() -> None:
    class Kindless(Probe):
        def on_start(self, request_ctx: RequestContext) -> None: ...

        def on_activation(self, record: ActivationRecord) -> ProbeSignal | None: ...

        def on_end(self, request_ctx: RequestContext) -> ProbeResult:
            return ProbeResult(self.request_id, self.extraction_point_name, None)

    with pytest.raises(ProbeDefinitionError, match="probe_kind"):
        Kindless.spawn("req-1", "guard")


@pytest.mark.parametrize("state", [[], {}, set(), bytearray(), [1]])
def test_class_level_container_is_refused(state: object) -> None:
    with pytest.raises(ProbeDefinitionError, match=r"`Leaky\.seen` is a class-level"):
        type("Leaky", (Counter,), {"seen": state})


def test_private_looking_container_is_refused_too() -> None:
    with pytest.raises(ProbeDefinitionError, match="class-level list"):
        type("Leaky", (Counter,), {"__seen": []})


def test_frozen_dataclass_may_be_a_probe() -> None:
    @dataclass(frozen=True)
    class Fixed(Probe):
        probe_kind = "single_shot"
        threshold: float = 0.5

        def on_start(self, request_ctx: RequestContext) -> None: ...

        def on_activation(self, record: ActivationRecord) -> ProbeSignal | None: ...

        def on_end(self, request_ctx: RequestContext) -> ProbeResult:
            return ProbeResult(self.request_id, self.extraction_point_name, self.threshold)

    probe = Fixed.spawn("req-1", "guard", threshold=0.9)

    assert (probe.request_id, probe.threshold) == ("req-1", 0.9)


def test_class_with_its_own_way_of_being_made_is_respected() -> None:
    class Chosen(Counter):
        def __new__(cls, first: int = 0) -> Any:
            probe = super().__new__(cls)
            probe.chosen = first * 2
            return probe

    assert Chosen.spawn("req-1", "guard", first=4).chosen == 8


def test_factory_arguments_yield_to_those_of_the_call() -> None:
    factory = ProbeFactory(Counter, {"first": 1})

    assert factory.spawn("req-1", "guard").count == 1
    assert factory.spawn("req-1", "guard", first=2).count == 2
