"""The supervisor over real workers, as processes and as threads: records arrive, are judged, are accounted for."""

from __future__ import annotations

import array
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import worker_probes as probes
from worker_rig import coverage, deadline, feed, finish, plan, record

from undercurrent.core import RequestContext
from undercurrent.errors import ProbeTransferError, RingMemoryError
from undercurrent.spec import OverflowPolicy
from undercurrent.workers import Supervisor

MODES = ("process", "thread")


@pytest.fixture(params=MODES)
def supervisor(request: pytest.FixtureRequest) -> Iterator[Supervisor]:
    made = Supervisor(worker_pool_size=2, worker_mode=request.param)
    yield made
    made.close(wait=True, deadline=deadline())


@pytest.fixture(scope="module")
def threads() -> Iterator[Supervisor]:
    """Threads share the engine's memory: what a probe could harm, it would harm here."""
    made = Supervisor(worker_pool_size=1, worker_mode="thread")
    yield made
    made.close(wait=True, deadline=deadline())


def test_records_reach_the_probe_whole_and_in_order(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.Recorder))
    feed(binding, 200)
    result = finish(binding)
    assert result.verdict["positions"] == list(range(200))
    assert result.verdict["values"] == [float(n) for n in range(200)]
    assert coverage(result)["complete"]
    assert coverage(result)["routed"] == coverage(result)["seen"] == 200


def test_the_context_arrives_as_it_was(supervisor: Supervisor) -> None:
    result = finish(supervisor.open_binding(plan(probes.Recorder)))
    assert result.verdict["metadata"] == {"prompt": "hello", "tags": ("a", 1)}


def test_a_batch_probe_sees_every_record(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.BatchRecorder))
    feed(binding, 100)
    assert finish(binding).verdict["values"] == [float(n) for n in range(100)]


def test_probes_run_in_another_process_only_in_process_mode(supervisor: Supervisor) -> None:
    pid = finish(supervisor.open_binding(plan(probes.Recorder))).verdict["pid"]
    assert (pid == os.getpid()) == (supervisor.worker_mode == "thread")


def test_a_probe_of_this_test_travels_by_value(supervisor: Supervisor) -> None:
    class Local(probes.Recorder):
        def on_end(self, request_ctx: RequestContext) -> Any:
            result = super().on_end(request_ctx)
            result.verdict = "local"
            return result

    assert finish(supervisor.open_binding(plan(Local))).verdict == "local"


def tensors_of(kind: str) -> list[Any]:
    """Sixty records of 16 items, each telling its number."""
    if kind.startswith("torch"):
        torch = pytest.importorskip("torch")
        return [torch.full((16,), n, dtype=getattr(torch, kind.partition(".")[2])) for n in range(60)]
    make: dict[str, Callable[[int], Any]] = {
        "float32": lambda n: np.full(16, n, dtype=np.float32),
        "int64": lambda n: np.full(16, n, dtype=np.int64),
        "big-endian": lambda n: np.full(16, n, dtype=">i4"),
        "strided": lambda n: np.full(32, n, dtype=np.float64)[::2],
        "array": lambda n: array.array("d", [n] * 16),
        "bytearray": lambda n: bytearray([n] * 16),
        "bytes": lambda n: bytes([n] * 16),
        "list": lambda n: [float(n)] * 16,
        "tuple": lambda n: (n,) * 16,
    }
    return [make[kind](n) for n in range(60)]


@pytest.mark.parametrize("probe_cls", [probes.Keeper, probes.BatchKeeper])
@pytest.mark.parametrize(
    "kind",
    [
        "float32",
        "int64",
        "big-endian",
        "strided",
        "array",
        "bytearray",
        "bytes",
        "list",
        "tuple",
        "torch.float32",
        "torch.bfloat16",
    ],
)
def test_writes_and_keeps_harm_neither_other_records_nor_the_engine(
    threads: Supervisor, kind: str, probe_cls: type[probes.Keeper]
) -> None:
    binding = threads.open_binding(plan(probe_cls))
    tensors = tensors_of(kind)
    for position, tensor in enumerate(tensors):
        binding.accept(record(position, tensor))
    seen, kept, is_intact = finish(binding).verdict
    assert (kept, is_intact) == (20, True)
    assert all(probes.is_same(mine, theirs) for mine, theirs in zip(tensors_of(kind), seen, strict=True))
    assert all(probes.is_same(mine, theirs) for mine, theirs in zip(tensors_of(kind), tensors, strict=True))


