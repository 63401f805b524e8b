"""The hooks that come with the product: audit, redaction, cache, metrics, spans."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from predict_checkpoints import LATE, TOPIC, Recorder, WordCheckpoint, make_router, raising

from undercurrent.examples.hooks.audit import AuditHook
from undercurrent.examples.hooks.cache import CacheHook
from undercurrent.examples.hooks.metrics import MetricsHook
from undercurrent.examples.hooks.redact import RedactionHook
from undercurrent.examples.hooks.spans import SpansHook
from undercurrent.predict import WITHHELD, Agent, PredictContext, Router

TEXT = (
    "Write to ada.lovelace+test@example.co.uk or call +44 20 7946 0958, card 4111 1111 1111 1111,"
    " key sk-abcdefghijklmnopqrst"
)
REDACTED = "Write to [EMAIL] or call [PHONE], card [CARD], key [KEY]"


class Lines:
    """Keeps records."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.records: list[dict[str, Any]] = []
        self.failure = failure

    def write_record(self, record: dict[str, Any]) -> None:
        if self.failure is not None:
            raise self.failure
        self.records.append(record)


def english(state: Any, **more: Any) -> dict[str, Any]:
    """A request for one checkpoint."""
    return {"state": state, "questions": LATE, "model": "english", **more}


def test_audit_has_one_record_per_request_and_no_text() -> None:
    lines = Lines()
    router = make_router(hooks=AuditHook(lines))
    router.predict_batch([english("a secret text"), english("another")])
    router.predict(**english("a third"))
    assert len(lines.records) == 3
    assert [record["answers"][0]["late"]["type"] for record in lines.records] == ["noul"] * 3
    assert lines.records[0]["correlation_id"] == lines.records[1]["correlation_id"]
    assert "secret" not in str(lines.records)
    assert all(state.startswith("sha256:") for record in lines.records for state in record["states"])


@pytest.mark.parametrize("entry", ["predict", "predict_batch"])
@pytest.mark.parametrize("fails_at", ["route", "load", "forward"])
def test_audit_has_a_record_of_each_request_that_failed(entry: str, fails_at: str) -> None:
    lines = Lines()
    router = make_router(hooks=AuditHook(lines, keeps_states=True))
    checkpoint = WordCheckpoint(fails_at="forward")
    router.register("english", checkpoint if fails_at == "forward" else lambda: raising(RuntimeError("x"))(None))  # type: ignore[arg-type]
    request = english("s", model="nobody" if fails_at == "route" else "english")
    with pytest.raises((RuntimeError, LookupError)):
        router.predict(**request) if entry == "predict" else router.predict_batch([request])
    assert [record["states"] for record in lines.records] == [["s"]]
    assert lines.records[0]["error"] in ("RuntimeError", "CheckpointNotFoundError")


def test_audit_that_cannot_write_fails_the_call() -> None:
    with pytest.raises(OSError, match="disk"):
        Agent(WordCheckpoint(), hooks=AuditHook(Lines(OSError("disk"))), hooks_raise=False).predict("s", LATE)


def test_redaction_replaces_emails_phones_cards_and_keys_before_the_model_sees_them() -> None:
    checkpoint = WordCheckpoint("english")
    hook = RedactionHook()
    router = Router({"english": checkpoint}, hooks=hook)
    state = {"body": [TEXT, {"mail me@example.org": 4111111111111111}]}
    router.predict(**english(TEXT))
    router.predict(**english(state))
    assert checkpoint.seen[0] == REDACTED
    assert checkpoint.seen[1] == f'{{"body": ["{REDACTED}", {{"mail [EMAIL]": "[CARD]"}}]}}'
    assert state["body"][0] == TEXT
    assert hook.counts == {"EMAIL": 3, "PHONE": 2, "CARD": 3, "KEY": 2}


@pytest.mark.parametrize(
    "text",
    [
        "order 4111111111111112 of 2026-11-29 10:15:30",
        "version 10.0.0.1 and 3.14159265358979",
        "ticket 12345678, room 101, at 9:30",
        "@handle and user@localhost",
    ],
)
def test_redaction_leaves_numbers_dates_and_versions_alone(text: str) -> None:
    ctx = PredictContext([text], {})
    RedactionHook().on_predict_start(ctx)
    assert ctx.states == [text]


