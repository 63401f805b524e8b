"""Each documented call of `undercurrent.core` 0.1.0, as its users wrote it. The file passes on 0.1.0 too."""

from __future__ import annotations

from typing import Any

import pytest
from published_pieces import Counting, make_record

import undercurrent
from undercurrent import (
    ActivationRecord,
    Probe,
    ProbeAction,
    ProbeFactory,
    ProbeResult,
    ProbeSignal,
    ProbingError,
    RequestContext,
    probe,
    register_probe,
)
from undercurrent.core import (
    FunctionProbe,
    ProbeRegistry,
    default_registry,
    get_probe_factory,
    list_probes,
    unregister_probe,
)
from undercurrent.core.examples import MLPClassifierProbe, TrajectoryScoreProbe


def test_probe_is_spawned_and_knows_its_binding() -> None:
    spawned = Counting.spawn("req-1", "guard", every=3)
    assert (spawned.request_id, spawned.extraction_point_name, spawned.every) == ("req-1", "guard", 3)
    with pytest.raises(RuntimeError):
        _ = Counting().request_id
    for arguments in (("", "guard"), ("req-1", "")):
        with pytest.raises(ValueError):
            Counting.spawn(*arguments)
    with pytest.raises(TypeError):
        Probe.spawn("req-1", "guard")


def test_factory_merges_arguments_and_the_later_win() -> None:
    factory = ProbeFactory(Counting, {"every": 3})
    assert factory.spawn("req-1", "guard").every == 3
    assert factory.spawn("req-1", "guard", every=5).every == 5
    assert ProbeFactory(Counting).probe_kwargs == {}
    with pytest.raises(AttributeError):
        factory.probe_cls = Counting  # type: ignore[misc]


def test_signals_results_and_contexts_have_their_defaults() -> None:
    signal = ProbeSignal()
    assert (signal.action, signal.metadata, signal.confidence) == (ProbeAction.CONTINUE, {}, None)
    assert signal.timestamp > 0
    assert ProbeSignal("abort").action == ProbeAction.ABORT
    result = ProbeResult("req-1", "guard", 0.5)
    assert (result.signal_history, result.metadata) == ([], {})
    context = RequestContext("req-1", {"model": "m"}, None)
    assert context.prompt_metadata == {"model": "m"}
    with pytest.raises(AttributeError):
        context.request_id = "other"  # type: ignore[misc]


def test_function_becomes_a_probe() -> None:
    @probe("loud", threshold=0.5, action="flag", register=False)
    def loud(record: ActivationRecord, *, gain: float = 1.0) -> float:
        return max(record.tensor) * gain

    assert issubclass(loud, FunctionProbe)
    assert (loud.probe_name, loud.default_threshold, loud.default_action) == ("loud", 0.5, ProbeAction.FLAG)
    assert loud.probe_kind == "single_shot"
    assert loud.fn(make_record([0.25])) == 0.25
    spawned = loud.spawn("req-1", "guard", gain=2.0)
    context = RequestContext("req-1", {}, None)
    spawned.on_start(context)
    signals = [spawned.on_activation(make_record([value])) for value in (0.1, 0.3)]
    assert [signal.action for signal in signals] == [ProbeAction.CONTINUE, ProbeAction.FLAG]
    assert signals[1].metadata == {"score": 0.6, "probe": "loud"}
    result = spawned.on_end(context)
    assert result.verdict == {"flagged": True, "max_score": 0.6, "n": 2}
    assert len(result.signal_history) == 2
    assert loud.spawn("req-1", "guard", threshold=0.1, action="abort").on_activation is not None
    with pytest.raises(TypeError):
        loud.spawn("req-1", "guard", volume=1)


def test_function_answers_are_mapped_to_signals() -> None:
    answers: list[Any] = [None, True, False, 0.25, ProbeSignal(ProbeAction.FLAG)]

    @probe(threshold=0.5, register=False)
    def saying(record: ActivationRecord) -> Any:
        return answers[record.tensor[0]]

    spawned = saying.spawn("req-1", "guard")
    spawned.on_start(RequestContext("req-1", {}, None))
    none, true, false, number, whole = (spawned.on_activation(make_record([index])) for index in range(5))
    assert none is None
    assert (true.action, true.confidence) == (ProbeAction.ABORT, 1.0)
    assert (false.action, false.confidence, false.metadata["score"]) == (ProbeAction.CONTINUE, None, None)
    assert (number.action, number.metadata["score"]) == (ProbeAction.CONTINUE, 0.25)
    assert whole.action == ProbeAction.FLAG
    answers[0] = "loud"
    with pytest.raises(TypeError):
        spawned.on_activation(make_record([0]))


