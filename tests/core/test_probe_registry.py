"""The registry finds probes by name: those registered here, and those that installed packages publish."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from undercurrent.core import (
    Probe,
    ProbeFactory,
    ProbeRegistry,
    default_registry,
    get_probe_factory,
    list_probes,
    register_probe,
    unregister_probe,
)
from undercurrent.core.examples import MLPClassifierProbe, TrajectoryScoreProbe
from undercurrent.errors import ProbeDefinitionError, ProbeNotFoundError, ProbingTypeError, ProbingValueError


def make_registry() -> ProbeRegistry:
    return ProbeRegistry(load_entry_points=False)


def test_registered_probe_is_found_with_its_arguments() -> None:
    registry = make_registry()
    stored = registry.register("mean", TrajectoryScoreProbe, threshold=0.5)

    assert registry.get("mean") is stored
    assert stored == ProbeFactory(TrajectoryScoreProbe, {"threshold": 0.5})
    assert "mean" in registry
    assert len(registry) == 1


def test_decorator_returns_the_class() -> None:
    registry = make_registry()

    assert registry.register("mean", threshold=0.9)(TrajectoryScoreProbe) is TrajectoryScoreProbe
    assert registry.get("mean").probe_kwargs == {"threshold": 0.9}


def test_factory_is_registered_with_further_arguments() -> None:
    registry = make_registry()
    registry.register("mean", ProbeFactory(TrajectoryScoreProbe, {"threshold": 0.1}), threshold=0.2)

    assert registry.get("mean").probe_kwargs == {"threshold": 0.2}


def test_names_are_listed_in_order() -> None:
    registry = make_registry()
    registry.register("b", TrajectoryScoreProbe)
    registry.register("a", MLPClassifierProbe)

    assert registry.list() == ["a", "b"]
    assert repr(registry) == "ProbeRegistry(['a', 'b'])"


def test_taken_name_is_refused_unless_it_is_to_be_replaced() -> None:
    registry = make_registry()
    registry.register("mean", TrajectoryScoreProbe)
    with pytest.raises(ProbingValueError, match="'mean' is taken by TrajectoryScoreProbe"):
        registry.register("mean", MLPClassifierProbe)

    registry.register("mean", MLPClassifierProbe, override=True)
    assert registry.get("mean").probe_cls is MLPClassifierProbe


def test_class_defined_again_replaces_its_earlier_self() -> None:
    registry = make_registry()

    def run_cell() -> type[Probe]:
        made: type[Probe] = type("Cell", (TrajectoryScoreProbe,), {"__module__": "__main__", "__qualname__": "Cell"})
        registry.register("cell", made)
        return made

    run_cell()
    again = run_cell()

    assert registry.get("cell").probe_cls is again


@pytest.mark.parametrize("name", ["", 3, None])
def test_name_must_be_a_string_that_says_something(name: object) -> None:
    with pytest.raises(ProbingValueError, match="non-empty string"):
        make_registry().register(name, TrajectoryScoreProbe)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("probe", "message"),
    [(3, "must be a subclass"), (object, "must be a subclass"), (Probe, "probe_kind")],
)
def test_what_is_no_probe_is_refused(probe: object, message: str) -> None:
    with pytest.raises(ProbeDefinitionError, match=message):
        make_registry().register("wrong", probe)  # type: ignore[arg-type]


def test_abstract_probe_is_refused_with_what_it_lacks() -> None:
    class Unfinished(Probe):
        probe_kind = "trajectory"

    with pytest.raises(ProbeDefinitionError, match="implement on_activation, on_end, on_start"):
        make_registry().register("wrong", Unfinished)


def test_unknown_name_is_answered_with_what_is_known_and_near() -> None:
    registry = make_registry()
    registry.register("running_mean", TrajectoryScoreProbe)
    with pytest.raises(ProbeNotFoundError, match="did you mean 'running_mean'") as caught:
        registry.get("runing_mean")

    assert caught.value.known == ["running_mean"]


def test_name_that_is_no_string_is_a_type_error() -> None:
    with pytest.raises(ProbingTypeError, match="must be a string"):
        make_registry().get(3)  # type: ignore[arg-type]
    assert 3 not in make_registry()


def test_unregistered_name_is_unknown() -> None:
    registry = make_registry()
    registry.register("mean", TrajectoryScoreProbe)
    registry.unregister("mean")

    with pytest.raises(ProbeNotFoundError):
        registry.get("mean")
    with pytest.raises(ProbeNotFoundError):
        registry.unregister("mean")


def test_module_functions_speak_to_the_default_registry() -> None:
    register_probe("test-default-registry", TrajectoryScoreProbe, threshold=0.3)
    try:
        assert get_probe_factory("test-default-registry").probe_kwargs == {"threshold": 0.3}
        assert "test-default-registry" in list_probes()
        assert "test-default-registry" in default_registry
    finally:
        unregister_probe("test-default-registry")
    assert "test-default-registry" not in default_registry


PLUGIN = """
from undercurrent.core.examples import TrajectoryScoreProbe
class Mean(TrajectoryScoreProbe):
    pass
