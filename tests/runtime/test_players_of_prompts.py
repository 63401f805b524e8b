"""Prompts as programs write them, how they are cut into players, and how players are left out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercurrent.runtime.domain import ABSENCE_POLICIES, PLAYER_KINDS, Conversation, PlayerSet, partition, render
from undercurrent.runtime.errors import RuntimeTypeError, RuntimeValueError

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer shortly."},
    {
        "role": "user",
        "content": [
            "Use these:\n",
            {"type": "document", "text": "Rivers flow. They bend!\n", "name": "rivers.txt"},
            {"type": "document", "text": "Hills stand.\n"},
            "What moves?",
        ],
    },
    {"role": "tool", "content": "42 rivers"},
]

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


def labels(kind: str, **options: Any) -> list[str]:
    return [player.label for player in partition(Conversation.of(CHAT), kind, **options).players]


def test_documents_tool_results_and_messages_are_players_of_their_own() -> None:
    assert labels("documents") == ["rivers.txt", "Hills stand."]
    assert labels("tool_results") == ["42 rivers"]
    assert labels("messages")[0] == "Answer shortly."
    assert labels("messages")[-2:] == ["What moves?", "42 rivers"]
    assert len(labels("messages")) == 6


def test_sentences_end_at_full_stops_and_blank_lines() -> None:
    text = "One is 3.5 long. Two!  Three\n\nfour goes\non? Five"
    found = partition(Conversation.of(text), "sentences")
    assert [text[p.start : p.end] for p in found.players] == [
        "One is 3.5 long.",
        "Two!",
        "Three",
        "four goes\non?",
        "Five",
    ]


def test_paragraphs_words_and_tokens() -> None:
    conversation = Conversation.of("It's so.\n\nReally so")
    assert [p.label for p in partition(conversation, "paragraphs").players] == ["It's so.", "Really so"]
    assert len(partition(conversation, "words")) == 4
    assert len(partition(conversation, "tokens")) == 7
    halves = partition(conversation, "tokens", tokenize=lambda text: [(0, 2), (2, len(text))])
    assert [p.label for p in halves.players] == ["It", "'s so. Really so"]


def test_roles_choose_whose_words_are_players() -> None:
    assert labels("words", roles=["system"]) == ["Answer", "shortly."]


def test_a_plain_text_is_one_user_message_and_a_mapping_may_hold_either_form() -> None:
    assert Conversation.of("Hi") == Conversation.of({"prompt": "Hi"})
    assert Conversation.of({"messages": CHAT}) == Conversation.of(CHAT)
    assert Conversation.of(CHAT).to_messages()[1]["content"].startswith("Use these:\nRivers flow.")


def test_the_snapshot_id_tells_conversations_apart() -> None:
    joined = Conversation.of([{"role": "user", "content": ["ab"]}])
    parted = Conversation.of([{"role": "user", "content": ["a", "b"]}])
    assert joined.snapshot_id == Conversation.of("ab").snapshot_id
    assert joined.snapshot_id != parted.snapshot_id


def test_absent_documents_leave_the_rest_as_it_was() -> None:
    conversation = Conversation.of(CHAT)
    players = partition(conversation, "documents")
    without = render(conversation, players, (False, True), "delete")
    assert without.messages[1].text == "Use these:\nHills stand.\nWhat moves?"
    assert without.messages[0] == conversation.messages[0]
    assert len(without.messages[1].parts) == 4


@given(texts, st.sampled_from(["words", "tokens", "sentences", "paragraphs"]), st.data())
def test_players_never_overlap_and_whoever_is_present_stays_word_for_word(
    text: str, kind: str, data: st.DataObject
) -> None:
    conversation = Conversation.of(text)
    players = partition(conversation, kind, players_max=10_000) if kind != "tokens" or _has_pieces(text) else None
    if players is None:
        return
    spans = [(player.start, player.end) for player in players.players]
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    present = data.draw(st.lists(st.booleans(), min_size=len(players), max_size=len(players)))
    policy = data.draw(st.sampled_from(ABSENCE_POLICIES))
    rendered = render(conversation, players, present, policy).text
    position = 0
    for (start, end), is_present in zip(spans, present, strict=True):
        if is_present:
            position = rendered.index(text[start:end], position) + end - start
    if all(present):
        assert rendered == text
    if policy == "neutral":
        assert len(rendered) == len(text)
    if policy == "delete" and not any(present) and kind != "tokens":
        assert not rendered.strip()


def _has_pieces(text: str) -> bool:
    try:
        partition(Conversation.of(text), "tokens", players_max=10_000)
    except RuntimeValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (7, "a text or a list of messages was expected as prompt, got int"),
        ([7], r"at \$\[0\], got int"),
        ([{"content": "x"}], r"`role` must be a text at \$\[0\], got None"),
        ([{"role": "user", "content": 3}], r"`content` must be a text or a list of parts at \$\[0\]"),
        ([{"role": "user", "content": [{"type": "document"}]}], r"was expected at \$\[0\].content\[0\]"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_path(prompt: object, message: str) -> None:
    with pytest.raises(RuntimeTypeError, match=message):
        Conversation.of(prompt)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("  ", "a prompt with some text was expected"),
        ([], "a prompt with some text was expected"),
        ({"text": "x"}, "either `prompt` or `messages`"),
        ([{"role": "user", "content": [{"type": "documnt", "text": "x"}]}], "did you mean 'document'"),
    ],
)
def test_an_empty_or_unknown_prompt_is_refused(prompt: object, message: str) -> None:
    with pytest.raises(RuntimeValueError, match=message):
        Conversation.of(prompt)


def test_wrong_players_are_refused() -> None:
    with pytest.raises(RuntimeValueError, match="did you mean 'sentences'"):
        partition(Conversation.of("x"), "sentence")
    with pytest.raises(RuntimeValueError, match="a prompt with documents was expected, got none"):
        partition(Conversation.of("x"), "documents")
    with pytest.raises(RuntimeValueError, match="at most 24 players were expected, got 25 words"):
        partition(Conversation.of("x " * 25), "words")


def test_wrong_masks_and_policies_are_refused() -> None:
    conversation = Conversation.of("a b")
    players = partition(conversation, "words")
    with pytest.raises(RuntimeValueError, match="a mask of 2 players was expected, got one of 1"):
        render(conversation, players, (True,), "delete")
    with pytest.raises(RuntimeValueError, match="did you mean 'delete'"):
        render(conversation, players, (True, True), "delet")


def test_every_kind_of_player_is_known_to_a_player_set() -> None:
    assert isinstance(partition(Conversation.of("a"), "words"), PlayerSet)
    assert {"tokens", "words", "sentences", "paragraphs", "messages", "documents", "tool_results"} == set(PLAYER_KINDS)