@pytest.mark.parametrize(
    ("secret", "word"),
    [
        ("AKIAIOSFODNN7EXAMPLE", "KEY"),
        ("ghp_" + "a1" * 18, "KEY"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "KEY"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK", "KEY"),
        ("(020) 7946 0958", "PHONE"),
        ("030/1234567-89", "PHONE"),
        ("555-867-5309", "PHONE"),
        ("5500-0000-0000-0004", "CARD"),
        ("ümlaut@exämple.de", "EMAIL"),
    ],
)
def test_redaction_knows_what_they_look_like(secret: str, word: str) -> None:
    ctx = PredictContext([f"it is {secret}, keep it"], {})
    RedactionHook().on_predict_start(ctx)
    assert ctx.states == [f"it is [{word}], keep it"]


def test_redaction_of_what_it_does_not_know_withholds_the_text() -> None:
    seen: list[Any] = []
    audit = Recorder("audit", [], {"on_predict_end": lambda ctx: seen.append(ctx.states)})
    with pytest.raises(TypeError, match="redaction knows texts"):
        Agent(WordCheckpoint(), hooks=[RedactionHook(), audit], hooks_raise=False).predict({"a": {TEXT}}, LATE)
    assert seen == [[WITHHELD]]


def test_redaction_takes_more_patterns() -> None:
    ctx = PredictContext(["ticket AB-12"], {})
    RedactionHook({"TICKET": re.compile(r"AB-\d+")}).on_predict_start(ctx)
    assert ctx.states == ["ticket [TICKET]"]


@pytest.mark.parametrize(
    "text", ["0 " * 50_000, "a@" * 50_000, "eyJ" * 50_000, "-----BEGIN PRIVATE KEY-----" * 3_000, "x." * 50_000]
)
@pytest.mark.timeout(30)
def test_no_text_makes_redaction_slow(text: str) -> None:
    ctx = PredictContext([text], {})
    RedactionHook().on_predict_start(ctx)
    assert len(ctx.states) == 1


def test_cache_answers_what_it_knows_and_nobody_changes_its_entries() -> None:
    checkpoint = WordCheckpoint()
    cache = CacheHook()
    router = Router({"english": checkpoint}, hooks=cache)
    first = router.predict(**english("s"), min_confidence=0.9)
    first["answers"].clear()
    second = router.predict(**english("s"))
    assert checkpoint.seen == ["s"]
    assert "abstention" not in second["answers"]["late"]
    assert second["routing"]["model"] == "english"
    second["answers"].clear()
    assert router.predict(**english("s"))["answers"]["late"]["type"] == "noul"
    assert (cache.hit_count, cache.miss_count) == (2, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "t"},
        {"questions": TOPIC},
        {"questions": {**LATE, **TOPIC}},
        {"model": "multilingual"},
        {"max_len": 50},
        {"head_max_len": 50},
    ],
)
def test_cache_keys_on_everything_an_answer_depends_on(change: dict[str, Any]) -> None:
    cache = CacheHook()
    router = make_router(hooks=cache)
    router.predict(**english("s"))
    router.predict(**{**english("s"), **change})
    assert cache.hit_count == 0
    assert len(cache) == 2


def test_cache_keeps_the_order_of_questions_and_options() -> None:
    cache = CacheHook()
    agent = Agent(WordCheckpoint(), hooks=cache)
    agent.predict("s", {**LATE, **TOPIC})
    agent.predict("s", {**TOPIC, **LATE})
    agent.predict("s", {"topic": {**TOPIC["topic"], "criteria": ["bill", "parcel", "other"]}})
    agent.predict("s", {"topic": {**TOPIC["topic"], "option_order": [2, 1, 0]}})
    assert cache.hit_count == 0


def test_cache_keeps_tenants_apart() -> None:
    tenant = ["a"]
    cache = CacheHook(namespace=lambda ctx: tenant[0])
    agent = Agent(WordCheckpoint(), hooks=cache)
    agent.predict("s", LATE)
    tenant[0] = "b"
    agent.predict("s", LATE)
    assert cache.hit_count == 0