@pytest.mark.parametrize("probe_cls", [probes.Keeper, probes.BatchKeeper])
def test_the_same_holds_across_processes(processes: Supervisor, probe_cls: type[probes.Keeper]) -> None:
    binding = processes.open_binding(plan(probe_cls))
    for position, tensor in enumerate(tensors_of("float32")):
        binding.accept(record(position, tensor))
    seen, kept, is_intact = finish(binding).verdict
    assert (kept, is_intact) == (20, True)
    assert all(probes.is_same(mine, theirs) for mine, theirs in zip(tensors_of("float32"), seen, strict=True))


def test_in_place_views_are_read_only(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.InPlaceWriter))
    feed(binding, 20)
    verdict = finish(binding).verdict
    assert verdict["positions"] == [-1] * 20
    assert verdict["values"] == [float(n) for n in range(20)]


def test_a_raising_probe_goes_on_with_the_next_record(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.Raiser))
    feed(binding, 12)
    result = finish(binding)
    assert result.verdict["positions"] == [0, 2, 4, 6, 8, 10]
    assert coverage(result)["errors"] == 6
    assert coverage(result)["reasons"] == ["probe_error"]


def test_a_start_error_ends_the_binding_with_its_reason(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.StartRaiser))
    with pytest.raises(RuntimeError, match="no weights today"):
        binding.wait_started(deadline())
    feed(binding, 3)
    result = finish(binding)
    assert result.verdict is None
    assert "start_error" in coverage(result)["reasons"]


def test_an_end_error_leaves_a_result_that_says_so(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.EndRaiser))
    feed(binding, 3)
    result = finish(binding)
    assert result.verdict is None
    assert coverage(result)["reasons"] == ["probe_error"]
    assert "no verdict today" in result.metadata["error"]


def test_a_started_probe_is_confirmed(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.Recorder))
    binding.wait_started(deadline())
    finish(binding)


def test_drop_oldest_keeps_the_newest_and_counts_the_rest(supervisor: Supervisor, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    binding = supervisor.open_binding(
        plan(probes.Gate, depth=4, policy=OverflowPolicy.DROP_OLDEST, probe_kwargs={"path": str(gate)})
    )
    binding.wait_started(deadline())
    feed(binding, 50)
    gate.touch()
    result = finish(binding)
    found = coverage(result)
    assert result.verdict["positions"][-4:] == [46, 47, 48, 49]
    assert found["routed"] == 50
    assert found["dropped"] == 50 - len(result.verdict["positions"]) > 0
    assert found["reasons"] == ["dropped"]


def test_block_waits_for_room_and_drops_nothing(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.Recorder, depth=2))
    feed(binding, 500)
    assert coverage(finish(binding))["complete"]


def test_block_gives_up_after_its_timeout_and_counts_it(supervisor: Supervisor, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    binding = supervisor.open_binding(
        plan(probes.Gate, depth=2, probe_kwargs={"path": str(gate)}, block_timeout_s=0.05)
    )
    binding.wait_started(deadline())
    feed(binding, 8)
    gate.touch()
    found = coverage(finish(binding))
    assert "block_timeout" in found["reasons"]
    assert found["routed"] == 8 == found["seen"] + found["dropped"]


def test_an_abandoned_binding_leaves_room_for_others(supervisor: Supervisor) -> None:
    first = supervisor.open_binding(plan(probes.Recorder))
    first.abandon()
    second = supervisor.open_binding(plan(probes.Recorder, "r2"))
    feed(second, 5)
    assert coverage(finish(second))["complete"]


def test_more_points_than_workers_share_the_pool(supervisor: Supervisor) -> None:
    bindings = [supervisor.open_binding(plan(probes.Recorder, name=f"point-{n}")) for n in range(5)]
    for binding in bindings:
        feed(binding, 10)
    assert all(coverage(finish(binding))["complete"] for binding in bindings)
    assert len(supervisor.workers()) == 2


def test_steps_deliver_what_was_routed_inside(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.Recorder))
    supervisor.begin_step()
    feed(binding, 10)
    supervisor.end_step()
    assert supervisor.flush(deadline())
    assert binding.statistics().consumed == 10
    finish(binding)


def test_sink_objects_get_signals_and_result_in_order_before_the_result_returns(supervisor: Supervisor) -> None:
    class ListSink:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def write_signal(self, request_id: str, extraction_point_name: str, signal: Any) -> None:
            self.seen.append(signal.metadata["position"])

        def write_result(self, request_id: str, extraction_point_name: str, result: Any) -> None:
            self.seen.append("result")

    sink = ListSink()
    supervisor.set_sinks([sink])
    binding = supervisor.open_binding(plan(probes.Recorder))
    feed(binding, 5)
    finish(binding)
    assert sink.seen == [0, 1, 2, 3, 4, "result"]


