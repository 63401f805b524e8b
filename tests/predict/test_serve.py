"""The ASGI app: what it answers and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgi_client import Answer, ask
from predict_checkpoints import LATE, TOPIC, Recorder, StubAgent, WordCheckpoint, make_router, raising

from undercurrent.examples.hooks.metrics import MetricsHook
from undercurrent.predict import PredictValueError, Router
from undercurrent.predict.serve import DecisionApp, ServeLimits

STATE = "where is my parcel"
ASKED = {"state": STATE, "questions": TOPIC}


def post(app: DecisionApp, content: Any, path: str = "/v1/predict") -> Answer:
    return ask(app, "POST", path, content=content)


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_one_request_gets_what_the_router_answers() -> None:
    router = make_router()
    answer = post(DecisionApp(router), {**ASKED, "model": "english", "min_confidence": 0.9})
    assert answer.status == 200
    expected = router.predict(STATE, TOPIC, model="english", min_confidence=0.9)
    del expected["routing"]["repo"]
    assert answer.json == json.loads(json.dumps(expected))
    assert answer.json["answers"]["topic"]["choice"] == "parcel"


def test_batch_gets_its_results_in_order() -> None:
    app = DecisionApp(make_router())
    requests = [
        {"state": word, "questions": TOPIC, "model": name} for word in ("bill", "parcel") for name in ("en", "ml")
    ]
    answer = post(app, {"requests": requests}, "/v1/predict_batch")
    assert [result["answers"]["topic"]["choice"] for result in answer.json["results"]] == [
        "bill",
        "bill",
        "parcel",
        "parcel",
    ]
    assert [result["routing"]["model"] for result in answer.json["results"]] == ["english", "multilingual"] * 2


def test_empty_batch_and_no_questions_are_answered() -> None:
    app = DecisionApp(make_router())
    assert post(app, {"requests": []}, "/v1/predict_batch").json == {"results": []}
    assert post(app, {"state": STATE, "questions": {}}).json["answers"] == {}


def test_hooks_share_the_correlation_id_of_the_answer() -> None:
    recorder = Recorder("audit", [])
    answer = post(DecisionApp(make_router(hooks=recorder)), ASKED)
    assert {ctx.correlation_id for _, ctx in recorder.contexts} == {answer.headers["x-correlation-id"]}


def test_result_values_that_json_has_not_become_numbers_and_texts() -> None:
    import numpy as np

    router = Router()
    agent = StubAgent()
    agent.system_one = lambda state, questions: {  # type: ignore[method-assign]
        "model": "stub",
        "answers": {},
        "probes": {"loud": {"verdict": np.float32(0.5), "more": np.arange(2), "nan": float("nan"), "path": object}},
    }
    router.attach("stub", agent)
    probes = post(DecisionApp(router), {**ASKED, "model": "stub"}).json["probes"]
    assert probes["loud"] == {"verdict": 0.5, "more": [0, 1], "nan": None, "path": "<class 'object'>"}


def test_labels_that_are_booleans_are_keys_as_json_has_them() -> None:
    asked = {"sure": {"type": "choice", "instructions": "is it", "criteria": [True, 2]}}
    answer = post(DecisionApp(make_router()), {"state": STATE, "questions": asked}).json["answers"]["sure"]
    assert set(answer["probabilities"]) == {"true", "2"}


# ---- refusals --------------------------------------------------------------------------------------------------------

NESTED: Any = "end"
for _ in range(40):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("content", "status", "code", "words"),
    [
        ([], 422, "invalid_request", "Expected `object`, got `array`"),
        ({"questions": {}}, 422, "invalid_request", "missing required field `state`"),
        ({**ASKED, "state": 3}, 422, "invalid_request", "at `$.state`"),
        ({**ASKED, "questions": []}, 422, "invalid_request", "at `$.questions`"),
        ({**ASKED, "max_len": 0}, 422, "invalid_request", "at `$.max_len`"),
        ({**ASKED, "max_len": True}, 422, "invalid_request", "at `$.max_len`"),
        ({**ASKED, "min_confidence": 2}, 422, "invalid_request", "at `$.min_confidence`"),
        ({**ASKED, "min_confidence": {"nuol:2": 0.5}}, 422, "invalid_request", "did you mean 'noul:2'"),
        ({**ASKED, "stat": ""}, 422, "invalid_request", "unknown field `stat`"),
        ({**ASKED, "questions": {"q": {"type": "chioce"}}}, 422, "invalid_question", "did you mean 'choice'"),
        ({**ASKED, "state": NESTED}, 422, "nested_too_deep", "32 levels may be nested at `$.state`"),
        ({**ASKED, "model": "englsh"}, 422, "unknown_model", "did you mean 'english'"),
        ({**ASKED, "model": "/etc"}, 422, "unknown_model", "no checkpoint is known as '/etc'"),
        ({**ASKED, "max_len": 1}, 422, "invalid_request", "`max_len` is 1"),
    ],
)
def test_bad_request_is_refused_with_its_place(content: Any, status: int, code: str, words: str) -> None:
    answer = post(DecisionApp(make_router()), content)
    assert (answer.status, answer.json["code"]) == (status, code)
    assert words in answer.json["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "name",
    ["hooks", "on_predict_start", "on_predict_end", "hooks_raise", "hooks_timeout", "hooks_concurrent"],
)
@pytest.mark.parametrize("path", ["/v1/predict", "/v1/predict_batch"])
def test_hook_arguments_are_never_taken_from_the_network(name: str, path: str) -> None:
    given = {**ASKED, name: None}
    answer = post(DecisionApp(make_router()), given if path == "/v1/predict" else {"requests": [given]}, path)
    assert (answer.status, answer.json["code"]) == (422, "hooks_refused")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b'{"state": "\\ud800", "questions": {}}', 400, "invalid_json"),
        (b'{"state": NaN, "questions": {}}', 400, "invalid_json"),
        (b'{"state": {"n": 1e999}, "questions": {}}', 422, "invalid_request"),
        (b"[" * 100_000, 422, "invalid_request"),
        (b'{"state": ' + b"[" * 100_000, 422, "nested_too_deep"),
    ],
)
def test_body_that_is_no_json_is_refused(body: bytes, status: int, code: str) -> None:
    answer = ask(DecisionApp(make_router()), "POST", "/v1/predict", body=body)
    assert (answer.status, answer.json["code"]) == (status, code)


def test_body_of_another_kind_is_refused() -> None:
    app = DecisionApp(make_router())
    answer = ask(app, "POST", "/v1/predict", body=b"state=1", headers={"content-type": "text/plain"})
    assert (answer.status, answer.json["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("headers", [{"content-length": "101"}, {}, {"content-length": "lots"}])
def test_large_body_is_refused_whatever_its_head_says(headers: dict[str, str]) -> None:
    app = DecisionApp(make_router(), limits=ServeLimits(body_bytes_max=100))
    answer = ask(app, "POST", "/v1/predict", body=[b"x" * 60, b"x" * 60], headers=headers)
    assert (answer.status, answer.json["code"]) == (413, "body_too_large")


def test_counts_beyond_the_limits_are_refused() -> None:
    app = DecisionApp(make_router(), limits=ServeLimits(batch_size_max=1, question_count_max=1))
    many = post(app, {"requests": [ASKED, ASKED]}, "/v1/predict_batch")
    assert (many.status, many.json["code"]) == (413, "batch_too_large")
    more = post(app, {"state": STATE, "questions": {**TOPIC, **LATE}})
    assert (more.status, more.json["code"]) == (422, "too_many_questions")


def test_bad_request_of_a_batch_is_named() -> None:
    requests = [ASKED, {**ASKED, "questions": {"q": 1}}]
    answer = post(DecisionApp(make_router()), {"requests": requests}, "/v1/predict_batch")
    assert "$.requests[1].questions" in answer.json["detail"]


def test_unknown_paths_and_methods_get_problems() -> None:
    app = DecisionApp(make_router())
    assert ask(app, "GET", "/v2").json["code"] == "unknown_path"
    wrong = ask(app, "GET", "/v1/predict")
    assert (wrong.status, wrong.json["code"], wrong.headers["allow"]) == (405, "wrong_method", "POST")


# ---- failures --------------------------------------------------------------------------------------------------------

SECRET = "/srv/models/secret"


def fail() -> Any:
    raise ValueError(f"{SECRET}/weights.bin is damaged")


def test_checkpoint_that_cannot_be_loaded_is_unavailable_and_leaks_no_path() -> None:
    answer = post(DecisionApp(Router({"own": fail}, default="own")), {**ASKED, "model": "own"})
    assert (answer.status, answer.json["code"]) == (503, "checkpoint_unavailable")
    assert SECRET.encode() not in answer.body


class DamagedError(PredictValueError):
    """What a factory raises whose files are not what they should be."""


def test_checkpoint_that_fails_to_load_midway_in_a_batch_leaks_no_path_either() -> None:
    def damaged() -> Any:
        raise DamagedError(f"{SECRET}/weights.bin is damaged")

    router = Router({"good": WordCheckpoint("good"), "bad": damaged}, default="good")
    requests = [{**ASKED, "model": "good"}, {**ASKED, "model": "bad"}]
    answer = post(DecisionApp(router), {"requests": requests}, "/v1/predict_batch")
    assert (answer.status, answer.json["code"], answer.json["failed"]) == (503, "checkpoint_unavailable", [1])
    assert SECRET.encode() not in answer.body


def test_question_for_a_probe_that_is_not_there_is_the_clients_mistake() -> None:
    answer = post(DecisionApp(make_router()), {**ASKED, "questions": {"q": {"type": "probe", "point": "mood"}}})
    assert (answer.status, answer.json["code"]) == (422, "invalid_request")
    assert "no probe is attached as 'mood'" in answer.json["detail"]


def test_failure_of_a_model_is_ours_and_says_nothing_but_its_id(caplog: pytest.LogCaptureFixture) -> None:
    router = Router({"own": WordCheckpoint(SECRET, fails_at="forward")}, default="own")
    answer = post(DecisionApp(router), {**ASKED, "model": "own"})
    assert (answer.status, answer.json["code"]) == (500, "failed")
    assert SECRET.encode() not in answer.body
    assert answer.json["correlation_id"] in caplog.text
    assert STATE not in caplog.text


def test_results_hold_no_places_of_checkpoints(tmp_path: Any) -> None:
    router = Router({"own": WordCheckpoint(SECRET)}, default="own")
    answer = post(DecisionApp(router), {**ASKED, "model": "own"})
    assert answer.json["model"] == "secret"
    assert SECRET.encode() not in answer.body


def test_hook_that_refuses_a_request_tells_the_client() -> None:
    guard = Recorder("guard", [], {"on_predict_start": raising(PredictValueError("no card numbers, please"))})
    answer = post(DecisionApp(make_router(hooks=guard)), ASKED)
    assert (answer.status, answer.json["detail"]) == (422, "no card numbers, please")


def test_failed_batch_says_which_requests_failed() -> None:
    router = Router({"good": WordCheckpoint("good"), "bad": WordCheckpoint("bad", fails_at="forward")}, default="good")
    requests = [{**ASKED, "model": "good"}, {**ASKED, "model": "bad"}]
    answer = post(DecisionApp(router), {"requests": requests}, "/v1/predict_batch")
    assert (answer.status, answer.json["failed"], answer.json["not_started"]) == (500, [1], [])


# ---- what is not a decision ------------------------------------------------------------------------------------------


def test_metrics_are_what_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    hook = MetricsHook()
    app = DecisionApp(make_router(hooks=hook), metrics=[hook.prometheus_text])
    post(app, ASKED)
    post(app, {})
    ask(app, "GET", "/nowhere/" + "x" * 50)
    families = {
        family.name: family for family in text_string_to_metric_families(ask(app, "GET", "/metrics").body.decode())
    }
    counts = {
        (sample.labels["endpoint"], sample.labels["status"]): sample.value
        for sample in families["undercurrent_predict_http_requests"].samples
    }
    assert counts == {("/v1/predict", "200"): 1, ("/v1/predict", "422"): 1, ("other", "404"): 1}
    buckets = [s for s in families["undercurrent_predict_http_seconds"].samples if s.name.endswith("_bucket")]
    assert [s.value for s in buckets if s.labels["le"] == "+Inf" and s.labels["endpoint"] == "/v1/predict"] == [2]
    assert families["undercurrent_predict_http_busy"].samples[0].value == 0
    assert "undercurrent_predict_calls" in families


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"concurrency": 0}, "`concurrency` must be an int >= 1, got 0"),
        ({"queue_depth": -1}, "`queue_depth` must be an int >= 0"),
        ({"timeout_s": float("inf")}, "`timeout_s` must be a number of seconds above 0"),
        ({"body_bytes_max": True}, "`body_bytes_max` must be an int"),
    ],
)
def test_limit_that_is_none_is_refused(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(PredictValueError, match=words):
        ServeLimits(**limits)