def test_cache_is_bounded_by_entries_bytes_and_time() -> None:
    now = [0.0]
    cache = CacheHook(entry_count_max=3, ttl_s=10.0, clock=lambda: now[0])
    agent = Agent(WordCheckpoint(), hooks=cache)
    for state in "abcd":
        agent.predict(state, LATE)
    assert len(cache) == 3
    agent.predict("d", LATE)
    now[0] = 11.0
    agent.predict("d", LATE)
    assert cache.hit_count == 1
    small = CacheHook(size_bytes_max=cache.size_bytes // 2)
    agent = Agent(WordCheckpoint(), hooks=small)
    for state in "abcd":
        agent.predict(state, LATE)
    assert 0 < small.size_bytes <= small.size_bytes_max
    small.clear()
    assert (len(small), small.size_bytes) == (0, 0)


def test_cache_before_a_hook_that_rewrites_keeps_nothing() -> None:
    cache = CacheHook()
    Agent(WordCheckpoint(), hooks=[cache, RedactionHook()]).predict(TEXT, LATE)
    assert len(cache) == 0
    assert cache._asked == {}


def test_cache_serves_a_batch_between_calls_and_a_state_it_cannot_key_is_a_miss() -> None:
    checkpoint = WordCheckpoint()
    router = Router({"english": checkpoint}, hooks=CacheHook())
    router.predict_batch([english("s"), english("s")])
    router.predict_batch([english("s"), english("t")])
    assert checkpoint.seen == ["s", "s", "t"]
    assert router.predict(**english({"at": [1, 2]}))["answers"]


def test_cache_in_many_threads_gives_each_state_its_answer() -> None:
    agent = Agent(WordCheckpoint(), hooks=CacheHook(entry_count_max=4))
    wrong: list[str] = []

    def work(offset: int) -> None:
        for number in range(60):
            state = "w " * (1 + (number + offset) % 8)
            if agent.predict(state, LATE)["usage"]["state_tokens"] != len(state.split()):
                wrong.append(state)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_metrics_count_by_checkpoint_and_outcome() -> None:
    metrics = MetricsHook()
    router = make_router(hooks=[metrics, CacheHook()], max_loaded=1)
    router.predict(**english("two words"))
    router.predict(**english("two words"))
    router.predict("s", LATE, model="ml")
    with pytest.raises(LookupError):
        router.predict("s", LATE, model="nobody")
    assert metrics.call_counts == {
        ("english", "answered"): 1,
        ("english", "skipped"): 1,
        ("multilingual", "answered"): 1,
        ("unknown", "failed"): 1,
    }
    assert metrics.token_counts == {"english": 2, "multilingual": 1}
    text = metrics.prometheus_text()
    assert 'undercurrent_predict_calls_total{model="english",outcome="skipped"} 1' in text
    assert 'undercurrent_predict_checkpoints_total{model="english",event="evicted"} 1' in text
    assert 'undercurrent_predict_elapsed_ms_count{model="english"} 2' in text
    assert 'undercurrent_predict_elapsed_ms_bucket{model="english",le="+Inf"} 2' in text


@pytest.fixture
def spans() -> tuple[SpansHook, InMemorySpanExporter]:
    """A hook whose spans are kept."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return SpansHook(provider.get_tracer("test")), exporter


def test_spans_of_router_and_agent_nest_and_carry_the_ids(spans: tuple[SpansHook, InMemorySpanExporter]) -> None:
    hook, exporter = spans
    router = make_router(hooks=hook)
    router.attach("english", Agent(WordCheckpoint(), hooks=hook))
    router.predict(**english("s"))
    inner, outer = exporter.get_finished_spans()
    assert (inner.name, outer.name) == ("predict.agent", "predict.request")
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert inner.attributes is not None
    assert outer.attributes is not None
    assert inner.attributes["predict.correlation_id"] == outer.attributes["predict.correlation_id"]
    assert inner.attributes["predict.run_id"] != outer.attributes["predict.run_id"]


def test_spans_of_a_batch_all_end_and_leave_no_current_span(spans: tuple[SpansHook, InMemorySpanExporter]) -> None:
    from opentelemetry import trace

    hook, exporter = spans
    router = make_router(hooks=hook)
    router.predict_batch([english(str(number)) for number in range(3)])
    router.register("english", WordCheckpoint(fails_at="forward"))
    with pytest.raises(RuntimeError):
        router.predict_batch([english("a"), english("b")])
    with pytest.raises(LookupError):
        router.predict("s", LATE, model="nobody")
    finished = exporter.get_finished_spans()
    assert len(finished) == 6
    assert [span.status.is_ok for span in finished] == [True] * 3 + [False] * 3
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert hook._open == {}


def test_hooks_of_the_product_work_together() -> None:
    lines = Lines()
    checkpoint = WordCheckpoint("english")
    metrics = MetricsHook()
    router = Router(
        {"english": checkpoint}, hooks=[metrics, RedactionHook(), CacheHook(), AuditHook(lines, keeps_states=True)]
    )
    for _ in range(2):
        router.predict(**english(TEXT))
    assert checkpoint.seen == [REDACTED]
    assert [record["was_skipped"] for record in lines.records] == [False, True]
    assert [record["states"] for record in lines.records] == [[REDACTED]] * 2
    assert time.time() - lines.records[0]["time"] >= 0
