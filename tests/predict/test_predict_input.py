"""What cannot be used is said before anything runs, with what to do."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from predict_checkpoints import LATE, TOPIC, Recorder, Trace, WordCheckpoint, make_router

from undercurrent.errors import UndercurrentError
from undercurrent.predict import Agent, BaseHook, PredictContext, Router, catalog
from undercurrent.predict.questions import QUESTION_TYPES, parse_questions, schema_key


def question(**definition: Any) -> dict[str, Any]:
    """One question with the id q."""
    return {"q": {"instructions": "what is it", **definition}}


BAD_QUESTIONS = [
    ([], TypeError, "must be a dict of question id"),
    ("q", TypeError, "got str"),
    ({"q": 3}, ValueError, "question 'q': its definition must be a dict, got int"),
    ({" ": LATE["late"]}, ValueError, "id must be a string that is not blank"),
    ({None: LATE["late"]}, ValueError, "id must be a string"),
    (question(type="choise"), ValueError, "did you mean 'choice'"),
    (question(), ValueError, "`type` must be one of 'choice', 'score', 'noul', 'probe', got None"),
    (question(type=["choice"]), ValueError, "`type` must be"),
    ({"q": {"type": "noul"}}, ValueError, "`instructions` must be the text"),
    ({"q": {"type": "noul", "instructions": "  "}}, ValueError, "`instructions`"),
    ({"q": {"type": "noul", "instructions": True}}, ValueError, "`instructions`"),
    (question(type="choice"), ValueError, "a choice takes `criteria`"),
    (question(type="choice", criteria=[]), ValueError, "at least one"),
    (question(type="choice", criteria=["a", None]), ValueError, "label 1"),
    (question(type="choice", criteria=["a", ["b"]]), ValueError, "label 1"),
    (question(type="choice", criteria=["a", "b", "a"]), ValueError, "label 'a' comes twice"),
    (question(type="choice", criteria=[1, True]), ValueError, "comes twice"),
    (question(type="choice", criteria=["a"], labels={}), ValueError, "`labels` belongs to noul"),
    (question(type="score", criteria={"a": 1}), ValueError, "a score takes `criteria` as a list"),
    (question(type="score", criteria=["low", None]), ValueError, "level 1 is None"),
    (question(type="noul", criteria={"yes": "x"}), ValueError, "keys 'true' and 'false'"),
    (question(type="noul", labels={"true": "a", "false": "a"}), ValueError, "two different texts"),
    (question(type="noul", labels={"true": "a"}), ValueError, "two different texts"),
    (question(type="choice", criteria=["a", "b"], option_order=[0, 0]), ValueError, "each option from 0 to 1 once"),
    (question(type="choice", criteria=["a", "b"], option_order=[0, True]), ValueError, "`option_order`"),
    (question(type="choice", criteria=["word " * 80]), ValueError, "its options take 80 tokens, `max_len` is 64"),
]


@pytest.mark.parametrize(("questions", "kind", "words"), BAD_QUESTIONS)
def test_question_that_cannot_be_asked_is_refused_before_anything_is_encoded(
    questions: Any, kind: type[Exception], words: str
) -> None:
    trace: Trace = []
    with pytest.raises(kind, match=words) as raised:
        Agent(WordCheckpoint("m", trace=trace)).predict("s", questions)
    assert isinstance(raised.value, UndercurrentError)
    assert ("encode", "m") not in trace


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ("one", "must be a list of states, got str"),
        ({"a": 1}, "got dict"),
        (None, "got NoneType"),
        (["a", None], r"states\[1\]"),
        ([3], r"states\[0\]"),
    ],
)
def test_states_that_are_no_list_of_states_are_refused(states: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Agent(WordCheckpoint()).predict_batch(states, LATE)


@pytest.mark.parametrize("entry", ["predict", "predict_batch", "predict_long"])
@pytest.mark.parametrize(("left", "words"), [("text", "start hooks left str"), (["a", "b"], "start hooks left 2")])
def test_start_hook_of_a_router_must_leave_one_state(entry: str, left: Any, words: str) -> None:
    request = {"state": "s", "questions": LATE, "model": "english"}
    arguments: dict[str, Any] = {"requests": [request]} if entry == "predict_batch" else request
    with pytest.raises((TypeError, ValueError), match=words):
        getattr(make_router(), entry)(**arguments, on_predict_start=lambda ctx: setattr(ctx, "states", left))


def test_start_hook_may_put_right_what_the_caller_got_wrong() -> None:
    agent = Agent(WordCheckpoint())
    results = agent.predict_batch("one", LATE, on_predict_start=lambda ctx: setattr(ctx, "states", ["one"]))  # type: ignore[arg-type]
    assert len(results) == 1


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ("text", "must be a list of dicts"),
        ({"state": "s"}, "must be a list of dicts"),
        (iter([]), "goes to predict_stream"),
        ([{"state": "s", "questions": LATE}, 3], r"requests\[1\] must be a dict, got int"),
        ([{"state": "s"}], r"requests\[0\] has no 'questions'"),
        ([{"state": "s", "questions": LATE}, {"questions": LATE}], r"requests\[1\] has no 'state'"),
        ([{"state": None, "questions": LATE}], r"requests\[0\]: `state`"),
        ([{"state": "s", "questions": []}], r"requests\[0\]: `questions`"),
    ],
)
def test_batch_names_the_request_and_routes_nothing(requests: Any, words: str) -> None:
    trace: Trace = []
    router = make_router(trace, hooks=Recorder("H", trace))
    with pytest.raises((TypeError, ValueError), match=words):
        router.predict_batch(requests)
    assert trace == []


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (Recorder, "must be an object, got the class Recorder; write"),
        (lambda ctx: None, "Pass a plain function as on_predict_start="),
        (object(), "must have a method named"),
        (type("Typo", (), {"on_predict_stat": lambda self, ctx: None})(), "did you mean 'on_predict_start'"),
        (type("Value", (), {"on_route": 3})(), "Value.on_route must be a method, got int"),
        (
            type("Odd", (), {"on_route": print, "failure_policy": "maybe"})(),
            "failure_policy must be one of 'closed', 'open'",
        ),
        (type("Odd", (), {"on_route": print, "deadline_s": 0})(), "deadline_s` must be a positive finite number"),
    ],
)
def test_what_is_no_hook_is_refused_when_it_is_given(hook: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Agent(WordCheckpoint(), hooks=hook)
    with pytest.raises((TypeError, ValueError), match=words):
        Agent(WordCheckpoint()).predict("s", LATE, hooks=[hook])


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "1"])
def test_deadline_must_be_a_positive_number(value: Any) -> None:
    with pytest.raises(ValueError, match="hooks_timeout"):
        Agent(WordCheckpoint(), hooks_timeout=value)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_skip_takes_one_result_per_state(count: int) -> None:
    agent = Agent(WordCheckpoint())
    with pytest.raises(ValueError, match=f"2 expected, {count} came"):
        agent.predict_batch(["a", "b"], LATE, on_predict_start=lambda ctx: ctx.skip([{}] * count))
    with pytest.raises(ValueError, match=f"2 expected, {count} came"):
        agent.predict_batch(["a", "b"], LATE, on_predict_start=lambda ctx: setattr(ctx, "results", [{}] * count))


def test_skip_takes_a_list() -> None:
    with pytest.raises(TypeError, match="got dict"):
        Agent(WordCheckpoint()).predict("a", LATE, on_predict_start=lambda ctx: ctx.skip({}))  # type: ignore[arg-type]


def test_unknown_checkpoint_names_the_nearest_and_all() -> None:
    router = make_router()
    with pytest.raises(LookupError, match=r"did you mean 'english'.*register\(name, source\)"):
        router.predict("s", LATE, model="englsh")
    with pytest.raises(ValueError, match="known are 'english', 'multilingual'"):
        router.load("nothing like it")
    with pytest.raises(TypeError, match="must be a string, got 3"):
        router.load(3)  # type: ignore[arg-type]


def test_built_in_name_without_its_package_is_an_error_at_the_first_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints())
    with pytest.raises(LookupError, match="no checkpoint is known as 'english'"):
        Router().predict("where is my order", LATE, model="english")


def test_checkpoints_are_found_by_entry_point_at_the_first_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    points = metadata.EntryPoints(
        metadata.EntryPoint(name, f"predict_checkpoints:{target}", catalog.GROUP)
        for name, target in (("words", "WordCheckpoint"), ("directory", "WordCheckpoint"), ("broken", "answer_for"))
    )
    monkeypatch.setattr(metadata, "entry_points", lambda group, **keys: points.select(group=group, **keys))
    assert Agent("words", size_bytes=7).size_bytes == 7
    assert Router().load("WORDS").model_id == "words"
    assert Agent(str(tmp_path)).model_id == str(tmp_path)
    with pytest.raises(FileNotFoundError, match="a checkpoint's folder was expected"):
        Agent(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="did you mean 'words'"):
        Agent("wordz")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Agent(3), "must be a name, a path, or an object with"),
        (lambda: Router({"a": 3}), "source of checkpoint 'a'"),
        (lambda: Router({"auto": WordCheckpoint()}), "not 'auto'"),
        (lambda: Router({"a b": WordCheckpoint()}), "must be letters, digits"),
        (lambda: Router(max_loaded=0), "`max_loaded` must be an int >= 1"),
        (lambda: Router().attach("a", object()), "method system_one"),
        (lambda: Agent(WordCheckpoint()).predict("s", LATE, max_len=0), "`max_len` counts tokens"),
        (lambda: Agent(WordCheckpoint()).predict_batch(["s"], LATE, batch_size=0), "`batch_size`"),
        (lambda: Agent(WordCheckpoint()).predict("s", LATE, min_confidence=2), "within 0 and 1"),
        (
            lambda: Agent(WordCheckpoint()).predict("s", LATE, min_confidence={"choice:3": 0.5}),
            "did you mean 'choice:3-5'",
        ),
        (lambda: Router().predict_stream([], window=0), "`window` counts requests"),
    ],
)
def test_arguments_are_checked(make: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_name_almost_as_a_built_in_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="almost as the built-in 'english'"):
        Router().register("englisch", WordCheckpoint())


def test_closed_agent_says_so() -> None:
    with Agent(WordCheckpoint()) as agent:
        pass
    with pytest.raises(RuntimeError, match="was closed"):
        agent.predict("s", LATE)


def test_hooks_can_be_scoped_added_and_removed() -> None:
    first, second = BaseHook(), BaseHook()
    agent = Agent(WordCheckpoint(), hooks=first)
    assert agent.add_hook([second, first]) is agent
    within: list[object] = []
    with pytest.raises(KeyError, match="x"):
        _fail_within(agent, [second, [first]], within)
    assert within == [first, second, first, second, first]
    assert agent.hooks == (first, second, first)
    assert agent.remove_hook(first)
    assert not agent.remove_hook(first)
    assert agent.hooks == (second,)


def _fail_within(agent: Agent, hooks: list[Any], within: list[object]) -> None:
    with agent.hooks_installed(*hooks):
        within.extend(agent.hooks)
        raise KeyError("x")


def test_answers_have_the_published_shape() -> None:
    asked = {
        **TOPIC,
        "level": {"type": "score", "instructions": "how bad", "criteria": ["fine", {"text": "bad"}]},
        "late": {"type": "noul", "instructions": {"is": "late"}, "labels": {"true": "late", "false": "on time"}},
    }
    answers = Agent(WordCheckpoint()).predict("a parcel, late and bad", asked, min_confidence={"default": 0.9})[
        "answers"
    ]
    assert {name: sorted(answer) for name, answer in answers.items()} == {
        "topic": sorted(
            [
                "type",
                "choice",
                "probabilities",
                "confidence",
                "answer_confidence",
                "abstention",
                "abstention_threshold",
                "low_confidence",
            ]
        ),
        "level": sorted(
            [
                "type",
                "score",
                "legend",
                "probabilities",
                "confidence",
                "answer_confidence",
                "abstention",
                "abstention_threshold",
                "low_confidence",
            ]
        ),
        "late": sorted(
            ["type", "noul", "confidence", "answer_confidence", "abstention", "abstention_threshold", "low_confidence"]
        ),
    }
    assert answers["level"]["legend"] == {"0": "fine", "1": '{"text": "bad"}'}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3) | st.integers(), VALUES, max_size=3))
def test_any_questions_are_parsed_or_refused_with_an_error_of_ours(questions: Any) -> None:
    try:
        parsed = parse_questions(questions)
    except UndercurrentError:
        return
    assert [one.id for one in parsed] == list(questions)
    assert all(one.type in QUESTION_TYPES for one in parsed)


@given(VALUES, VALUES)
def test_schema_keys_are_equal_exactly_where_values_are(left: Any, right: Any) -> None:
    assert (schema_key(left) == schema_key(right)) == (repr(left) == repr(right))


def test_import_costs_neither_torch_nor_numpy() -> None:
    program = (
        "import sys, undercurrent.predict;"
        "print(sorted({'torch', 'numpy', 'pycld2', 'undercurrent.engines'} & {*sys.modules}))"
    )
    answer = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


LONG = " ".join(f"w{number}" for number in range(150)) + " a parcel is late late " + " ".join(["x"] * 60)


def test_long_state_is_read_in_windows_and_the_answer_names_its_own() -> None:
    trace: Trace = []
    agent = Agent(WordCheckpoint(max_len=40), hooks=Recorder("H", trace))
    asked = {"late": {"type": "noul", "instructions": "late", "labels": {"true": "late", "false": "early"}}}
    result = agent.predict_long(LONG, asked)
    window = result["answers"]["late"]["window"]
    assert "late" in LONG.split()[window["token_start"] : window["token_end"]]
    assert result["usage"]["windows"] == window["count"] == 10
    assert [step[1] for step in trace] == ["on_predict_start", "on_predict_end"]
    short = agent.predict_long("a parcel", asked)
    assert short["usage"]["windows"] == 1
    assert short["answers"] == agent.predict("a parcel", asked)["answers"]
    with pytest.raises(ValueError, match="`stride` must be at most"):
        agent.predict_long(LONG, asked, window=20, stride=30)


def test_hook_answers_a_long_state_with_one_result() -> None:
    def skip(ctx: PredictContext) -> None:
        ctx.skip([{"model": "cache", "answers": {"late": {"noul": 1.0}}}])

    result = Agent(WordCheckpoint()).predict_long(LONG, LATE, on_predict_start=skip)
    assert result == {"model": "cache", "answers": {"late": {"noul": 1.0}}, "usage": {"windows": 0}}


def test_router_s_hooks_see_the_long_state_whole() -> None:
    seen: list[str] = []
    router = make_router()
    result = router.predict_long(LONG, LATE, model="en", on_predict_start=lambda ctx: seen.append(ctx.states[0]))
    assert seen == [LONG]
    assert result["usage"]["windows"] > 1
    assert result["routing"]["model"] == "english"


def test_windows_that_a_hook_rewrote_are_not_named() -> None:
    agent = Agent(WordCheckpoint())
    result = agent.predict_long(LONG, LATE, on_predict_start=lambda ctx: setattr(ctx, "states", ["a", "b"]))
    assert result["usage"]["windows"] == 2
    assert "window" not in result["answers"]["late"]
