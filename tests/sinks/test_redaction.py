"""Redaction hides what it names, at any depth, and lets nothing through when it fails."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest

from undercurrent.core import ProbeResult, ProbeSignal
from undercurrent.errors import ProbingTypeError, ProbingValueError
from undercurrent.sinks import DEFAULT_PROMPT_TEXT_KEYS, LogSink, chain, drop_keys, redact_keys, wire_router

RECORD = {
    "request_id": "r",
    "prompt": "top",
    "payload": {"metadata": {"prompt": "inner", "score": 1}, "history": [{"prompt": ["a"]}, [{"prompt": {"x": 1}}]]},
}


class KeptRecords(LogSink):
    """A custom sink as users write one: it builds records and asks for their redaction."""

    def __init__(self, redact: Any = None) -> None:
        super().__init__(redact=redact)
        self.records: list[dict[str, Any]] = []

    def write_signal(self, request_id: str, extraction_point_name: str, signal: ProbeSignal) -> None:
        self._keep({"request_id": request_id, "metadata": signal.metadata})

    def write_result(self, request_id: str, extraction_point_name: str, result: ProbeResult) -> None:
        self._keep({"request_id": request_id, "verdict": result.verdict})

    def _keep(self, record: dict[str, Any]) -> None:
        redacted = self._apply_redaction(record)
        if redacted is not None:
            self.records.append(redacted)


def test_a_plain_key_is_hidden_at_any_depth_and_inside_lists() -> None:
    assert redact_keys("prompt")(copy.deepcopy(RECORD)) == {
        "request_id": "r",
        "prompt": "[REDACTED]",
        "payload": {
            "metadata": {"prompt": "[REDACTED]", "score": 1},
            "history": [{"prompt": "[REDACTED]"}, [{"prompt": "[REDACTED]"}]],
        },
    }


def test_a_dotted_key_is_the_end_of_a_path() -> None:
    redacted = redact_keys("metadata.prompt", "history.prompt", replacement=None)(copy.deepcopy(RECORD))
    assert redacted is not None
    assert redacted["prompt"] == "top"
    assert redacted["payload"]["metadata"]["prompt"] is None
    assert redacted["payload"]["history"] == [{"prompt": None}, [{"prompt": None}]]


def test_dropped_keys_are_gone() -> None:
    assert drop_keys("prompt", "payload.history")(copy.deepcopy(RECORD)) == {
        "request_id": "r",
        "payload": {"metadata": {"score": 1}},
    }


def test_keys_are_exact_unless_case_is_to_be_ignored() -> None:
    assert redact_keys("prompt")({"Prompt": 1}) == {"Prompt": 1}
    assert redact_keys("prompt", ignore_case=True)({"Prompt": 1}) == {"Prompt": "[REDACTED]"}


def test_a_chain_stops_at_the_first_that_drops_the_record() -> None:
    calls: list[str] = []

    def drop(record: dict[str, Any]) -> None:
        calls.append("drop")

    def never(record: dict[str, Any]) -> dict[str, Any]:
        calls.append("never")
        return record

    assert chain(redact_keys("a"), drop, never)({"a": 1}) is None
    assert calls == ["drop"]


def test_the_default_keys_hide_what_prompts_and_errors_are_called() -> None:
    published = {
        "prompt",
        "prompts",
        "prompt_text",
        "text",
        "input_text",
        "output_text",
        "generated_text",
        "completion",
        "response",
        "messages",
        "input_ids",
        "output_ids",
        "token_ids",
    }
    assert published | {"query", "decoded", "error"} == set(DEFAULT_PROMPT_TEXT_KEYS)
    assert redact_keys(*DEFAULT_PROMPT_TEXT_KEYS)({"metadata": {"error": "quotes"}}) == {
        "metadata": {"error": "[REDACTED]"}
    }


@pytest.mark.parametrize("make", [redact_keys, drop_keys])
def test_keys_are_checked(make: Any) -> None:
    for keys in ((), ("",), ("a..b",), ("a.",)):
        with pytest.raises(ProbingValueError):
            make(*keys)
    with pytest.raises(ProbingTypeError):
        make(3)


def test_a_chain_takes_functions_only() -> None:
    with pytest.raises(ProbingTypeError):
        chain("prompt")  # type: ignore[arg-type]
    with pytest.raises(ProbingTypeError):
        KeptRecords("prompt")


def test_redactions_can_be_pickled() -> None:
    redact = pickle.loads(pickle.dumps(chain(redact_keys("a", replacement=0), drop_keys("B", ignore_case=True))))
    assert redact({"a": 1, "b": 2}) == {"a": 0}


def test_a_redaction_works_on_a_copy() -> None:
    sink = KeptRecords(redact_keys("prompt"))
    signal = ProbeSignal(metadata={"prompt": "secret", "more": {"prompt": "secret"}})
    sink.write_signal("r", "p", signal)
    assert sink.records[0]["metadata"] == {"prompt": "[REDACTED]", "more": {"prompt": "[REDACTED]"}}
    assert signal.metadata == {"prompt": "secret", "more": {"prompt": "secret"}}


@pytest.mark.parametrize("redact", [lambda record: 1 / 0, lambda record: [record], lambda record: record["nothing"]])
def test_a_redaction_that_fails_lets_nothing_through(redact: Any, caplog: pytest.LogCaptureFixture) -> None:
    sink = KeptRecords(redact)
    with caplog.at_level(logging.WARNING):
        sink.write_result("r", "p", ProbeResult("r", "p", "secret"))
    assert sink.records == []
    assert sink.redaction_error_count == 1
    assert "secret" not in caplog.text
    assert "dropped" in caplog.text


def test_a_record_that_is_dropped_on_purpose_is_no_error() -> None:
    sink = KeptRecords(lambda record: None)
    sink.write_result("r", "p", ProbeResult("r", "p", 1))
    assert (sink.records, sink.redaction_error_count) == ([], 0)


def test_a_sink_is_wired_to_a_router() -> None:
    class Router:
        sink: Any = None

        def attach_log_sink(self, sink: Any) -> None:
            self.sink = sink

    router, sink = Router(), KeptRecords()
    wire_router(router, sink)
    assert router.sink is sink
    with pytest.raises(ProbingTypeError, match="attach_log_sink"):
        wire_router(object(), sink)


def test_a_sink_closes_with_its_block() -> None:
    class Closing(KeptRecords):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    with Closing() as sink:
        assert not sink.is_closed
    assert sink.is_closed
