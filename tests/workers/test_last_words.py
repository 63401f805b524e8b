"""A result on its short way: through the ring's answer cell to whoever waits; and every case where it takes another."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import worker_probes as probes
from worker_rig import WAIT_S, coverage, deadline, feed, plan, wait_for

from undercurrent.core import Probe, ProbeAction, ProbeResult, ProbeSignal
from undercurrent.ipc.layout import ANSWER_BYTES_MAX
from undercurrent.workers import AsyncBinding, Supervisor, last_words, worker
from undercurrent.workers import messages as m
from undercurrent.workers.lane import RETIRED_MAX
from undercurrent.workers.loop import Loop


class Says(Probe):
    """Gives the verdict and the metadata it was made with."""

    probe_kind = "trajectory"

    def __init__(self, verdict: Any, metadata: dict[Any, Any] | None = None) -> None:
        self.verdict = verdict
        self.metadata = metadata or {}

    def on_start(self, request_ctx: Any) -> None: ...

    def on_activation(self, record: Any) -> None: ...

    def on_end(self, request_ctx: Any) -> ProbeResult:
        return ProbeResult(self.request_id, self.extraction_point_name, self.verdict, [], dict(self.metadata))


class FlagsAll(probes.Recorder):
    """Says something about every record."""

    def on_activation(self, record: Any) -> ProbeSignal:
        return ProbeSignal(ProbeAction.FLAG)


class WaitsAtItsEnd(probes.Gate):
    """Stands in `on_end` until a file is there; says that it does in another."""

    def on_activation(self, record: Any) -> None: ...

    def on_end(self, request_ctx: Any) -> ProbeResult:
        Path(self.path + ".reached").touch()
        until = time.monotonic() + WAIT_S
        while not Path(self.path).exists() and time.monotonic() < until:
            threading.Event().wait(0.005)
        return ProbeResult(self.request_id, self.extraction_point_name, "waited")


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[m.ToEngine]:
    """Every frame that the supervisor's thread takes."""
    seen: list[m.ToEngine] = []
    take = Loop._take_frame

    def take_and_note(self: Loop, lane: Any, frame: m.ToEngine) -> None:
        seen.append(frame)
        take(self, lane, frame)

    monkeypatch.setattr(Loop, "_take_frame", take_and_note)
    return seen


@pytest.fixture(params=("process", "thread"))
def supervisor(request: pytest.FixtureRequest) -> Iterator[Supervisor]:
    made = Supervisor(worker_pool_size=1, worker_mode=request.param)
    yield made
    made.close(wait=True, deadline=deadline())


def _warm(supervisor: Supervisor) -> None:
    supervisor.prewarm([plan(probes.Recorder)])


def _end(supervisor: Supervisor, **probe_kwargs: Any) -> ProbeResult:
    binding = supervisor.open_binding(plan(Says, probe_kwargs=probe_kwargs))
    feed(binding, 3)
    binding.end()
    return binding.wait_result(deadline())


def _finished(frames: list[m.ToEngine]) -> int:
    return sum(isinstance(frame, m.Finished) for frame in frames)


@pytest.mark.parametrize(
    ("verdict", "metadata"),
    [
        ("yes", {}),
        (None, {"score": 0.5, "note": "é", "flag": True, "bytes": b"\x00\xff", "none": None}),
        (-(2**63), {"big": 2**64 - 1}),
        (float("inf"), {}),
        ((1, "a"), {}),  # from here on more than plain values
        ({"positions": [1, 2]}, {"tags": ("a", {1})}),
        (2**64, {}),
        ("\ud800", {}),
        ("x", {1: "a key that is no text"}),
        ("x", {"big": 2**80}),
    ],
)
def test_a_result_comes_back_equal_without_a_frame(
    supervisor: Supervisor, frames: list[m.ToEngine], verdict: Any, metadata: dict[Any, Any]
) -> None:
    _warm(supervisor)
    result = _end(supervisor, verdict=verdict, metadata=metadata)
    covered = result.metadata.pop("coverage")
    assert covered["complete"]
    assert covered["routed"] == covered["seen"] == 3
    assert result == ProbeResult("r", "monitor", verdict, [], metadata)
    assert type(result.verdict) is type(verdict)
    assert _finished(frames) == 0


def test_a_result_longer_than_a_cell_comes_by_frame(supervisor: Supervisor, frames: list[m.ToEngine]) -> None:
    _warm(supervisor)
    text = "x" * ANSWER_BYTES_MAX
    assert _end(supervisor, verdict=text).verdict == text
    assert _end(supervisor, verdict=[text]).verdict == [text]
    assert _finished(frames) == 2


def test_sink_objects_get_signals_and_results_in_order_and_before_the_caller(supervisor: Supervisor) -> None:
    heard: list[str] = []

    class Sink:
        def write_signal(self, request_id: str, name: str, signal_: Any) -> None:
            heard.append("signal")

        def write_result(self, request_id: str, name: str, result: Any) -> None:
            heard.append("result")

    _warm(supervisor)
    supervisor.set_sinks([Sink()])
    binding = supervisor.open_binding(plan(FlagsAll))
    feed(binding, 2)
    binding.end()
    binding.wait_result(deadline())
    assert heard == ["signal", "signal", "result"]