def test_bare_decorator_registers_under_the_name_of_the_function() -> None:
    @probe
    def published_bare_probe(record: ActivationRecord) -> float:
        return 0.0

    try:
        assert get_probe_factory("published_bare_probe").probe_cls is published_bare_probe
        assert "published_bare_probe" in list_probes()
        assert "published_bare_probe" in default_registry
    finally:
        unregister_probe("published_bare_probe")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"threshold": True}, TypeError),
        ({"threshold": "high"}, TypeError),
        ({"action": "continue"}, ValueError),
        ({"action": "stop"}, ValueError),
        ({"name": ""}, ValueError),
    ],
)
def test_decorator_refuses_bad_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    arguments = dict(arguments)
    name = arguments.pop("name", "named")
    with pytest.raises(error) as refused:
        probe(name, register=False, **arguments)(lambda record: 0.0)
    assert isinstance(refused.value, ProbingError)


def test_decorator_refuses_functions_of_another_form() -> None:
    def no_record() -> float: ...  # type: ignore[empty-body]
    def two(record: Any, other: Any) -> float: ...  # type: ignore[empty-body]
    def many(*records: Any) -> float: ...  # type: ignore[empty-body]
    def own_threshold(record: Any, *, threshold: float) -> float: ...  # type: ignore[empty-body]

    for function in (no_record, two, many, own_threshold):
        with pytest.raises(TypeError):
            probe(register=False)(function)


def test_registry_takes_gives_and_refuses() -> None:
    registry = ProbeRegistry(load_entry_points=False)
    stored = registry.register("counting", Counting, every=4)
    assert isinstance(stored, ProbeFactory)
    assert registry.get("counting").spawn("req-1", "guard").every == 4
    assert ("counting" in registry, "other" in registry) == (True, False)
    assert registry.register("counting", Counting) is not None

    @registry.register("second")
    class Second(Counting):
        pass

    assert registry.get("second").probe_cls is Second
    with pytest.raises(ValueError):
        registry.register("second", Counting)
    registry.register("second", Counting, override=True)
    for bad in ("", None):
        with pytest.raises(ValueError):
            registry.register(bad, Counting)  # type: ignore[call-overload]
    for unusable in (Probe, dict):
        with pytest.raises(TypeError):
            registry.register("third", unusable)
    registry.unregister("second")
    with pytest.raises(undercurrent.ProbeNotFoundError) as missing:
        registry.get("countin")
    assert (missing.value.name, "counting" in missing.value.known) == ("countin", True)
    assert "'counting'" in missing.value.message
    assert isinstance(missing.value, KeyError)
    assert register_probe("published_counting", Counting).probe_cls is Counting
    unregister_probe("published_counting")


@pytest.mark.parametrize("value", [[], {}, set(), bytearray()])
def test_class_with_shared_mutable_state_is_refused_when_it_is_defined(value: object) -> None:
    with pytest.raises(TypeError, match="shared"):
        type("Sharing", (Counting,), {"shared": value})
    with pytest.raises(TypeError):
        type("Kindless", (Counting,), {"probe_kind": "sometimes"})


def test_example_probes_do_what_they_did() -> None:
    context = RequestContext("req-1", {}, None)
    mean = TrajectoryScoreProbe.spawn("req-1", "guard", threshold=0.5)
    mean.on_start(context)
    signals = [mean.on_activation(make_record(values)) for values in ([0.1, 0.2], [0.4, 0.6], [0.9, 1.0], [0.9, 0.9])]
    assert [s.action for s in signals if s is not None].count(ProbeAction.ABORT) == 1
    verdict = mean.on_end(context).verdict
    assert verdict["count"] == 4
    assert verdict["aborted"]
    assert verdict["final_mean"] == pytest.approx(mean.running_mean)
    mean.check_intervention()
    classifier = MLPClassifierProbe.spawn("req-1", "gate", num_classes=3)
    classifier.on_start(context)
    classifier.on_activation(make_record([1.0, 2.0]))
    assert {"predicted_class", "logits"} <= set(classifier.on_end(context).verdict)