class NoProbe:
    pass
"""


def install(folder: Path, package: str, **entry_points: str) -> None:
    """Lays out an installed package that publishes probes, as an installer would."""
    module = entry_points.pop("module", package)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
    (info / "entry_points.txt").write_text(f"[undercurrent.probes]\n{lines}")
    (folder / f"{module}.py").write_text(PLUGIN)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_plugin_is_imported_when_its_name_is_first_asked_for(site: Path) -> None:
    install(site, "plugin_lazy", lazy_mean="plugin_lazy:Mean")
    registry = ProbeRegistry()

    assert "lazy_mean" in registry
    assert "plugin_lazy" not in sys.modules
    assert registry.get("lazy_mean").probe_cls.__name__ == "Mean"
    assert "lazy_mean" in registry.list()


def test_plugins_can_be_left_out(site: Path) -> None:
    install(site, "plugin_unwanted", unwanted="plugin_unwanted:Mean")

    assert "unwanted" not in make_registry()


def test_registered_probe_wins_over_a_plugin_of_its_name(site: Path) -> None:
    install(site, "plugin_second", contested="plugin_second:Mean")
    registry = ProbeRegistry()
    registry.register("contested", MLPClassifierProbe)

    assert registry.get("contested").probe_cls is MLPClassifierProbe
    assert "plugin_second" not in sys.modules


def test_probe_may_take_the_name_of_a_loaded_plugin(site: Path) -> None:
    install(site, "plugin_taken", taken="plugin_taken:Mean")
    registry = ProbeRegistry()
    registry.get("taken")
    registry.register("taken", MLPClassifierProbe)

    assert registry.get("taken").probe_cls is MLPClassifierProbe


@pytest.mark.parametrize("value", ["plugin_broken:Absent", "plugin_absent_module:Mean", "plugin_broken:NoProbe"])
def test_broken_plugin_is_logged_and_takes_nothing_down(
    site: Path, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    install(site, "plugin_broken", broken=value, sound="plugin_broken:Mean")
    registry = ProbeRegistry()
    with caplog.at_level(logging.WARNING):
        assert "sound" in registry.list()

    assert "broken" not in registry.list()
    assert [record.getMessage() for record in caplog.records if "'broken'" in record.getMessage()] == [
        f"probe plugin 'broken' ({value}) cannot be used and is skipped"
    ]
    with pytest.raises(ProbeNotFoundError):
        registry.get("broken")


def test_second_package_of_a_name_is_logged_and_not_used(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "plugin_one", twice="plugin_one:Mean")
    install(site, "plugin_two", twice="plugin_two:Mean")
    with caplog.at_level(logging.WARNING):
        used = ProbeRegistry().get("twice").probe_cls.__module__

    assert used in {"plugin_one", "plugin_two"}
    assert any("two packages publish the probe 'twice'" in record.getMessage() for record in caplog.records)


def test_unregistered_plugin_stays_away(site: Path) -> None:
    install(site, "plugin_gone", gone="plugin_gone:Mean")
    registry = ProbeRegistry()
    registry.unregister("gone")

    with pytest.raises(ProbeNotFoundError):
        registry.get("gone")


def test_plugin_that_registers_probes_while_it_is_imported_does_not_lock_up(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "plugin_busy", busy="plugin_busy:Mean")
    (site / "plugin_busy.py").write_text(
        f"{PLUGIN}\nimport threading\nfrom registry_at_hand import registry\n"
        "def use():\n    registry.register('busy-too', Mean)\n    assert 'busy' in registry\n"
        "thread = threading.Thread(target=use)\nthread.start()\nthread.join(10)\nfinished = not thread.is_alive()\n"
    )
    registry = ProbeRegistry()
    monkeypatch.setitem(sys.modules, "registry_at_hand", SimpleNamespace(registry=registry))

    assert registry.get("busy").probe_cls.__name__ == "Mean"
    assert registry.get("busy-too").probe_cls.__name__ == "Mean"
    assert sys.modules["plugin_busy"].finished


def test_threads_may_register_and_look_up_at_once() -> None:
    registry = make_registry()
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(50):
                registry.register(f"probe-{number}-{turn}", TrajectoryScoreProbe)
                registry.get(f"probe-{number}-{turn}")
                registry.list()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(registry) == 200
