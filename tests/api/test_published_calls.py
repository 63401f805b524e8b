"""Each documented call of the router, the sinks and the root of 0.1.0, as its users wrote it. Passes on 0.1.0 too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from published_pieces import TEXT, Counting, make_point, make_record

import undercurrent
from undercurrent import (
    ActivationRecord,
    ExecutionMode,
    FileLogSink,
    InMemoryMetricsRegistry,
    InterventionMode,
    InterventionPolicy,
    LogSink,
    OverflowPolicy,
    ProbeAction,
    ProbeFactory,
    ProbeKind,
    ProbeResult,
    ProbeSignal,
    RequestContext,
    Router,
    RouterError,
    TensorType,
    TimeoutAction,
    WebhookLogSink,
    chain,
    drop_keys,
    redact_keys,
)
from undercurrent.core.examples import TrajectoryScoreProbe
from undercurrent.router import (
    DEFAULT_CIRCUIT_BREAKER_THRESHOLD,
    DEFAULT_DRAIN_TIMEOUT,
    DEFAULT_QUEUE_DEPTH,
    default_worker_pool_size,
)
from undercurrent.sinks import DEFAULT_PROMPT_TEXT_KEYS, to_jsonable, wire_router


class Kept(LogSink):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[Any, ...]] = []

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        self.entries.append(("signal", extraction_point_name, signal.metadata))

    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
        self.entries.append(("result", extraction_point_name, result.verdict))


@pytest.fixture
def router() -> Iterator[Router]:
    registry = {"running_mean": ProbeFactory(TrajectoryScoreProbe), "counting": ProbeFactory(Counting)}
    with Router(registry, worker_pool_size=1, default_queue_depth=8) as made:
        yield made


def test_constants_and_defaults_are_what_they_were() -> None:
    assert (DEFAULT_QUEUE_DEPTH, DEFAULT_DRAIN_TIMEOUT, DEFAULT_CIRCUIT_BREAKER_THRESHOLD) == (32, 30.0, 5)
    assert default_worker_pool_size() >= 1
    with Router(worker_pool_size=3, default_overflow_policy=OverflowPolicy.BLOCK) as router:
        assert router.worker_pool_size == 3
    with pytest.raises(ValueError):
        Router(worker_pool_size=0)


def test_inline_request_runs_from_start_to_end(router: Router) -> None:
    ended: list[tuple[str, Any]] = []
    remove = router.on_request_end(lambda request_id, results: ended.append((request_id, results)))
    point = make_point(probe_type="counting")
    router.register_request("req-1", [point], RequestContext("req-1", {}, None))
    assert router.route(make_record([1.0])) is None
    signal = router.route(make_record([1.0]))
    assert signal is not None
    assert signal.action is ProbeAction.FLAG
    assert isinstance(router.get_probe("req-1", "guard"), Counting)
    results = router.end_request("req-1")
    assert results["guard"].verdict == 2
    assert [(request_id, sorted(kept)) for request_id, kept in ended] == [("req-1", ["guard"])]
    remove()
    for late in (lambda: router.route(make_record([1.0])), lambda: router.end_request("req-1")):
        with pytest.raises(RouterError):
            late()


def test_router_refuses_what_it_refused(router: Router) -> None:
    context = RequestContext("req-1", {}, None)
    router.register_request("req-1", [make_point()], context)
    wrong = [
        lambda: router.register_request("req-1", [make_point()], context),
        lambda: router.register_request("req-2", [make_point(probe_type="nobody")], context),
        lambda: router.register_request("req-2", [make_point(probe_kind=ProbeKind.SINGLE_SHOT)], context),
        lambda: router.route(make_record([1.0], name="gard")),
        lambda: router.route(ActivationRecord("req-9", "guard", 4, 1, "mlp_out", [1.0], True)),
        lambda: router.route(ActivationRecord("req-1", "guard", 5, 1, "mlp_out", [1.0], True)),
        lambda: router.route(ActivationRecord("req-1", "guard", 4, 1, "kv", [1.0], True)),
        lambda: router.get_metrics("req-1", "guard"),
        lambda: router.end_request("req-9"),
    ]
    for call in wrong[:7]:
        with pytest.raises(RouterError):
            call()
    with pytest.raises(RouterError):
        wrong[8]()
    assert router.end_request("req-1")["guard"].verdict["count"] == 0
    router.shutdown()
    router.shutdown(wait=False, timeout=0.1)
    with pytest.raises(RouterError):
        router.register_request("req-3", [], context)


def test_request_is_a_with_block(router: Router) -> None:
    with router.request([make_point(probe_type="counting")], prompt_metadata={"prompt": "hi"}) as handle:
        assert not handle.ended
        assert handle.request_ctx.prompt_metadata == {"prompt": "hi"}
        record = make_record([1.0])
        record.request_id = handle.request_id
        handle.route(record)
        with pytest.raises(RouterError):
            _ = handle.results
        with pytest.raises(RouterError):
            handle.route(make_record([1.0]))
    assert handle.ended
    assert handle.results["guard"].verdict == 1
    with pytest.raises(RouterError), handle:
        pass
    with router.request([make_point()], request_id="req-7") as named:
        assert named.request_id == "req-7"


def test_async_request_reaches_its_sink_and_its_metrics(router: Router) -> None:
    metrics = InMemoryMetricsRegistry()
    sink = Kept()
    router.attach_metrics_sink(metrics)
    wire_router(router, sink)
    point = make_point(probe_type="counting", execution_mode=ExecutionMode.ASYNC, queue_depth=4)
    router.register_request("req-1", [point], RequestContext("req-1", {}, None))
    for position in range(4):
        assert router.route(make_record([1.0], position=position)) is None
    assert router.get_metrics("req-1", "guard").drop_count == 0
    assert router.end_request("req-1")["guard"].verdict == 4
    assert sink.entries == [("signal", "guard", {"n": 2}), ("signal", "guard", {"n": 4}), ("result", "guard", 4)]
    router.attach_log_sink(None)
    router.attach_metrics_sink(None)
    with pytest.raises(RouterError):
        router.get_metrics("req-1", "guard")


def test_bounded_inline_point_answers_in_time(router: Router) -> None:
    policy = InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, timeout_ms=20_000, on_timeout=TimeoutAction.ABORT)
    point = make_point(probe_type="counting", intervention=policy)
    router.register_request("req-1", [point], RequestContext("req-1", {}, None))
    router.route(make_record([1.0]))
    signal = router.route(make_record([1.0]))
    assert signal is not None
    assert signal.action == ProbeAction.FLAG
    assert router.end_request("req-1")["guard"].verdict == 2


def test_in_memory_metrics_keep_what_they_are_told() -> None:
    metrics = InMemoryMetricsRegistry()
    metrics.register("req-1", "guard")
    metrics.record_queue_depth("req-1", "guard", 3)
    metrics.record_drop("req-1", "guard")
    metrics.record_activation("req-1", "guard", 0.5)
    metrics.record_probe_error("req-1", "guard")
    kept = metrics.snapshot("req-1", "guard")
    assert (kept.queue_depth, kept.drop_count, kept.activation_count, kept.error_count) == (3, 1, 1, 1)
    assert kept.avg_activation_latency_seconds == 0.5
    metrics.forget("req-1", "guard")


def test_file_sink_writes_a_line_per_record(tmp_path: Path) -> None:
    path = tmp_path / "observations.ndjson"
    sink = FileLogSink(path, redact=redact_keys("prompt"))
    sink.write_signal("req-1", "guard", ProbeSignal(ProbeAction.FLAG, {"prompt": "hi", "score": 0.5}, 0.5, 1.0))
    sink.write_result("req-1", "guard", ProbeResult("req-1", "guard", {"n": 1}))
    sink.write_raw({"kind": "note", "prompt": "hi"})
    signal, result, note = (json.loads(line) for line in path.read_text().splitlines())
    assert (signal["kind"], signal["request_id"], signal["extraction_point_name"]) == ("signal", "req-1", "guard")
    assert signal["payload"] == {
        "action": "flag",
        "metadata": {"prompt": "[REDACTED]", "score": 0.5},
        "confidence": 0.5,
        "timestamp": 1.0,
    }
    assert (result["kind"], result["payload"]["verdict"], result["payload"]["signal_history"]) == (
        "result",
        {"n": 1},
        [],
    )
    assert note == {"kind": "note", "prompt": "[REDACTED]"}
    assert Path(sink.path) == path
    assert sink.redaction_error_count == 0


def test_webhook_sink_calls_what_it_is_given(tmp_path: Path) -> None:
    posted: list[tuple[str, dict[str, Any]]] = []
    letters = tmp_path / "dead.ndjson"

    def post(url: str, record: dict[str, Any]) -> None:
        posted.append((url, record))
        if record["request_id"] == "req-2":
            raise ConnectionError

    sink = WebhookLogSink(
        "https://example.com/hook",
        max_retries=1,
        backoff_base=0.001,
        request_timeout=1.0,
        dead_letter_path=letters,
        queue_maxsize=10,
        post_fn=post,
        redact=None,
        include_prompt_text=False,
    )
    sink.write_signal("req-1", "guard", ProbeSignal(metadata={"prompt": "hi"}))
    sink.write_result("req-2", "guard", ProbeResult("req-2", "guard", None))
    sink.close(timeout=20)
    assert [(url, record["request_id"]) for url, record in posted] == [
        ("https://example.com/hook", "req-1"),
        ("https://example.com/hook", "req-2"),
        ("https://example.com/hook", "req-2"),
    ]
    assert posted[0][1]["payload"]["metadata"] == {"prompt": "[REDACTED]"}
    assert [json.loads(line)["request_id"] for line in letters.read_text().splitlines()] == ["req-2"]
    assert sink.dropped_count == 0


def test_redaction_is_made_of_small_pieces() -> None:
    record = {"prompt": 1, "metadata": {"prompt": 2, "token": 3}, "list": [{"token": 4}]}
    assert redact_keys("prompt", replacement="-")(json.loads(json.dumps(record)))["metadata"]["prompt"] == "-"
    assert drop_keys("metadata.token")(json.loads(json.dumps(record)))["metadata"] == {"prompt": 2}
    both = chain(redact_keys("prompt"), drop_keys("token"))(json.loads(json.dumps(record)))
    assert both == {"prompt": "[REDACTED]", "metadata": {"prompt": "[REDACTED]"}, "list": [{}]}
    assert chain(lambda kept: None, redact_keys("prompt"))(dict(record)) is None
    for function in (redact_keys, drop_keys):
        with pytest.raises(ValueError):
            function()
        with pytest.raises(ValueError):
            function("a..b")
        with pytest.raises(TypeError):
            function(3)
    assert "prompt" in DEFAULT_PROMPT_TEXT_KEYS


def test_anything_becomes_json() -> None:
    value = {"kind": TensorType.KV, 3: (1, 2), "raw": b"abc", "policy": InterventionPolicy()}
    assert to_jsonable(value) == {
        "kind": "kv",
        "3": [1, 2],
        "raw": {"__summary__": "bytes", "length": 3},
        "policy": {"mode": "reject", "timeout_ms": None, "on_timeout": "continue"},
    }


def test_root_is_lazy_and_listed() -> None:
    assert undercurrent.__version__
    assert set(undercurrent.__all__) <= set(dir(undercurrent))
    with pytest.raises(AttributeError):
        _ = undercurrent.nothing_of_that_name


def test_command_line_is_a_function(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from undercurrent.cli import main

    path = tmp_path / "spec.yaml"
    path.write_text(TEXT)
    assert main(["validate", str(path)]) in (0, 1)
    assert capsys.readouterr().out