def _open_waiting(supervisor: Supervisor, gate: Path) -> AsyncBinding:
    """A binding that is ended, and whose probe stands in `on_end`."""
    _warm(supervisor)
    binding = supervisor.open_binding(plan(WaitsAtItsEnd, probe_kwargs={"path": str(gate)}))
    feed(binding, 1)
    binding.end()
    wait_for(Path(f"{gate}.reached").exists)
    return binding


def test_a_worker_that_dies_in_on_end_leaves_the_word_to_its_successor(tmp_path: Path) -> None:
    supervisor = Supervisor(worker_pool_size=1)
    try:
        binding = _open_waiting(supervisor, tmp_path / "open")
        results: list[ProbeResult] = []
        waiter = threading.Thread(target=lambda: results.append(binding.wait_result(deadline())))
        waiter.start()
        os.kill(binding.lane.pid, signal.SIGKILL)
        (tmp_path / "open").touch()
        waiter.join(WAIT_S)
        assert results[0].verdict == "waited"
        assert coverage(results[0])["reasons"] == ["worker_died"]
        assert coverage(results[0])["restarts"] == 1
    finally:
        supervisor.close(wait=True, deadline=deadline())


def test_a_word_that_was_left_by_a_worker_that_died_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(worker_pool_size=1)
    try:
        binding = _open_waiting(supervisor, tmp_path / "open")
        (tmp_path / "open").touch()
        ring = binding.ring
        wait_for(lambda: ring.last_answered() != 0)  # nobody waits: the word lies in its cell
        os.kill(binding.lane.pid, signal.SIGKILL)
        wait_for(lambda: binding.lane.death_count == 1)
        result = binding.wait_result(deadline())
        assert result.verdict == "waited"
        assert coverage(result)["complete"]
    finally:
        supervisor.close(wait=True, deadline=deadline())


def test_a_word_that_comes_too_late_lets_the_ring_go(supervisor: Supervisor, tmp_path: Path) -> None:
    binding = _open_waiting(supervisor, tmp_path / "open")
    result = binding.wait_result(time.monotonic())
    assert coverage(result)["reasons"] == ["drain_timeout"]
    assert binding.lane.bindings
    (tmp_path / "open").touch()
    wait_for(lambda: not binding.lane.bindings)


def test_a_word_is_not_lost_when_the_supervisor_closes_first(supervisor: Supervisor, tmp_path: Path) -> None:
    binding = _open_waiting(supervisor, tmp_path / "open")
    (tmp_path / "open").touch()
    supervisor.close(wait=True, deadline=deadline())
    assert binding.wait_result(deadline()).verdict == "waited"


def test_many_words_that_nobody_took_outlive_the_supervisor(supervisor: Supervisor) -> None:
    _warm(supervisor)
    plans = [plan(Says, f"r{index}", probe_kwargs={"verdict": index}) for index in range(2 * RETIRED_MAX)]
    bindings = supervisor.open_bindings(plans)
    for binding in bindings:
        binding.end()
    wait_for(lambda: all(binding.ring.last_answered() for binding in bindings))
    supervisor.close(wait=True, deadline=deadline())
    assert [binding.wait_result(deadline()).verdict for binding in bindings] == list(range(2 * RETIRED_MAX))


def test_a_waiter_returns_when_the_supervisor_closes_without_a_word(tmp_path: Path) -> None:
    supervisor = Supervisor(worker_pool_size=1)
    binding = _open_waiting(supervisor, tmp_path / "never")
    results: list[ProbeResult] = []
    waiter = threading.Thread(target=lambda: results.append(binding.wait_result(deadline())))
    waiter.start()
    supervisor.close(wait=False, deadline=time.monotonic())
    waiter.join(WAIT_S)
    assert coverage(results[0])["reasons"] == ["unseen"]


def test_an_abandoned_binding_is_forgotten(supervisor: Supervisor, tmp_path: Path) -> None:
    binding = _open_waiting(supervisor, tmp_path / "open")
    binding.abandon()
    (tmp_path / "open").touch()
    wait_for(lambda: not binding.lane.bindings)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (last_words.PLAIN, b"\xc1"),
        (last_words.PLAIN, b""),
        (last_words.PLAIN, b"\x92\x01\x02"),
        (last_words.PLAIN, last_words._encode(("x", {}, []))),  # no coverage
        (last_words.PLAIN, last_words._encode(("x", {"coverage": {"complete": "yes"}}, []))),
        (last_words.VALUE, b"\xc1"),
        (99, b""),
    ],
)
def test_nonsense_in_a_cell_ends_the_worker_and_no_caller_hangs(
    monkeypatch: pytest.MonkeyPatch, kind: int, data: bytes
) -> None:
    """The liar is forked from the nursery, so the lie is told in a thread, whose `kill` is looked at."""
    told: list[str] = []

    class Liar:
        def kill(self) -> None:
            told.append("killed")

    supervisor = Supervisor(worker_pool_size=1, worker_mode="thread")
    try:
        _warm(supervisor)
        binding = supervisor.open_binding(plan(Says, probe_kwargs={"verdict": "x"}))
        wait_for(lambda: binding.lane.state == "running")
        monkeypatch.setattr(worker, "PLAIN", kind)
        monkeypatch.setattr(worker, "encode_plain", lambda result, measured: data)
        binding.lane.process = Liar()
        binding.end()
        wait_for(lambda: binding.ring.last_answered() != 0)
        result = binding.wait_result(time.monotonic() + 0.2)
        assert result.verdict is None
        assert not coverage(result)["complete"]
        assert told
    finally:
        supervisor.close(wait=False, deadline=time.monotonic())
