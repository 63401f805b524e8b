"""Which checkpoint reads what, on sentences in twenty languages, and what detection may cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from predict_checkpoints import LATE, Recorder, make_router
from predict_sentences import LONG_ENGLISH, SENTENCES

from undercurrent.predict import RouteDecision, Router, language
from undercurrent.predict.language import SAMPLE_CHARS, detect, sample_of

ROUTER = make_router()


@pytest.mark.parametrize("lang", sorted(SENTENCES))
def test_sentences_go_to_the_checkpoint_that_reads_them(lang: str) -> None:
    for sentence in SENTENCES[lang]:
        decision = ROUTER.route(sentence, explain=True)
        assert decision["model"] == ("english" if lang == "en" else "multilingual"), sentence
        assert decision["detection"]["language"] == lang, sentence


def test_english_and_no_other_of_the_table_goes_to_english() -> None:
    to_english = {
        lang for lang, texts in SENTENCES.items() for text in texts if ROUTER.route(text)["model"] == "english"
    }
    assert to_english == {"en"}


@pytest.mark.parametrize("state", ["", "1234 5678", "!?", [], {}, {"a": 1}, [None, 3.5], "\x00\x01"])
def test_state_without_letters_goes_to_the_default(state: Any) -> None:
    decision = ROUTER.route(state)
    assert decision["model"] == "multilingual"
    assert "no letters" in decision["reason"]
    assert Router(default="en").route(state)["model"] == "english"


def test_one_field_in_another_language_is_enough() -> None:
    state = {"subject": SENTENCES["en"][0], "body": SENTENCES["de"][0], "tags": ["bill", "refund"]}
    assert ROUTER.route(state)["model"] == "multilingual"
    assert ROUTER.route({**state, "body": SENTENCES["en"][1]})["model"] == "english"


def test_conversation_is_read_turn_by_turn() -> None:
    turns = [{"role": "user", "text": SENTENCES["en"][0]}, {"role": "agent", "text": SENTENCES["ru"][0]}]
    assert ROUTER.route(turns)["model"] == "multilingual"
    assert ROUTER.route(turns[:1])["model"] == "english"


def test_english_with_some_foreign_letters_stays_english() -> None:
    assert ROUTER.route("My café order for Zoë and Jürgen has not come, where is it now please?")["model"] == "english"


@pytest.mark.parametrize("noise", ["\x00", "\x1f\x7f", "\ud800", "\ufdd0\uffff"])
def test_characters_nobody_can_read_do_not_stop_detection(noise: str) -> None:
    assert ROUTER.route(noise.join(SENTENCES["en"][:2]))["model"] == "english"


def test_precedence_is_model_then_lang_then_guesses_then_text() -> None:
    german = SENTENCES["de"][0]
    router = Router(lang_guess="en")
    assert router.route(german, model="ml", lang="en")["model"] == "multilingual"
    assert router.route(german, lang="de")["model"] == "multilingual"
    assert router.route(german)["model"] == "english"
    assert router.route(german, lang_guess=lambda state: "de-AT")["model"] == "multilingual"
    assert Router().route(german, lang_guess=lambda state: None)["model"] == "multilingual"


@pytest.mark.parametrize(
    ("code", "model"), [("en_US.UTF-8", "english"), ("EN-gb", "english"), ("pt-BR", "multilingual")]
)
def test_codes_of_locales_are_read(code: str, model: str) -> None:
    assert ROUTER.route("x", lang=code)["model"] == model


@pytest.mark.parametrize("code", ["", "C", "C.UTF-8", "POSIX", "und", "mul"])
def test_codes_that_name_no_language_leave_it_to_the_text(code: str) -> None:
    assert ROUTER.route(SENTENCES["en"][0], lang=code)["model"] == "english"


def test_sample_is_bounded_and_has_beginning_middle_and_end() -> None:
    text = "a" * 1000 + "b" * 1000 + "c" * 1000
    assert len(sample_of(text)) <= SAMPLE_CHARS
    assert set(sample_of(text)) == {*"abc\n"}
    assert len(sample_of(["word " * 50] * 1000)) <= SAMPLE_CHARS
    assert sample_of({"a": {"b": ["one", {"c": "two"}]}, "d": 3}) == "one\ntwo"


def test_long_tail_in_another_language_is_seen() -> None:
    assert ROUTER.route(LONG_ENGLISH)["model"] == "english"
    assert ROUTER.route(LONG_ENGLISH + " ".join(SENTENCES["de"]) * 2)["model"] == "multilingual"


class Numbers(list[int]):
    """A long list without a text, which counts how much of it is read."""

    read_count = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(10**7):
            self.read_count += 1
            yield number


def test_detection_looks_at_a_bounded_part_of_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def reader() -> Any:
        return lambda sample: read.append(len(sample)) or (True, (("en", 100),))

    monkeypatch.setattr(language, "_reader", reader)
    for state in ("w " * 1_000_000, ["w " * 1000] * 1000, {str(at): "é" * 1000 for at in range(1000)}):
        detect(state)
    assert max(read) <= SAMPLE_CHARS
    numbers = Numbers()
    detect(numbers)
    assert numbers.read_count <= 2000
    endless: list[Any] = []
    endless.append(endless)
    assert detect(endless).script == "unknown"


def test_without_the_package_latin_text_goes_to_the_default_and_says_how_to_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pycld2", None)
    language._reader.cache_clear()
    try:
        decision = ROUTER.route(SENTENCES["en"][0])
        assert decision["model"] == "multilingual"
        assert "pip install 'undercurrent[predict]'" in decision["reason"]
        assert ROUTER.route(SENTENCES["ru"][0])["reason"].startswith("the script is cyrillic")
    finally:
        language._reader.cache_clear()


def test_decision_is_a_dict_with_properties() -> None:
    decision = ROUTER.route(SENTENCES["en"][0])
    assert isinstance(decision, RouteDecision)
    assert (decision.model, decision.reason) == (decision["model"], decision["reason"])


def test_route_batch_routes_each_request_and_loads_nothing() -> None:
    trace: list[Any] = []
    router = make_router(trace, hooks=Recorder("H", trace))
    batch = [{"state": SENTENCES[lang][0], "questions": LATE} for lang in ("en", "fr", "ja")]
    assert [decision["model"] for decision in router.route_batch(batch)] == ["english", "multilingual", "multilingual"]
    assert [step[1] for step in trace] == ["on_route"] * 3
    assert router.loaded == []


@pytest.mark.parametrize(
    ("left", "words"), [(None, "a hook left NoneType"), ({}, "must name a checkpoint"), ({"model": 3}, "3")]
)
def test_decision_that_names_no_checkpoint_is_refused(left: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        ROUTER.route("s", hooks=Recorder("H", [], {"on_route": lambda ctx: setattr(ctx, "decision", left)}))


def test_language_reaches_an_agent_that_uses_it_and_no_other() -> None:
    seen: list[Any] = []

    class Calibrated:
        uses_lang = True

        def system_one(self, state: Any, questions: Any, **arguments: Any) -> dict[str, Any]:
            seen.append(arguments)
            return {"answers": {}}

        def predict_batch(self, states: list[Any], questions: Any, **arguments: Any) -> list[dict[str, Any]]:
            seen.append(arguments["lang"])
            return [{"answers": {}} for _ in states]

    router = make_router()
    router.attach("multilingual", Calibrated())
    router.predict(SENTENCES["de"][0], LATE)
    router.predict(SENTENCES["de"][0], LATE, lang="nl")
    router.predict_batch([{"state": SENTENCES[lang][0], "questions": LATE} for lang in ("de", "fr", "de")])
    assert seen == [{"lang": "de"}, {"lang": "nl"}, "de", "fr"]