def test_a_raising_sink_stops_nothing(supervisor: Supervisor) -> None:
    class Broken:
        def write_signal(self, *_: Any) -> None:
            raise OSError("disk full")

        write_result = write_signal

    supervisor.set_sinks([Broken()])
    binding = supervisor.open_binding(plan(probes.Recorder))
    feed(binding, 5)
    assert coverage(finish(binding))["complete"]


def test_what_cannot_travel_is_refused_with_its_name() -> None:
    made = Supervisor(worker_pool_size=1)
    with pytest.raises(ProbeTransferError, match="`lock`"):
        made.check(plan(probes.Killer, probe_kwargs={"lock": threading.Lock()}))


def test_unsupported_records_are_counted_and_said_once(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    binding = supervisor.open_binding(plan(probes.Recorder))
    for position in range(3):
        binding.accept(record(position, object()))
    feed(binding, 2, first=3)
    found = coverage(finish(binding))
    assert found["reasons"] == ["unsupported"]
    assert (found["routed"], found["dropped"], found["seen"]) == (5, 3, 2)
    assert sum("unsupported" in entry.message for entry in caplog.records) == 1


def test_memory_limit_counts_no_memory_or_refuses() -> None:
    made = Supervisor(worker_pool_size=1, worker_mode="thread", memory_max_bytes=4 * 2**20)
    try:
        try:
            binding = made.open_binding(plan(probes.Recorder, depth=64))
        except RingMemoryError:
            return
        binding.accept(record(0, np.zeros(2**20, dtype=np.float32)))
        assert "no_memory" in coverage(finish(binding))["reasons"]
    finally:
        made.close(wait=True, deadline=deadline())


def test_close_without_wait_answers_live_bindings(supervisor: Supervisor) -> None:
    binding = supervisor.open_binding(plan(probes.Recorder))
    feed(binding, 3)
    supervisor.close(wait=False, deadline=deadline())
    result = binding.wait_result(deadline())
    assert result.verdict is None
    assert not coverage(result)["complete"]


def test_prewarm_has_workers_running(processes: Supervisor) -> None:
    processes.prewarm([plan(probes.Recorder)])
    assert [worker.state for worker in processes.workers()] == ["running"]


def test_state_in_globals_is_the_workers_own(processes: Supervisor) -> None:
    probes.SEEN.clear()
    binding = processes.open_binding(plan(probes.GlobalCounter))
    feed(binding, 3)
    assert finish(binding).verdict == 3
    assert probes.SEEN == []


def test_a_verdict_that_cannot_cross_says_where(processes: Supervisor) -> None:
    result = finish(processes.open_binding(plan(probes.Unspeakable)))
    assert result.verdict is None
    assert "probe_error" in coverage(result)["reasons"]
    assert "$.verdict['lock']" in result.metadata["error"]


def test_more_openings_than_a_socket_holds_wait_for_the_worker(supervisor: Supervisor) -> None:
    bindings = [supervisor.open_binding(plan(probes.Recorder, f"r{n}", depth=2)) for n in range(800)]
    for binding in bindings:
        binding.end()
    assert all(coverage(binding.wait_result(deadline()))["complete"] for binding in bindings)


def test_a_context_that_cannot_be_read_in_the_worker_is_a_start_error(supervisor: Supervisor) -> None:
    explosive = plan(probes.Recorder)
    context = RequestContext("r", {"device": probes.Explosive()}, None)
    binding = supervisor.open_binding(msgspec.structs.replace(explosive, context=context))
    with pytest.raises(ValueError, match="not in this process"):
        binding.wait_started(deadline())
    assert "start_error" in coverage(finish(binding))["reasons"]


def test_a_probe_that_keeps_views_gets_copies_and_is_told_once(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    binding = supervisor.open_binding(plan(probes.InPlaceKeeper, depth=4))
    feed(binding, 100)
    verdict = finish(binding).verdict
    assert [value for value, _ in verdict] == [float(n) for n in range(100)]
    assert not verdict[0][1]
    assert verdict[-1][1]
    assert sum("keeps a view" in entry.getMessage() for entry in caplog.records) == 1


def test_a_point_s_bindings_spread_over_its_workers(processes: Supervisor) -> None:
    bindings = [processes.open_binding(plan(probes.Recorder, f"r{n}", workers=2)) for n in range(4)]
    pids = [finish(binding).verdict["pid"] for binding in bindings]
    assert sorted(pids.count(pid) for pid in set(pids)) == [2, 2]
