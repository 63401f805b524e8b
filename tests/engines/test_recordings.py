"""Recordings: what was routed comes back to the bit and in order, and goes through any spec again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_points import make_point, make_router
from router_points import REGISTRY

from undercurrent.core import RequestContext
from undercurrent.engines import (
    ActivationRecorder,
    Recording,
    RecordingError,
    ReplayedRequest,
    SyntheticEngine,
    replay,
    replaying,
)
from undercurrent.engines.recording_reader import RecordedRows, RequestBegan, RequestEnded
from undercurrent.errors import ProbingValueError
from undercurrent.router import Router, RowEntry
from undercurrent.spec import ExecutionMode, ExtractionPoint, ProbeSpec, TensorType, UntilKind
from undercurrent.spec.point import Until

LAYERS = (1, 3)


def spec_of(*points: ExtractionPoint) -> ProbeSpec:
    return ProbeSpec("1", points)


def record(
    folder: Path,
    points: Sequence[ExtractionPoint],
    prompts: Sequence[str] = ("abc", "hello"),
    *,
    engine: Any = None,
    router: Any = None,
    tokens: int = 6,
    **options: Any,
) -> ActivationRecorder:
    """Records a batch on an engine, by default the synthetic one."""
    engine = engine or SyntheticEngine(layer_count=4, hidden_size=8)
    ids = [f"r{index}" for index in range(len(prompts))]
    with ActivationRecorder(folder, spec_of(*points), model_name="synthetic", router=router, **options) as recorder:
        for request_id in ids:
            engine.register_extraction(request_id, points)
        engine.generate_batch(ids, prompts, {"max_new_tokens": tokens}, recorder)
        for request_id in ids:
            engine.unregister_extraction(request_id)
    return recorder


def verdicts(outcomes: Sequence[ReplayedRequest], name: str = "point") -> dict[str, list[Any]]:
    return {outcome.request.request_id: outcome.results[name].verdict for outcome in outcomes}


def assert_equal_records(mine: list[Any], reference: list[Any]) -> None:
    assert [row[:3] for row in mine] == [row[:3] for row in reference]
    for a, b in zip(mine, reference, strict=True):
        assert type(a[3]) is type(b[3])
        assert a[3].dtype == b[3].dtype
        assert bits(a[3]) == bits(b[3])


def bits(row: Any) -> bytes:
    return bytes(row.contiguous().view(torch.uint8).numpy() if isinstance(row, torch.Tensor) else row.tobytes())


# ---- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard_bytes_max", [1, 200, 64 << 20])
def test_a_replay_gives_probes_what_the_engine_gave_them(tmp_path: Path, shard_bytes_max: int) -> None:
    points = [make_point(layers=LAYERS), make_point("twin", layers=(3,)), make_point("at", position="prompt[-1]")]
    live: dict[str, Any] = {}
    with make_router() as router:
        router.on_request_end(live.__setitem__)
        recorder = record(tmp_path / "r", points, router=router, shard_bytes_max=shard_bytes_max)
    # Rows that two points read are kept once.
    assert recorder.record_count == 2 * (5 + 5 + 1)
    with make_router() as router:
        outcomes = list(replay(Recording(tmp_path / "r"), spec_of(*points), router))
    assert [outcome.request.prompt_len for outcome in outcomes] == [3, 5]
    for name in ("point", "twin", "at"):
        for request_id, verdict in verdicts(outcomes, name).items():
            assert_equal_records(verdict, live[request_id][name].verdict)
    assert not any(outcome.missing or outcome.is_cut_off or outcome.abort_point for outcome in outcomes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_a_model_come_back_to_the_bit(load: Callable[..., Any], tmp_path: Path, dtype: torch.dtype) -> None:
    engine = load()
    kinds = (TensorType.RESIDUAL_STREAM, TensorType.ATTN_OUT, TensorType.MLP_OUT)
    points = [make_point(kind.value, layers=LAYERS, tensor_type=kind, position="prompt[-1]") for kind in kinds]
    points.append(make_point("norm", layers=(4,), tensor_type=TensorType.FINAL_NORM))
    engine.model.to(dtype)
    live: dict[str, Any] = {}
    try:
        with make_router() as router:
            router.on_request_end(live.__setitem__)
            record(tmp_path / "r", points, engine=engine, router=router)
    finally:
        engine.model.to(torch.float32)
    with make_router() as router:
        outcomes = list(replay(Recording(tmp_path / "r"), spec_of(*points), router))
    for outcome in outcomes:
        for name, result in outcome.results.items():
            assert result.verdict[0][3].dtype == dtype
            assert_equal_records(result.verdict, live[outcome.request.request_id][name].verdict)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint16])
def test_odd_values_and_dtypes_of_arrays_come_back_to_the_bit(tmp_path: Path, dtype: type) -> None:
    values = np.frombuffer(np.random.default_rng(0).bytes(6 * 5 * np.dtype(dtype).itemsize), dtype).reshape(6, 5)
    with ActivationRecorder(tmp_path / "r", spec_of(make_point()), model_name="m") as recorder:
        recorder.register_request("r", [], RequestContext("r", {"prompt_len": 0}, None))
        recorder.route_rows(values, 1, "residual_stream", [RowEntry("r", "point", n, True, 5 - n) for n in range(6)])
        recorder.route_rows(torch.from_numpy(np.ones((1, 2))), 1, "mlp_out", [RowEntry("r", "p", 0, False)])
    blocks = [event for event in Recording(tmp_path / "r").events() if isinstance(event, RecordedRows)]
    assert [block.tensor_type for block in blocks] == [TensorType.RESIDUAL_STREAM, TensorType.MLP_OUT]
    assert blocks[0].rows.dtype == dtype
    assert blocks[0].rows.tobytes() == values[::-1].tobytes()
    assert isinstance(blocks[1].rows, torch.Tensor)
    assert blocks[0].positions.tolist() == list(range(6))


def test_events_come_in_order_with_every_header(tmp_path: Path) -> None:
    record(tmp_path / "r", [make_point(layers=LAYERS)], ["abc"], tokens=3, keeps_prompts=True)
    events = list(Recording(tmp_path / "r").events())
    began, *rows, ended = events
    assert isinstance(began, RequestBegan)
    assert (began.request.request_id, began.request.prompt_len, began.request.prompt) == ("r0", 3, "abc")
    assert isinstance(ended, RequestEnded)
    blocks = [event for event in rows if isinstance(event, RecordedRows)]
    heads = [(b.step, b.layer, b.tensor_type.value, b.positions.tolist(), b.is_generated.tolist()) for b in blocks]
    assert heads == [(s, layer, "residual_stream", [2 + s], [1]) for s in (1, 2) for layer in LAYERS]
    assert [b.timestamp for b in blocks] == sorted(b.timestamp for b in blocks)


def test_a_recording_keeps_no_prompt_unless_it_is_asked_to(tmp_path: Path) -> None:
    record(tmp_path / "r", [make_point()], ["a secret prompt"])
    assert not [path for path in (tmp_path / "r").iterdir() if b"secret" in path.read_bytes()]


def test_shards_are_bounded_and_the_manifest_says_what_it_is_of(tmp_path: Path) -> None:
    record(tmp_path / "r", [make_point(layers=LAYERS)], tokens=40, shard_bytes_max=640)
    manifest = Recording(tmp_path / "r").manifest
    assert (manifest.model, manifest.is_complete, manifest.record_count) == ("synthetic", True, 2 * 2 * 39)
    assert [(tensor.layer, tensor.tensor_type) for tensor in manifest.tensors] == [
        (layer, "residual_stream") for layer in LAYERS
    ]
    assert manifest.shard_count == -(-manifest.record_count // 20)
    assert sorted(path.name for path in (tmp_path / "r").iterdir())[0] == "manifest.json"


# ---- replays through another spec -----------------------------------------------------------------------------------


def test_a_new_spec_reads_its_part_of_a_recording(tmp_path: Path) -> None:
    record(tmp_path / "r", [make_point(layers=LAYERS, position="generated[*]")], tokens=9)
    new = [
        make_point("every", layers=(3,), stride=3),
        make_point("first", layers=(1,), position="generated[0]"),
        make_point("part", layers=(1,), position="generated[2:4]"),
    ]
    with make_router() as router:
        outcome, _ = replay(Recording(tmp_path / "r"), spec_of(*new), router)
    seen = {name: [row[1] for row in result.verdict] for name, result in outcome.results.items()}
    assert seen == {"every": [3, 6, 9], "first": [3], "part": [5, 6]}


def test_positions_that_were_not_recorded_are_counted(tmp_path: Path) -> None:
    record(tmp_path / "r", [make_point(stride=2)], ["abc"], tokens=8)
    with make_router() as router:
        [outcome] = replay(Recording(tmp_path / "r"), spec_of(make_point(), make_point("b", stride=4)), router)
    assert outcome.missing == {"point": 3}
    assert [row[1] for row in outcome.results["point"].verdict] == [3, 5, 7, 9]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": (1, 2, 9)}, "has no residual_stream of layer 2, 9; it has residual_stream of layer 1"),
        ({"tensor_type": TensorType.MLP_OUT}, "has no mlp_out of layer 1"),
        ({"position": "generated[-1]"}, "counts from the end"),
        ({"until": Until(UntilKind.STOP_TOKEN, 3)}, "holds no tokens"),
    ],
)
def test_what_was_not_recorded_is_refused_before_anything_runs(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    record(tmp_path / "r", [make_point()])
    with make_router() as router, pytest.raises(RecordingError, match=message):
        replay(Recording(tmp_path / "r"), spec_of(make_point(**fields)), router)


def test_an_abort_ends_a_request_as_it_would_have(tmp_path: Path) -> None:
    record(tmp_path / "r", [make_point(layers=LAYERS)], tokens=9)
    points = [make_point("stop", probe_type="abort", probe_args={"count": 3}), make_point("all", layers=LAYERS)]
    with make_router() as router:
        outcomes = list(replay(Recording(tmp_path / "r"), spec_of(*points), router))
    assert [outcome.abort_point for outcome in outcomes] == ["stop", "stop"]
    assert [[position for _, position, _ in outcome.signals] for outcome in outcomes] == [[5], [7]]
    # The step of the abort is whole: layer 3 was computed too.
    assert [len(outcome.results["all"].verdict) for outcome in outcomes] == [6, 6]


def test_a_replay_through_workers_at_full_speed_drops_nothing(tmp_path: Path) -> None:
    record(tmp_path / "r", [make_point()], tokens=400)
    point = make_point(probe_type="collect", execution_mode=ExecutionMode.ASYNC, queue_depth=2)
    runs = []
    for _ in range(2):
        with Router(REGISTRY, worker_mode="thread") as router:
            outcomes = list(replay(Recording(tmp_path / "r"), spec_of(point), router))
        assert all(outcome.results["point"].metadata["coverage"]["complete"] for outcome in outcomes)
        runs.append(verdicts(outcomes))
    assert [len(verdict) for verdict in runs[0].values()] == [400, 400]
    assert runs[0] == {key: [value[0], *value[1:]] for key, value in runs[1].items()}


def test_a_probe_that_raises_ends_the_replay_and_its_requests(tmp_path: Path) -> None:
    record(tmp_path / "r", [make_point()])
    ended: list[str] = []
    with make_router() as router:
        router.on_request_end(lambda request_id, _results: ended.append(request_id))
        with pytest.raises(RuntimeError, match="this probe is broken"):
            list(replay(Recording(tmp_path / "r"), spec_of(make_point(probe_type="broken")), router))
    assert sorted(ended) == ["r0", "r1"]


@pytest.mark.parametrize(("speed", "seconds"), [(1.0, 3.0), (10.0, 0.3)])
def test_the_pace_of_a_replay_is_that_of_the_recording(
    speed: float, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ActivationRecorder(tmp_path / "r", spec_of(make_point()), model_name="m") as recorder:
        recorder.register_request("r", [], RequestContext("r", {"prompt_len": 0}, None))
        for index, timestamp in enumerate([100.0, 101.0, 103.0]):
            monkeypatch.setattr("undercurrent.engines.recording.time.time", lambda value=timestamp: value)
            with recorder.step():
                recorder.route_rows(np.zeros((1, 4)), 1, "residual_stream", [RowEntry("r", "point", index, True)])
        recorder.end_request("r")
    monkeypatch.undo()
    slept: list[float] = []
    now = [50.0]

    class Clock:
        def monotonic(self) -> float:
            return now[0]

        def sleep(self, duration: float) -> None:
            slept.append(duration)
            now[0] += duration

    monkeypatch.setattr(replaying, "time", Clock())
    with make_router() as router:
        [outcome] = replay(Recording(tmp_path / "r"), spec_of(make_point()), router, speed=speed)
    assert len(outcome.results["point"].verdict) == 3
    assert sum(slept) == pytest.approx(seconds)


@pytest.mark.parametrize("speed", [0, -1, float("nan")])
def test_a_speed_is_above_zero(speed: float, tmp_path: Path) -> None:
    record(tmp_path / "r", [make_point()])
    with make_router() as router, pytest.raises(ProbingValueError, match="`speed` must be above 0"):
        replay(Recording(tmp_path / "r"), spec_of(make_point()), router, speed=speed)
